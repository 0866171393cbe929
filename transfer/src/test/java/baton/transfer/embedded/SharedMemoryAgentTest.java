package baton.transfer.embedded;

import static org.assertj.core.api.Assertions.assertThat;

import baton.memory.MappableMemory;
import baton.memory.RunDigests;
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
import java.util.zip.CRC32C;
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

    /** The system counts it as this process's memory, so operators need its source. */
    @Test
    void mappedBytesOfPeersAreCounted() throws Exception {
        assertThat(here.mappedPeerBytes()).isEqualTo(remoteMemory.byteSize());
        try (Arena arena = Arena.ofShared()) {
            TransferAgent.Registration more = there.register(allocate(arena, 8192));
            awaitMapped(remoteMemory.byteSize() + 8192);
            more.close();
            awaitMapped(remoteMemory.byteSize());
        }
        peer.close();
        awaitMapped(0);
    }

    private void awaitMapped(long bytes) {
        await(bytes + " bytes of peers are mapped", () -> here.mappedPeerBytes() == bytes);
    }

    @ParameterizedTest
    @ValueSource(ints = {100, 5_000, 64_000})
    void eachRangeIsDigestedOnceItIsInPlace(int runBytes) {
        fill(remoteMemory, 1);
        fill(mine, 2);
        int count = 5;
        int[][] told = new int[count][];
        Queue<Integer> tooEarly = new ConcurrentLinkedQueue<>();
        int size = 3 * runBytes;
        List<Range> ranges = IntStream.range(0, count)
                .mapToObj(i -> range((long) i * size, (long) (count - 1 - i) * size, size))
                .toList();
        RunDigests digests = new RunDigests(1, 3, runBytes, (range, crc32c) -> {
            told[range] = crc32c;
            MemorySegment source = remoteMemory.asSlice((long) (count - 1 - range) * size, size);
            if (source.mismatch(mine.asSlice((long) range * size, size)) != -1) {
                tooEarly.add(range);
            }
        });
        Transfer transfer = here.start(Operation.READ, peer, ranges, Optional.empty(), LONG, digests);
        assertThat(finish(transfer)).isInstanceOf(State.Done.class);
        assertThat(tooEarly).isEmpty();
        for (int i = 0; i < count; i++) {
            for (int run = 0; run < 3; run++) {
                CRC32C crc = new CRC32C();
                crc.update(mine.asSlice((long) i * size + (long) run * runBytes, runBytes)
                        .asByteBuffer());
                assertThat(told[i][run]).isEqualTo((int) crc.getValue());
            }
        }
    }

    @Test
    void aDigestListenerThatThrowsFailsTheTransfer() {
        RunDigests digests = new RunDigests(1, 1, 500_000, (_, _) -> {
            throw new IllegalStateException("on purpose");
        });
        assertFails(
                here.start(Operation.READ, peer, List.of(range(0, 0, 500_000)), Optional.empty(), LONG, digests),
                Cause.TRANSPORT);
    }

    @Test
    void rangesOfAnotherSizeThanTheDigestsAreRefused() {
        RunDigests digests = new RunDigests(1, 1, 4096, (_, _) -> {});
        assertFails(
                here.start(Operation.READ, peer, List.of(range(0, 0, 4095)), Optional.empty(), LONG, digests),
                Cause.REFUSED);
    }
}
