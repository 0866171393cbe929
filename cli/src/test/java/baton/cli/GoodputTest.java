package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Instances.Instance;
import baton.cli.PacedBackend.Pace;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Locale;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/**
 * A load that turns from prompts to answers and back, on four instances with the pace of a device each: the share of requests that keep both goals, with the
 * role controller and with roles that stay. {@code -Dtests.goodput_seconds} is the length of a phase; without it roles that stay are left out. With {@code
 * -Dtests.goodput_course=true} requests are counted for each five seconds.
 */
@Tag("thorough")
class GoodputTest {
    private static final Pace PACE = new Pace(20, 1, 6);
    private static final double TTFT_GOAL = 2000;
    private static final double ITL_GOAL = 120;

    private static final int SECONDS = Integer.getInteger("tests.goodput_seconds", 0);
    private static final int SHORT = 8;
    /** Seconds until the split is the best one, on a machine that has other work too. */
    private static final int LONGER = 20;

    private static final int MOST_UNDER_WAY = 64;
    private static final String CONTROLLER = "role controller";

    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    private static final List<Instance> FLEET = new ArrayList<>();

    /**
     * Requests that come at random times.
     *
     * @param split the best one, such as {@code 3P1D}
     */
    private record Phase(String name, String split, double perSecond, int prompt, int answer) {
        private static final Phase PROMPTS = new Phase("prompts", "3P1D", 5, 400, 8);
        private static final Phase ANSWERS = new Phase("answers", "1P3D", 6, 40, 50);

        @Override
        public String toString() {
            return "%s (%.0f requests a second, prompts of %d tokens, answers of %d)"
                    .formatted(name, perSecond, prompt, answer);
        }
    }

    @BeforeAll
    static void start() throws Exception {
        for (int i = 0; i < 4; i++) {
            List<String> options = new ArrayList<>(List.of(PACE.options()));
            // One prompt follows the other, else each would wait for several to be computed at once.
            options.addAll(List.of("--max-num-batched-tokens", "512"));
            FLEET.add(INSTANCES.serveBlocks("paced" + i, "NixlConnector", "kv_both", options.toArray(String[]::new)));
        }
    }

    @Test
    void theControllerKeepsTheGoalsOfALoadThatTurns() throws Exception {
        System.out.printf(
                "Each instance: %s; goals: %.0f ms to the first token, %.0f ms between tokens%n",
                PACE, TTFT_GOAL, ITL_GOAL);
        // The JIT compilers take more time than the instances at first.
        Instance warmUp = route("warm-up", 2, false);
        run(warmUp, Phase.PROMPTS, "warm-up", SHORT);
        run(warmUp, Phase.ANSWERS, "warm-up", SHORT);
        Instance router = route("controlled", 2, true);
        for (Phase phase : List.of(Phase.PROMPTS, Phase.ANSWERS, Phase.PROMPTS)) {
            run(router, phase, CONTROLLER, Math.max(SECONDS, SHORT));
        }
        assertThat(router.metric("baton:router_role_changes_total", "rolled_back"))
                .isZero();
        assertThat(router.metric("baton:router_local_prefills_total", "")).isZero();
        if (SECONDS > 0) {
            assertThat(router.metric("baton:router_streams_continued_total", "balance"))
                    .as("streams that a new decode instance took")
                    .isPositive();
        }
        assertThat(router.metric("baton:router_streams_continued_total", "failed"))
                .isZero();
        if (SECONDS > 0) {
            for (int prefills = 1; prefills < 4; prefills++) {
                Instance fixed = route("fixed-" + prefills, prefills, false);
                run(fixed, Phase.PROMPTS, split(fixed), Math.min(SECONDS, 45));
                run(fixed, Phase.ANSWERS, split(fixed), Math.min(SECONDS, 45));
            }
        }
    }

    private static Instance route(String name, int prefills, boolean controlled) throws Exception {
        List<String> options = new ArrayList<>(List.of("--flow", "auto", "--policy", "least_loaded"));
        if (controlled) {
            options.addAll(List.of(
                    "--role-controller",
                    "on",
                    "--ttft-goal",
                    Double.toString(TTFT_GOAL),
                    "--itl-goal",
                    Double.toString(ITL_GOAL)));
        }
        return INSTANCES.route(
                name, FLEET.subList(0, prefills), FLEET.subList(prefills, 4), options.toArray(String[]::new));
    }

