package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Instances.Instance;
import baton.cli.Instances.Prompts;
import baton.cli.Instances.Reply;
import baton.cli.PacedBackend.Pace;
import baton.cli.TimedStream.Gap;
import baton.testkit.Await;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Collectors;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.MethodOrderer;
import org.junit.jupiter.api.Order;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestMethodOrder;
import org.junit.jupiter.api.extension.RegisterExtension;
import tools.jackson.databind.JsonNode;

/**
 * Instances that change their role under load, and one that leaves its prefix cache to the others. {@code -Dtests.roles_seconds} is how long roles change.
 */
@Tag("thorough")
@TestMethodOrder(MethodOrderer.OrderAnnotation.class)
class RolesTest {
    private static final String KEY = "an-admin-key";
    private static final int TOKENS = 8;
    private static final int PROMPT = 320;
    private static final Pace PACE = new Pace(5, 0.05, 0.5);

    /** The least time of changes of roles. */
    private static final long SECONDS = Long.getLong("tests.roles_seconds", 6);

    private static final long SECONDS_BETWEEN = Math.min(10, SECONDS / 6);

    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    /** The instances of all tests; each test has a router of its own. */
    private static final List<Instance> FLEET = new ArrayList<>();

    @BeforeAll
    static void start() throws IOException {
        for (int i = 0; i < 4; i++) {
            FLEET.add(INSTANCES.serveBlocks("instance" + i, "NixlConnector", "kv_both", PACE.options()));
        }
    }

    private static Instance router(String name, String policy, List<Instance> prefills, List<Instance> decodes)
            throws Exception {
        return INSTANCES.route(
                name, prefills, decodes, "--flow", "kv_transfer_params", "--policy", policy, "--admin-key", KEY);
    }

