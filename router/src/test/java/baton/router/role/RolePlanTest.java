package baton.router.role;

import static org.assertj.core.api.Assertions.assertThat;

import baton.router.policy.LatencyGoals;
import baton.router.upstream.Instance.Role;
import java.time.Duration;
import java.util.Optional;
import java.util.Random;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class RolePlanTest {
    private static final LatencyGoals GOALS =
            new LatencyGoals(Optional.of(Duration.ofMillis(1000)), Optional.of(Duration.ofMillis(30)));

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            value = {
                // first tokens, late by prefill, late by decode, prefill ms, queued ms, gaps, long gaps, gap ms,
                // prefills, decodes
                "100 |  5 |  5 |  300 |    0 | 900 |  20 | 12 | 2 | 2 | stay    | the goals are kept",
                "100 | 40 |  0 | 1500 |    0 | 900 |  20 | 12 | 2 | 2 | prefill | one more prefill instance is wanted",
                "100 | 40 |  0 | 1500 |    0 | 900 |  20 | 12 | 3 | 1 | stay    | there is only one decode instance",
                "100 | 40 |  0 | 1500 |    0 | 900 |  20 | 18 | 2 | 2 | stay    | 36.0 ms are expected there, over the goal of 30.0 ms",
                "100 |  0 |  0 |  300 |    0 | 900 | 500 | 40 | 2 | 2 | decode  | one more decode instance is wanted",
                "100 |  0 | 60 |  300 |    0 | 900 |   0 | 12 | 2 | 2 | decode  | one more decode instance is wanted",
                "100 |  0 |  0 |  700 |    0 | 900 | 500 | 40 | 2 | 2 | stay    | 1400.0 ms are expected there, over the goal of 1000.0 ms",
                "100 |  0 |  0 |  300 |    0 | 900 | 500 | 40 | 1 | 3 | stay    | there is only one prefill instance",
                "100 | 40 |  0 | 1500 |    0 | 900 | 500 | 40 | 2 | 2 | stay    | no change of roles helps",
                "100 |  0 |  0 |  800 | 1100 | 900 |  20 | 12 | 2 | 2 | prefill | one more prefill instance is wanted",
                "100 |  0 |  0 |  800 | 1100 | 900 |  20 |  9 | 1 | 3 | prefill | one more prefill instance is wanted",
                "100 |  0 |  0 |  800 | 2100 | 900 |  20 |  9 | 1 | 3 | prefill | 2 more prefill instances are wanted",
                "100 |  0 |  0 |  800 | 9000 | 900 |  20 |  9 | 1 | 3 | prefill | 2 more prefill instances are wanted",
                "100 |  0 |  0 |  800 | 2100 | 900 |  20 | 12 | 1 | 3 | prefill | one more prefill instance is wanted",
                "100 |  0 |  0 |  800 | 9000 |   0 |   0 |  0 | 1 | 3 | prefill | 2 more prefill instances are wanted",
                "  2 |  2 |  0 | 1500 |    0 |   0 |   0 |  0 | 2 | 2 | stay    | too few streams",
            })
    void theHalfThatMissesItsGoalGetsAnInstanceThatTheOtherCanSpare(
            long first,
            long latePrefill,
            long lateDecode,
            double prefillMillis,
            double queuedMillis,
            long gaps,
            long longGaps,
            double gapMillis,
            int prefills,
            int decodes,
            String change,
            String reason) {
        StreamTimes times =
                new StreamTimes(first, latePrefill, lateDecode, prefillMillis, queuedMillis, gaps, longGaps, gapMillis);
        RolePlan.Decision decision = RolePlan.START.next(times, prefills, decodes, GOALS);
        if (!change.equals("stay")) {
            assertThat(decision.change()).isEmpty();
            assertThat(decision.reason()).endsWith("so in 1 of 2 windows");
            decision = decision.next().next(times, prefills, decodes, GOALS);
        }
        assertThat(decision.change().map(Role::label).orElse("stay")).isEqualTo(change);
        assertThat(decision.reason()).contains(reason);
    }

    @ParameterizedTest
    @CsvSource({
        // windows in which the goals are kept, long gaps of 900, windows until the change back
        "  0, 500, 6",
        " 29, 400, 5",
        " 29, 500, 2",
        "150, 400, 2",
    })
    void aChangeBackNeedsMoreWindowsUnlessTheLoadHasTurned(int kept, long longGaps, int until) {
        StreamTimes prompts = new StreamTimes(100, 40, 0, 1500, 0, 900, 20, 12);
        StreamTimes good = new StreamTimes(100, 0, 0, 300, 0, 900, 20, 12);
        StreamTimes answers = new StreamTimes(100, 0, 0, 300, 0, 900, longGaps, 40);
        RolePlan plan = RolePlan.START;
        StringBuilder changes = new StringBuilder();
        for (int window = 0; window < 2 + kept + until; window++) {
            RolePlan.Decision decision =
                    plan.next(window < 2 ? prompts : window < 2 + kept ? good : answers, 2, 2, GOALS);
            plan = decision.next();
            changes.append(decision.change().map(role -> role.label().charAt(0)).orElse('.'));
        }
        assertThat(changes).hasToString(".p" + ".".repeat(kept + until - 1) + "d");
    }

    /** A fleet of four with queues and batches as flows; times in seconds, one window after the other. */
    private static final class Fleet {
        private static final double WINDOW = 1;
        private static final double STEP = 0.1;

        private final Random random = new Random(44);
        private int prefills;
        private double queued;
        private double running;
        private final GoalCounts counts = new GoalCounts(GOALS);

        Fleet(int prefills) {
            this.prefills = prefills;
        }

        /**
         * @param prompt seconds that a prefill instance needs for one
         * @param tokens of an answer
         */
        void window(double requestsPerSecond, double prompt, int tokens) {
            int decodes = 4 - prefills;
            for (double at = 0; at < WINDOW; at += STEP) {
                double arriving = requestsPerSecond * STEP * (0.7 + 0.6 * random.nextDouble());
                queued += arriving;
                double prefilled = Math.min(queued, prefills * STEP / prompt);
                double leg = prompt * (1 + queued / prefills);
                queued -= prefilled;
                running += prefilled;
                double gap = 0.010 + 0.001 * running / decodes;
                running -= Math.min(running, running * STEP / (gap * tokens));
                double jitter = Math.exp(0.1 * random.nextGaussian());
                long legNanos = (long) (leg * jitter * 1e9);
                for (int i = 0; i < Math.round(prefilled); i++) {
                    counts.prefillEnded();
                    counts.firstToken(legNanos + (long) (gap * 1e9), legNanos);
                }
                for (int i = 0; i < Math.min(20, running); i++) {
                    counts.gap((long) (gap * Math.exp(0.1 * random.nextGaussian()) * 1e9));
                }
            }
        }
    }

    /** Mean goodput of five minutes. */
    private static double phase(Fleet fleet, double[] load, Optional<RolePlan[]> plan) {
        double sum = 0;
        int windows = 300;
        int judged = 0;
        for (int i = 0; i < windows; i++) {
            fleet.window(load[0], load[1], (int) load[2]);
            Optional<StreamTimes> times = fleet.counts.look((int) fleet.queued, Duration.ofSeconds(1));
            if (times.isEmpty()) {
                continue;
            }
            sum += (i + 1 - judged) * times.get().goodput();
            judged = i + 1;
            plan.ifPresent(each -> {
                RolePlan.Decision decision = each[0].next(times.get(), fleet.prefills, 4 - fleet.prefills, GOALS);
                each[0] = decision.next();
                decision.change()
                        .ifPresent(to -> fleet.prefills += to == Role.PREFILL ? decision.count() : -decision.count());
            });
        }
        return sum / judged;
    }

    @Test
    void goodputIsNearThatOfTheBestFixedSplitInEachPhaseOfALoad() {
        double[][] phases = {{10, 0.2, 20}, {5, 0.1, 300}, {10, 0.2, 20}, {5, 0.15, 150}};
        Fleet fleet = new Fleet(2);
        RolePlan[] plan = {RolePlan.START};
        for (double[] load : phases) {
            double best = 0;
            for (int prefills = 1; prefills < 4; prefills++) {
                best = Math.max(best, phase(new Fleet(prefills), load, Optional.empty()));
            }
            assertThat(best).isGreaterThan(0.9);
            assertThat(phase(fleet, load, Optional.of(plan))).isGreaterThan(0.95 * best);
        }
    }
}
