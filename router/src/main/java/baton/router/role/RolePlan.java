package baton.router.role;

import baton.router.policy.LatencyGoals;
import baton.router.upstream.Instance;
import java.time.Duration;
import java.util.Locale;
import java.util.Optional;

/**
 * The role controller's state from one window of time to the next, and its decision. An instance changes its role where one half misses its
 * goal, the other half keeps its own and is expected to do so with an instance less. Against oscillation that has to be so in several
 * windows, more of them for the opposite of the last change, and a change is followed by a rest.
 *
 * @param wanted the role that an instance should have taken in the last windows
 * @param streak how many windows it was that one
 * @param rest windows without decisions that are left
 * @param last the role of the last change; empty some time after it
 * @param since windows since that change
 */
record RolePlan(Optional<Instance.Role> wanted, int streak, int rest, Optional<Instance.Role> last, int since) {
    static final RolePlan START = new RolePlan(Optional.empty(), 0, 0, Optional.empty(), 0);

    /** Windows in which a change must be wanted. */
    static final int WINDOWS = 2;
    /** The same for the opposite of the last change, unless that is old and most is missed: then the load has turned. */
    static final int WINDOWS_BACK = 5;
    /** Windows after which a change is old. */
    static final int OLD = 30;
    /** Windows after a change in which its effect is awaited. */
    static final int REST = 1;
    /** Windows after which the last change counts no more. */
    static final int MEMORY = 150;
    /** The share of first tokens or gaps over their goal that is tolerated. */
    static final double TOLERATED = 0.1;
    /** The share that is most of them. */
    static final double MOST = 0.5;

    private static final int FEWEST = 5;

    /**
     * The result of a window.
     *
     * @param change the role that instances are to take; empty if all stay as they are
     * @param count of these instances
     * @param reason in words
     */
    record Decision(RolePlan next, Optional<Instance.Role> change, int count, String reason) {
        private static Decision stay(RolePlan next, String reason) {
            return new Decision(next, Optional.empty(), 0, reason);
        }
    }

    /**
     * Takes the next window.
     *
     * @param prefills instances that take requests
     * @param decodes instances that take requests
     * @param goals both are set
     */
    Decision next(StreamTimes times, int prefills, int decodes, LatencyGoals goals) {
        Optional<Instance.Role> remembered = since < MEMORY ? last : Optional.empty();
        if (rest > 0) {
            return Decision.stay(
                    new RolePlan(Optional.empty(), 0, rest - 1, remembered, since + 1),
                    "the effect of the last change is awaited");
        }
        if (times.firstTokens() < FEWEST && times.gaps() < FEWEST) {
            return Decision.stay(new RolePlan(wanted, streak, 0, remembered, since + 1), "too few streams to judge");
        }
        Want want = want(times, prefills, decodes, goals);
        if (want.role.isEmpty()) {
            return Decision.stay(new RolePlan(Optional.empty(), 0, 0, remembered, since + 1), want.reason);
        }
        int same = want.role.equals(wanted) ? streak + 1 : 1;
        boolean isBack = remembered.isPresent() && !remembered.equals(want.role);
        boolean hasTurned = since >= OLD && Math.max(missedByPrefill(times, goals), times.missedByDecode()) > MOST;
        int needed = isBack && !hasTurned ? WINDOWS_BACK : WINDOWS;
        if (same < needed) {
            return Decision.stay(
                    new RolePlan(want.role, same, 0, remembered, since + 1),
                    want.reason + "; so in " + same + " of " + needed + " windows");
        }
        return new Decision(new RolePlan(Optional.empty(), 0, REST, want.role, 0), want.role, want.count, want.reason);
    }

    private record Want(Optional<Instance.Role> role, int count, String reason) {
        private static Want none(String reason) {
            return new Want(Optional.empty(), 0, reason);
        }
    }

    /** Where the prompts under way take longer than the goal, all that follow will be late, before the first one is. */
    private static double missedByPrefill(StreamTimes times, LatencyGoals goals) {
        return times.queuedMillis() > millis(goals.ttft()) ? 1 : times.missedByPrefill();
    }

    private static Want want(StreamTimes times, int prefills, int decodes, LatencyGoals goals) {
        double prefill = missedByPrefill(times, goals);
        double decode = times.missedByDecode();
        String facts = String.format(
                Locale.ROOT,
                "prefill makes %.0f %% of first tokens late, decode misses %.0f %%; prefill legs take %.1f ms, the next one about %.1f ms, gaps %.1f ms",
                100 * times.missedByPrefill(),
                100 * decode,
                times.prefillMillis(),
                times.queuedMillis(),
                times.gapMillis());
        if (prefill <= TOLERATED && decode <= TOLERATED) {
            return Want.none(facts + ": the goals are kept");
        }
        if (prefill > TOLERATED && decode > TOLERATED) {
            return Want.none(facts + ": both halves miss their goals, no change of roles helps");
        }
        Instance.Role to = prefill > TOLERATED ? Instance.Role.PREFILL : Instance.Role.DECODE;
        int givers = to == Instance.Role.PREFILL ? decodes : prefills;
        if (givers < 2) {
            return Want.none(facts + ": there is only one " + to.other().label() + " instance");
        }
        double time = to == Instance.Role.PREFILL ? times.gapMillis() : times.prefillMillis();
        double goal = millis(to == Instance.Role.PREFILL ? goals.itl() : goals.ttft());
        double expected = time * givers / (givers - 1);
        if (expected > goal) {
            return Want.none(String.format(
                    Locale.ROOT,
                    "%s: with a %s instance less, %.1f ms are expected there, over the goal of %.1f ms",
                    facts,
                    to.other().label(),
                    expected,
                    goal));
        }
        int wanted = to == Instance.Role.PREFILL ? wantedByQueue(times, prefills, goals) : 1;
        int spare = Math.clamp((int) (givers * (1 - time / goal)), 1, givers - 1);
        int count = Math.min(wanted, spare);
        return new Want(
                Optional.of(to),
                count,
                "%s: %s more %s %s"
                        .formatted(
                                facts,
                                count == 1 ? "one" : count,
                                to.label(),
                                count == 1 ? "instance is wanted" : "instances are wanted"));
    }

    /** The instances with which the prompts under way would take no longer than the goal. */
    private static int wantedByQueue(StreamTimes times, int prefills, LatencyGoals goals) {
        return Math.max(1, (int) Math.ceil(prefills * (times.queuedMillis() / millis(goals.ttft()) - 1)));
    }

    private static double millis(Optional<Duration> goal) {
        return goal.map(value -> value.toNanos() / 1e6).orElse(Double.MAX_VALUE);
    }
}
