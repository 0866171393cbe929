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
import java.util.concurrent.atomic.AtomicLongArray;
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

    /** Ranges of more bytes than are copied or told of at once, of fewer, and longer and shorter than a piece. */
    @ParameterizedTest
    @ValueSource(ints = {100, 5_000, 200_000})
    void eachByteIsToldOfOnceWhenItIsHereInTheOrderOfItsRange(int size) {
        fill(theirs, 1);
        fill(mine, 2);
        int count = 5;
        List<Range> ranges = IntStream.range(0, count)
                .mapToObj(i -> range((long) i * size, (long) (count - 1 - i) * size, size))
                .toList();
        AtomicLongArray told = new AtomicLongArray(count);
        Queue<String> wrong = new ConcurrentLinkedQueue<>();
        Transfer transfer = here.start(Operation.READ, peer, ranges, Optional.empty(), LONG, (range, from, bytes) -> {
            MemorySegment source = theirs.asSlice((long) (count - 1 - range) * size + from, bytes);
            if (!told.compareAndSet(range, from, from + bytes)
                    || source.mismatch(mine.asSlice((long) range * size + from, bytes)) != -1) {
                wrong.add("%d bytes from %d of range %d".formatted(bytes, from, range));
            }
        });
        assertThat(finish(transfer)).isInstanceOf(State.Done.class);
        assertThat(wrong).isEmpty();
        assertThat(IntStream.range(0, count).mapToLong(told::get)).containsOnly((long) size);
    }

    @Test
    void whoThrowsWhenToldFailsTheTransfer() {
        Transfer transfer =
                here.start(Operation.READ, peer, List.of(range(0, 0, 500_000)), Optional.empty(), LONG, (_, _, _) -> {
                    throw new IllegalStateException("on purpose");
                });
        assertFails(transfer, Cause.TRANSPORT);
    }
}
