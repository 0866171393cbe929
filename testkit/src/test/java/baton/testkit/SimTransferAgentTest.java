package baton.testkit;

import static org.assertj.core.api.Assertions.assertThat;

import baton.memory.RunDigests;
import baton.transfer.Range;
import baton.transfer.Region;
import baton.transfer.Transfer;
import baton.transfer.Transfer.Cause;
import baton.transfer.Transfer.State;
import baton.transfer.TransferAgent;
import baton.transfer.TransferAgent.Operation;
import baton.transfer.TransferAgent.Peer;
import baton.transfer.TransferAgentContract;
import baton.transfer.TransferException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.time.Duration;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.Set;
import java.util.stream.IntStream;
import java.util.zip.CRC32C;
import org.junit.jupiter.api.Test;

/** The agent in memory: without faults it keeps to the contract, with them it fails as agents do. */
class SimTransferAgentTest extends TransferAgentContract {
    private final VirtualTicker ticker = new VirtualTicker();
    private final SimTransferAgent.AgentNetwork agentNetwork = agentNetwork(SimNetwork.Faults.NONE, 1);

    private SimTransferAgent.AgentNetwork agentNetwork(SimNetwork.Faults faults, long seed) {
        SimNetwork network =
                new SimNetwork(ticker, new Random(seed), faults, Duration.ofMillis(1), Duration.ofMillis(20));
        return new SimTransferAgent.AgentNetwork(network, ticker);
    }

    @Override
    protected TransferAgent open(String prefix) {
        return agentNetwork.open(prefix);
    }

    @Override
    protected Region allocate(Arena arena, long bytes) {
        return new Region(arena.allocate(bytes, 64), Optional.empty());
    }

    @Override
    protected void progress() {
        ticker.advance(Duration.ofMillis(1));
        agentNetwork.poll();
    }

    @Test
    void timePassesOnlyWhenItIsAdvanced() {
        Transfer transfer = start(Operation.READ, range(0, 0, 100));
        agentNetwork.poll();
        assertThat(transfer.state()).isInstanceOf(State.UnderWay.class);
        ticker.advance(Duration.ofMillis(20));
        agentNetwork.poll();
        assertThat(transfer.state()).isInstanceOf(State.Done.class);
    }

    /** Rows of 2 runs of 5 bytes each; some bytes are corrupt, some transfers end halfway. */
    @Test
    void aRangeIsDigestedAsItIsInTheDestination() throws TransferException {
        SimNetwork.Faults faults = new SimNetwork.Faults(0, 0, 0, 0, 0.3, 0, 0.3, 0);
        int corrupt = 0;
        int partial = 0;
        for (long seed = 0; seed < 100; seed++) {
            SimTransferAgent.AgentNetwork faulty = agentNetwork(faults, seed);
            try (Arena arena = Arena.ofConfined();
                    SimTransferAgent one = faulty.open("one");
                    SimTransferAgent two = faulty.open("two")) {
                MemorySegment from = arena.allocate(90);
                MemorySegment to = arena.allocate(90);
                one.register(new Region(to, Optional.empty()));
                two.register(new Region(from, Optional.empty()));
                fill(from, seed);
                Map<Integer, int[]> digested = new HashMap<>();
                Transfer transfer = one.start(
                        Operation.READ,
                        one.connect(two.metadata(), LONG),
                        IntStream.range(0, 3)
                                .mapToObj(i -> new Range(to.address() + 30L * i, from.address() + 30L * i, 30))
                                .toList(),
                        Optional.empty(),
                        LONG,
                        new RunDigests(3, 2, 5, digested::put));
                ticker.advance(Duration.ofMillis(20));
                faulty.poll();
                boolean done = transfer.state() instanceof State.Done;
                assertThat(digested.size()).isLessThanOrEqualTo(3);
                if (done) {
                    assertThat(digested).hasSize(3);
                    corrupt += to.mismatch(from) >= 0 ? 1 : 0;
                } else if (!digested.isEmpty()) {
                    partial++;
                }
                digested.forEach((range, crc32c) -> {
                    for (int run = 0; run < 2; run++) {
                        CRC32C right = new CRC32C();
                        for (int row = 0; row < 3; row++) {
                            right.update(to.asSlice(30L * range + 10L * row + 5L * run, 5)
                                    .toArray(ValueLayout.JAVA_BYTE));
                        }
                        assertThat(crc32c[run]).isEqualTo((int) right.getValue());
                    }
                });
            }
        }
        assertThat(corrupt).isPositive();
        assertThat(partial).isPositive();
    }

    @Test
    void withAnyFaultATransferIsOverInTimeAndNotificationsMeanThatItIsDone() throws TransferException {
        SimNetwork.Faults faults = new SimNetwork.Faults(0.2, 0.2, 0.1, 0.2, 0.2, 0.1, 0, 0);
        Set<Cause> causes = new HashSet<>();
        for (long seed = 0; seed < 200; seed++) {
            SimTransferAgent.AgentNetwork faulty = agentNetwork(faults, seed);
            try (Arena arena = Arena.ofConfined();
                    SimTransferAgent one = faulty.open("one");
                    SimTransferAgent two = faulty.open("two")) {
                MemorySegment from = arena.allocate(1000);
                MemorySegment to = arena.allocate(1000);
                one.register(new Region(to, Optional.empty()));
                two.register(new Region(from, Optional.empty()));
                fill(from, seed);
                Peer peer = one.connect(two.metadata(), LONG);
                Transfer transfer = one.start(
                        Operation.READ,
                        peer,
                        List.of(new Range(to.address(), from.address(), 1000)),
                        Optional.of(text("read")),
                        Duration.ofMillis(100));
                for (int millis = 0; millis < 100; millis++) {
                    ticker.advance(Duration.ofMillis(1));
                    faulty.poll();
                }
                State state = transfer.state();
                assertThat(state).as("seed=%d", seed).isNotInstanceOf(State.UnderWay.class);
                // A late message takes 40 times as long.
                ticker.advance(Duration.ofSeconds(1));
                faulty.poll();
                boolean done = state instanceof State.Done;
                assertThat(two.takeNotifications()).as("seed=%d", seed).hasSize(done ? 1 : 0);
                if (done) {
                    assertThat(to.mismatch(from)).as("seed=%d", seed).isEqualTo(-1);
                } else {
                    causes.add(((State.Failed) state).cause());
                }
            }
        }
        assertThat(causes).containsExactlyInAnyOrder(Cause.TIMEOUT, Cause.TRANSPORT);
    }
}