    /** The roles that a router's instances have, such as {@code 2P2D}. */
    private static String split(Instance router) throws Exception {
        long prefills = router.get("/v1/instances")
                .json()
                .get("instances")
                .valueStream()
                .filter(each -> each.get("role").asString().equals("prefill"))
                .count();
        return "%dP%dD".formatted(prefills, FLEET.size() - prefills);
    }

    /** Prints the goodput of a phase; one with the controller lasts until the split is the best one, if that is soon. */
    private static void run(Instance router, Phase phase, String name, int seconds) throws Exception {
        boolean controlled = name.equals(CONTROLLER);
        Random random = new Random(phase.name.hashCode());
        int[] prompt = random.ints(phase.prompt, 5, 250).toArray();
        int[] expected = FLEET.getFirst()
                .post(
                        "/v1/completions",
                        Instances.greedy(prompt, phase.answer)
                                .put("ignore_eos", true)
                                .toString())
                .tokenIds();
        List<TimedStream> streams = Collections.synchronizedList(new ArrayList<>());
        Semaphore underWay = new Semaphore(MOST_UNDER_WAY);
        int arrived = 0;
        StringBuilder splits = new StringBuilder(split(router));
        long start = System.nanoTime();
        try (ExecutorService threads = Executors.newVirtualThreadPerTaskExecutor()) {
            List<Future<?>> asked = new ArrayList<>();
            long next = start;
            while (next - start < TimeUnit.SECONDS.toNanos(seconds)
                    || controlled
                            && !splits.toString().endsWith(phase.split)
                            && next - start < TimeUnit.SECONDS.toNanos(seconds + LONGER)) {
                next += (long) (-Math.log(1 - random.nextDouble()) * 1e9 / phase.perSecond);
                LockSupport.parkNanos(next - System.nanoTime());
                // Requests that find too many under way miss the goals.
                if (underWay.tryAcquire()) {
                    String salt = name + phase + arrived + start;
                    asked.add(threads.submit(() -> {
                        TimedStream stream = TimedStream.of(
                                router,
                                Instances.greedy(prompt, phase.answer)
                                        .put("ignore_eos", true)
                                        .put("cache_salt", salt));
                        underWay.release();
                        assertThat(stream.tokens()).isEqualTo(expected);
                        return streams.add(stream);
                    }));
                }
                arrived++;
                String now = split(router);
                if (!splits.toString().endsWith(now)) {
                    splits.append(" %.1f s ".formatted((System.nanoTime() - start) / 1e9))
                            .append(now);
                }
            }
            for (Future<?> each : asked) {
                each.get(2 * Instances.DEADLINE.toSeconds(), TimeUnit.SECONDS);
            }
        }
        long kept = streams.stream().filter(GoodputTest::keepsTheGoals).count();
        System.out.printf(
                Locale.ROOT,
                "%s, %s: goodput %.3f of %d requests (%d not sent); first token %s; between tokens %s; %s%n",
                phase,
                name,
                (double) kept / arrived,
                arrived,
                arrived - streams.size(),
                words(streams.stream().map(TimedStream::firstTokenMillis).toList()),
                words(streams.stream().map(TimedStream::gapMillis).toList()),
                splits);
        if (Boolean.getBoolean("tests.goodput_course")) {
            TreeMap<Long, int[]> course = new TreeMap<>();
            for (TimedStream stream : streams) {
                int[] counts = course.computeIfAbsent((stream.sent() - start) / 5_000_000_000L, _ -> new int[2]);
                counts[keepsTheGoals(stream) ? 0 : 1]++;
            }
            course.forEach(
                    (at, counts) -> System.out.printf("  %d s: %d kept, %d missed%n", 5 * at, counts[0], counts[1]));
        }
        // Where the machine has other work its load is another one.
        if (controlled && SECONDS > 0) {
            assertThat(splits.toString()).endsWith(phase.split);
        }
    }

    private static boolean keepsTheGoals(TimedStream stream) {
        return stream.firstTokenMillis() <= TTFT_GOAL && stream.gapMillis() <= ITL_GOAL;
    }

    private static String words(List<Double> millis) {
        List<Double> sorted = millis.stream().sorted().toList();
        return sorted.isEmpty()
                ? "none"
                : String.format(
                        Locale.ROOT,
                        "median %.0f ms, 95 %% %.0f ms",
                        sorted.get(sorted.size() / 2),
                        sorted.get(sorted.size() * 95 / 100));
    }
}