    /** Prompts that have no beginning in common. */
    private static List<int[]> prompts(int count, long seed) {
        Random random = new Random(seed);
        List<int[]> prompts = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            prompts.add(random.ints(PROMPT, 5, 250).toArray());
        }
        return prompts;
    }

    private static Reply admin(Instance router, String action, String role, Instance instance) throws Exception {
        return router.post(
                "/v1/instances/" + action,
                "{\"role\": \"%s\", \"url\": \"%s\"}".formatted(role, instance.url()),
                "Authorization",
                "Bearer " + KEY);
    }

    private static JsonNode known(Instance router, Instance instance) throws Exception {
        String url = instance.url().toString();
        return router.get("/v1/instances")
                .json()
                .get("instances")
                .valueStream()
                .filter(each -> each.get("url").asString().equals(url))
                .findFirst()
                .orElseThrow();
    }

    /** The share of the prompts' tokens that prefill instances had in their prefix caches. */
    private static double hitRate(Instance router, List<Instance> prefills, List<int[]> prompts) throws Exception {
        List<Prompts> before = new ArrayList<>();
        for (Instance prefill : prefills) {
            before.add(prefill.prompts());
        }
        for (int[] prompt : prompts) {
            assertThat(router.complete(prompt, 2).status()).isEqualTo(200);
        }
        int cached = 0;
        int all = 0;
        for (int i = 0; i < prefills.size(); i++) {
            Prompts since = prefills.get(i).prompts().since(before.get(i));
            cached += since.cached();
            all += since.cached() + since.computed() + since.transferred();
        }
        return (double) cached / all;
    }

    /** The first, as prompts of other tests would be hotter than its own. */
    @Order(1)
    @Test
    void theCacheOfAnInstanceThatLeavesStays() throws Exception {
        List<Instance> prefills = FLEET.subList(0, 3);
        Instance router = router("leaving-router", "prefix", prefills, FLEET.subList(3, 4));
        List<int[]> lost = prompts(15, 1);
        List<int[]> kept = prompts(15, 2);
        hitRate(router, prefills, lost);
        hitRate(router, prefills, kept);
        double before = hitRate(router, prefills, kept);
        Instance leaving = prefills.getFirst();
        List<Instance> staying = prefills.subList(1, 3);
        assertThat(admin(router, "drain", "prefill", leaving).body()).contains("\"changed\":true");
        double without = hitRate(router, staying, lost);
        assertThat(Baton.run(
                        "drain",
                        "--router",
                        router.url().toString(),
                        "--url",
                        leaving.url().toString(),
                        "--admin-key",
                        KEY))
                .isZero();
        JsonNode handover = known(router, leaving).get("kept_cache");
        double with = hitRate(router, staying, kept);
        System.out.printf(
                "hit rate of 15 prompts: %.3f of three instances, %.3f of two, %.3f of two that took over %s%n",
                before, without, with, handover);
        assertThat(handover.get("done").asBoolean()).isTrue();
        assertThat(handover.get("failed").asInt()).isZero();
        assertThat(handover.get("loaded").asInt()).isPositive();
        assertThat(with).isGreaterThan(before - 0.05);
        assertThat(without).isLessThan(before - 0.2);
    }

    @Test
    void rolesChangeUnderLoadWithoutAWrongAnswer() throws Exception {
        Instance router = router("switching-router", "round_robin", FLEET.subList(0, 2), FLEET.subList(2, 4));
        List<Change> changes = new ArrayList<>();
        try (Load load = new Load(router, FLEET.getFirst())) {
            // Caches are cold at first, and the JIT compilers take more time than the instances.
            changeRoles(router, load, changes);
            List<Gap> _ = load.takeGaps();
            long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(SECONDS);
            do {
                changeRoles(router, load, changes);
            } while (System.nanoTime() < end);
            Map<String, List<Gap>> gaps = load.takeGaps().stream()
                    .collect(Collectors.groupingBy(gap -> phase(gap, changes), TreeMap::new, Collectors.toList()));
            System.out.printf(
                    "%s; %d requests at %d a second, %d changes of roles; time between tokens: %s%n",
                    PACE,
                    load.asked(),
                    Load.RATE,
                    changes.size(),
                    gaps.entrySet().stream()
                            .map(each -> each.getKey() + ": " + words(each.getValue()))
                            .collect(Collectors.joining("; ")));
        }
        assertThat(router.metric("baton:router_role_changes_total", "proven")).isEqualTo(changes.size());
        // Streams of a former decode instance go to another one.
        assertThat(router.metric("baton:router_retries_total", "prefill")).isZero();
        assertThat(router.metric("baton:router_streams_continued_total", "failed"))
                .isZero();
    }

    /** All gaps between tokens miss their goal and no first token does, so the controller wants one more decode instance. */
    @Test
    void theControllerChangesARoleUnderLoad() throws Exception {
        Instance router = INSTANCES.route(
                "controlling-router",
                FLEET.subList(0, 2),
                FLEET.subList(2, 4),
                "--flow",
                "kv_transfer_params",
                "--role-controller",
                "on",
                "--ttft-goal",
                "60000",
                "--itl-goal",
                "0.001");
        try (Load load = new Load(router, FLEET.getFirst())) {
            Await.until(Instances.DEADLINE, () -> "no role has changed", () -> {
                load.check();
                return router.metric("baton:router_role_changes_total", "proven") == 1;
            });
        }
        JsonNode instances = router.get("/v1/instances").json();
        assertThat(instances
                        .get("instances")
                        .valueStream()
                        .map(each -> each.get("role").asString()))
                .containsExactlyInAnyOrder("prefill", "decode", "decode", "decode");
        assertThat(router.metric("baton:router_role_decisions_total", "\"decode\""))
                .isEqualTo(1);
    }

    private static String words(List<Gap> gaps) {
        double[] sorted = gaps.stream().mapToDouble(Gap::millis).sorted().toArray();
        return sorted.length == 0
                ? "none"
                : "median %.1f ms, p99 %.1f ms (%d)"
                        .formatted(
                                sorted[sorted.length / 2], sorted[(int) (0.99 * (sorted.length - 1))], sorted.length);
    }

    /** Streams at a fixed rate, each of which must have its right tokens. */
    private static final class Load implements AutoCloseable {
        /** Requests a second, as long as there are not too many under way. */
        static final int RATE = 20;

        private static final int MOST_UNDER_WAY = 40;

        private final Instance router;
        private final List<int[]> prompts = prompts(12, 3);
        private final List<int[]> expected = new ArrayList<>();
        private final ExecutorService threads = Executors.newVirtualThreadPerTaskExecutor();
        private final Queue<Future<?>> asked = new ConcurrentLinkedQueue<>();
        private final Future<?> asking;
        private volatile Queue<Gap> gaps = new ConcurrentLinkedQueue<>();
        private final Semaphore underWay = new Semaphore(MOST_UNDER_WAY);
        private volatile boolean over;

        Load(Instance router, Instance alone) throws Exception {
            this.router = router;
            for (int[] prompt : prompts) {
                expected.add(alone.complete(prompt, TOKENS).tokenIds());
            }
            asking = threads.submit(() -> {
                long next = System.nanoTime();
                for (int i = 0; !over; i++) {
                    int at = i % prompts.size();
                    underWay.acquireUninterruptibly();
                    asked.add(threads.submit(() -> {
                        try {
                            assertThat(ask(prompts.get(at))).isEqualTo(expected.get(at));
                        } finally {
                            underWay.release();
                        }
                        return null;
                    }));
                    next += TimeUnit.SECONDS.toNanos(1) / RATE;
                    LockSupport.parkNanos(next - System.nanoTime());
                }
            });
        }

        private int[] ask(int[] prompt) throws Exception {
            TimedStream stream = TimedStream.of(router, Instances.greedy(prompt, TOKENS));
            gaps.addAll(stream.gaps());
            return stream.tokens();
        }

        /** Fails if a request has failed. */
        void check() throws Exception {
            for (Future<?> each : asked) {
                if (each.isDone()) {
                    each.get();
                }
            }
        }

        void goOnFor(long seconds) throws Exception {
            LockSupport.parkNanos(TimeUnit.SECONDS.toNanos(seconds));
            check();
        }

        int asked() {
            return asked.size();
        }

        List<Gap> takeGaps() {
            Queue<Gap> taken = gaps;
            gaps = new ConcurrentLinkedQueue<>();
            return List.copyOf(taken);
        }

        @Override
        public void close() throws Exception {
            over = true;
            asking.get(Instances.DEADLINE.toSeconds(), TimeUnit.SECONDS);
            for (Future<?> each : asked) {
                each.get(Instances.DEADLINE.toSeconds(), TimeUnit.SECONDS);
            }
            threads.close();
        }
    }

    /** @param fleet that there is after it, such as {@code 1P3D} */
    private record Change(long at, String fleet) {}

    /** The fleet of which a gap is, and whether a role had changed within a second before. */
    private static String phase(Gap gap, List<Change> changes) {
        return changes.reversed().stream()
                .filter(change -> gap.at() - change.at >= 0)
                .findFirst()
                .map(change -> change.fleet
                        + (gap.at() - change.at < TimeUnit.SECONDS.toNanos(1)
                                ? " within a second of a change"
                                : " later"))
                .orElseThrow();
    }

    private static void changeRoles(Instance router, Load load, List<Change> changes) throws Exception {
        changes.add(change(router, FLEET.get(1), "decode", "1P3D", load));
        load.goOnFor(SECONDS_BETWEEN);
        changes.add(change(router, FLEET.get(1), "prefill", "2P2D", load));
        load.goOnFor(SECONDS_BETWEEN);
        changes.add(change(router, FLEET.get(2), "prefill", "3P1D", load));
        load.goOnFor(SECONDS_BETWEEN);
        changes.add(change(router, FLEET.get(2), "decode", "2P2D", load));
        load.goOnFor(SECONDS_BETWEEN);
    }

    private static Change change(Instance router, Instance instance, String role, String fleet, Load load)
            throws Exception {
        long began = System.nanoTime();
        assertThat(admin(router, "role", role, instance).body()).contains("\"changed\":true");
        Await.until(Instances.DEADLINE, () -> instance + " does no work as " + role, () -> {
            load.check();
            JsonNode known = known(router, instance);
            return known.get("role").asString().equals(role)
                    && known.at("/role_change/state").asString("").equals("proven");
        });
        JsonNode told = instance.get("/v1/pd_role").json();
        assertThat(told.get("role").asString()).isEqualTo(role);
        assertThat(told.at("/" + role + "/requests").asInt()).isPositive();
        return new Change(began, fleet);
    }
}
