package baton.transfer.embedded;

import static org.assertj.core.api.Assertions.assertThat;

import baton.transfer.Range;
import baton.transfer.Region;
import baton.transfer.Transfer;
import baton.transfer.Transfer.State;
import baton.transfer.TransferAgent.Operation;
import baton.transfer.TransferAgent.Peer;
import baton.transfer.TransferException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.time.Duration;
import java.util.List;
import java.util.Optional;

/** An agent's service for its other peers, whatever one of them sent. */
final class HonestPeer {
    private static final Duration LONG = Duration.ofMinutes(2);

    private HonestPeer() {}

    /** Asserts that an agent reads all of another one's memory. */
    static void reads(EmbeddedAgent honest, EmbeddedAgent agent, MemorySegment memory) throws TransferException {
        try (Arena arena = Arena.ofShared()) {
            MemorySegment own = arena.allocate(memory.byteSize(), 64).fill((byte) 1);
            try (var _ = honest.register(new Region(own, Optional.empty()))) {
                Peer peer = honest.connect(agent.metadata(), LONG);
                Transfer read = honest.start(
                        Operation.READ,
                        peer,
                        List.of(new Range(own.address(), memory.address(), memory.byteSize())),
                        Optional.empty(),
                        LONG);
                long deadline = System.nanoTime() + 2 * LONG.toNanos();
                while (read.state() instanceof State.UnderWay) {
                    assertThat(System.nanoTime()).as("in time").isLessThan(deadline);
                    Thread.onSpinWait();
                }
                assertThat(read.state()).isInstanceOf(State.Done.class);
                assertThat(own.mismatch(memory)).isEqualTo(-1);
            }
        }
    }
}
