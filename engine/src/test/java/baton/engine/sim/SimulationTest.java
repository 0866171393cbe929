package baton.engine.sim;

import static org.assertj.core.api.Assertions.assertThat;

import java.util.Map;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.stream.LongStream;
import org.junit.jupiter.api.Test;

/** Worlds from seeds. A failure says which seed replays it. */
class SimulationTest {
    private static final int WORLDS = Integer.getInteger("tests.worlds", 36);

    /** The connectors of a world of that seed. */
    private static SimNode.SimConnectors connectors(SimCluster.Site site, long seed) {
        return switch (Math.floorMod(seed, 18)) {
            case 0, 1 -> new StorageSimConnectors(site);
            case 7 -> new NixlSimConnectors(site, true);
            case 8, 9 -> new P2pSimConnectors(site);
            case 10 -> new PyNcclSimConnectors(site);
            case 11 -> new OffloadingSimConnectors(site, OffloadingSimConnectors.Kind.OFFLOADING);
            case 12 -> new OffloadingSimConnectors(site, OffloadingSimConnectors.Kind.LMCACHE);
            case 17 -> new OffloadingSimConnectors(site, OffloadingSimConnectors.Kind.MOONCAKE);
            case 13, 14 -> new MultiSimConnectors(site);
            case 15, 16 -> new MooncakeSimConnectors(site);
            default -> new NixlSimConnectors(site, false);
        };
    }

    private static Map<String, Long> live(long seed) {
        try (SimCluster world = new SimCluster(seed, SimulationTest::connectors)) {
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
        Map<String, Long> happened = new ConcurrentSkipListMap<>();
        LongStream.range(seed, seed + WORLDS)
                .parallel()
                .forEach(each -> live(each).forEach((what, times) -> happened.merge(what, times, Long::sum)));
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
                            "answers of a format",
                            "baton:kv_load_failed_requests",
                            "baton:kv_recomputed_tokens",
                            "both legs at once",
                            "errors",
                            "external hits",
                            "external hits of layers with windows",
                            "failed",
                            "handed over after a broken connection",
                            "left",
                            "drains",
                            "preemptions",
                            "prefix cache hits",
                            "prompts split",
                            "role changes",
                            "streams moved",
                            "fault: answer lost",
                            "fault: buffer full",
                            "fault: client leaves",
                            "fault: connection breaks",
                            "fault: copy late",
                            "lives with a device's pool",
                            "lives with layers that have windows",
                            "lives with a pool that is reached directly",
                            "lives with a staging pool and layers that have windows",
                            "fault: connector fails",
                            "fault: connector in a connector fails",
                            "fault: connection ends",
                            "fault: entry lost",
                            "fault: entry damaged",
                            "fault: file operation fails",
                            "fault: file work hangs",
                            "fault: file work late",
                            "fault: digest too early",
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
                            "fault: nothing digested",
                            "fault: read corrupt",
                            "fault: read failed",
                            "fault: read hangs",
                            "fault: reference changed",
                            "fault: store fails",
                            "fault: store hangs",
                            "fault: store late",
                            "fault: store rejects",
                            "fault: value lost");
            assertThat(faults).isGreaterThan(5L * WORLDS);
        }
    }

    @Test
    void theSameSeedLivesTheSameWorld() {
        long seed = Long.getLong("tests.seed", System.nanoTime());
        for (int i = 0; i < 10; i++) {
            assertThat(trace(seed + i)).as("seed %d", seed + i).isEqualTo(trace(seed + i));
        }
    }

    private static long trace(long seed) {
        try (SimCluster world = new SimCluster(seed, SimulationTest::connectors)) {
            world.run();
            return world.trace();
        }
    }
}
