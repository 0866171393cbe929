package baton.engine.sim;

import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.connector.KvConnector;
import java.time.Duration;
import java.util.Map;
import java.util.TreeMap;
import org.junit.jupiter.api.Test;

/** Worlds from seeds. A failure says which seed replays it. */
class SimulationTest {
    private static final int WORLDS = Integer.getInteger("tests.worlds", 1000);

    /** What a world of that seed exchanges its caches by. */
    private static SimNode.SimConnectors wiring(SimCluster.Site site, long seed) {
        int kind = Math.floorMod(seed, 11);
        if (kind == 10) {
            return new PyNcclSimConnectors(site);
        }
        if (kind >= 8) {
            return new P2pSimConnectors(site);
        }
        if (kind >= 4) {
            return new NixlSimConnectors(site, kind == 7);
        }
        if (kind < 2) {
            return new StorageSimConnectors(site);
        }
        return new SimNode.SimConnectors() {
            @Override
            public KvConnector connect(SimNode place) {
                return new PullConnector(place);
            }

            @Override
            public Duration longestTransfer() {
                return Duration.ofSeconds(2);
            }
        };
    }

    private static Map<String, Long> live(long seed) {
        try (SimCluster world = new SimCluster(seed, SimulationTest::wiring)) {
            return world.run();
        } catch (RuntimeException | AssertionError e) {
            throw new AssertionError(
                    "world %d: %s; to replay: mvn -pl engine -am test -Dtest='SimulationTest' -Dsurefire.failIfNoSpecifiedTests=false -Dtests.worlds=1 -Dtests.seed=%d"
                            .formatted(seed, e.getMessage(), seed),
                    e);
        }
    }

    @Test
    void everyWorldEndsRight() {
        long seed = Long.getLong("tests.seed", System.nanoTime());
        Map<String, Long> happened = new TreeMap<>();
        for (int i = 0; i < WORLDS; i++) {
            live(seed + i).forEach((what, times) -> happened.merge(what, times, Long::sum));
        }
        long faults = happened.entrySet().stream()
                .filter(each -> each.getKey().startsWith(SimCluster.FAULT))
                .mapToLong(Map.Entry::getValue)
                .sum();
        System.out.println(
                "tests.seed=" + seed + ", worlds=" + WORLDS + ", injected faults=" + faults + ": " + happened);
        if (WORLDS >= 1000) {
            // The worlds are worth living: all that can happen does.
            assertThat(happened)
                    .containsKeys(
                            "answers",
                            "baton:kv_load_failed_requests",
                            "baton:kv_recomputed_tokens",
                            "both legs at once",
                            "errors",
                            "external hits",
                            "failed",
                            "handed over after a broken connection",
                            "left",
                            "preemptions",
                            "prefix cache hits",
                            "fault: buffer full",
                            "fault: client leaves",
                            "fault: connection breaks",
                            "fault: connector fails",
                            "fault: connection ends",
                            "fault: entry lost",
                            "fault: entry damaged",
                            "fault: file operation fails",
                            "fault: file work hangs",
                            "fault: file work late",
                            "fault: handshake fails",
                            "fault: handshake late",
                            "fault: id changed",
                            "fault: instance dies",
                            "fault: late",
                            "fault: message corrupt",
                            "fault: message duplicated",
                            "fault: message lost",
                            "fault: model fails",
                            "fault: peer connects late",
                            "fault: read corrupt",
                            "fault: read failed",
                            "fault: read hangs",
                            "fault: reference changed");
            assertThat(faults).isGreaterThan(5L * WORLDS);
        }
    }

    @Test
    void theSameSeedLivesTheSameWorld() {
        long seed = Long.getLong("tests.seed", System.nanoTime());
        for (int i = 0; i < 20; i++) {
            assertThat(trace(seed + i)).as("seed %d", seed + i).isEqualTo(trace(seed + i));
        }
    }

    private static long trace(long seed) {
        try (SimCluster world = new SimCluster(seed, SimulationTest::wiring)) {
            world.run();
            return world.trace();
        }
    }
}
