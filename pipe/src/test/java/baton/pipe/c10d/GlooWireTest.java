package baton.pipe.c10d;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.FreePorts;
import baton.kv.Ticker;
import baton.pipe.PipeException;
import baton.pipe.TestWires;
import baton.pipe.Wire;
import baton.pipe.WireContract;
import java.lang.foreign.Arena;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

/** Wires over Gloo keep the contract, do not pin virtual threads' carriers and notice the peer's end. */
class GlooWireTest extends WireContract {
    GlooWireTest() throws PipeException {
        super(GlooTransport.load(Ticker.system()), GlooTransport.load(Ticker.system()));
    }

    @Test
    void waitingVirtualThreadsDoNotPinTheirCarriers() throws Exception {
        int wires = Math.max(16, Runtime.getRuntime().availableProcessors() + 2);
        List<Wire> waitedFor = new ArrayList<>();
        List<FutureTask<Boolean>> waiting = new ArrayList<>();
        try (GlooTransport transport = GlooTransport.load(Ticker.system());
                Arena arena = Arena.ofShared()) {
            for (int i = 0; i < wires; i++) {
                Wire[] ends = TestWires.offered(transport);
                waitedFor.add(keep(ends[1]));
                Wire end = keep(ends[0]);
                FutureTask<Boolean> receiving = new FutureTask<>(() -> {
                    end.receive(arena.allocate(8), Duration.ofSeconds(60));
                    return true;
                });
                waiting.add(receiving);
                Thread.ofVirtual().start(receiving);
            }
            CompletableFuture<Boolean> other = new CompletableFuture<>();
            Thread.ofVirtual().start(() -> other.complete(true));
            assertThat(other.get(30, TimeUnit.SECONDS)).isTrue();
            assertThat(waiting).noneMatch(FutureTask::isDone);
            waitedFor.forEach(Wire::close);
            for (FutureTask<Boolean> each : waiting) {
                assertThatThrownBy(() -> result(each)).isInstanceOf(PipeException.class);
            }
        }
    }

    /** The store is there for both addresses, rank 0's own connections for one. */
    @Test
    void rankOneConnectsToThePublishedAddressOfRankZero() throws Exception {
        int port = FreePorts.inARow(1);
        try (GlooTransport transport = GlooTransport.load(Ticker.system())) {
            FutureTask<Wire> zero = background(() -> transport.meet(HOST, port, 0, LONG));
            Wire one = keep(transport.meet("127.0.0.2", port, 1, LONG));
            assertConnected(one, keep(result(zero)));
        }
    }

    /** The peer's process has ended without Gloo's notice. */
    @Test
    void theEndOfTheLivenessSocketIsTheEndOfTheWire() throws Exception {
        Wire[] ends = offered();
        try (Arena arena = Arena.ofShared()) {
            FutureTask<Boolean> receiving = background(() -> {
                ends[0].receive(arena.allocate(8), Duration.ofMinutes(10));
                return true;
            });
            ((GlooWire) ends[1]).liveness().close();
            assertThatThrownBy(() -> result(receiving)).isInstanceOf(PipeException.class);
        }
    }
}
