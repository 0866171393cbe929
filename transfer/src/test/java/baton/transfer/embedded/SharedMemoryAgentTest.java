package baton.transfer.embedded;

import static org.assertj.core.api.Assertions.assertThat;

import baton.transfer.MappableMemory;
import baton.transfer.Range;
import baton.transfer.Region;
import baton.transfer.Transfer;
import baton.transfer.Transfer.Cause;
import baton.transfer.Transfer.State;
import baton.transfer.TransferAgent;
import baton.transfer.TransferAgent.Operation;
import baton.transfer.TransferAgentContract;
import baton.transfer.TransferException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.List;
import java.util.Optional;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** The embedded agent between processes of one host. */
class SharedMemoryAgentTest extends TransferAgentContract {
    @Override
    protected TransferAgent open(String prefix) throws TransferException {
        return EmbeddedAgent.open(prefix, EmbeddedAgent.Settings.at("127.0.0.1"));
    }

    @Override
    protected Region allocate(Arena arena, long bytes) {
        MappableMemory memory = MappableMemory.allocate(arena, bytes, "a test");
        return new Region(memory.memory(), Optional.of(memory.file()));
    }

    @Test
    void memoryIsShared() {
        assertThat(peer).hasToString(there.name() + " by shared memory");
    }

    /** Ranges of more bytes than are copied at once, of fewer, and longer and shorter than a piece. */
    @ParameterizedTest
    @ValueSource(ints = {100, 5_000, 200_000})
    void eachRangeIsToldOfOnceWhenItIsHere(int size) {
        fill(theirs, 1);
        fill(mine, 2);
        int count = 5;
        List<Range> ranges = IntStream.range(0, count)
                .mapToObj(i -> range((long) i * size, (long) (count - 1 - i) * size, size))
                .toList();
        Queue<Integer> told = new ConcurrentLinkedQueue<>();
        Queue<Integer> here = new ConcurrentLinkedQueue<>();
        Transfer transfer = this.here.start(Operation.READ, peer, ranges, Optional.empty(), LONG, range -> {
            told.add(range);
            if (MemorySegment.mismatch(
                            mine,
                            (long) range * size,
                            (long) (range + 1) * size,
                            theirs,
                            (long) (count - 1 - range) * size,
                            (long) (count - range) * size)
                    == -1) {
                here.add(range);
            }
        });
        assertThat(finish(transfer)).isInstanceOf(State.Done.class);
        assertThat(told).containsExactlyInAnyOrder(0, 1, 2, 3, 4);
        assertThat(here).containsExactlyInAnyOrder(0, 1, 2, 3, 4);
    }

    @Test
    void whoThrowsWhenToldFailsTheTransfer() {
        Transfer transfer =
                here.start(Operation.READ, peer, List.of(range(0, 0, 500_000)), Optional.empty(), LONG, _ -> {
                    throw new IllegalStateException("on purpose");
                });
        assertFails(transfer, Cause.TRANSPORT);
    }
}
