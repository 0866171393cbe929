package baton.router.role;

import baton.router.policy.LatencyGoals;
import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.atomic.LongAdder;

/** Counts how the times of streams keep their goals. Any thread. */
public final class GoalCounts {
    /** First tokens, and gaps, that suffice to judge. */
    private static final int ENOUGH = 5;
    /** Prefill legs of which the end tells how long a queue takes: an instance that computes long prompts ends few in a window. */
    private static final int FEWEST_ENDED = 2;
    /** The number of looks after which counts are judged, however few there are. */
    private static final int MOST_LOOKS = 5;

    private final long ttft;
    private final long itl;
    private final LongAdder firstTokens = new LongAdder();
    private final LongAdder latePrefill = new LongAdder();
    private final LongAdder lateDecode = new LongAdder();
    private final LongAdder prefillNanos = new LongAdder();
    private final LongAdder prefillsEnded = new LongAdder();
    private final LongAdder gaps = new LongAdder();
    private final LongAdder longGaps = new LongAdder();
    private final LongAdder gapNanos = new LongAdder();
    private int looks;

    /** A goal that is not set is always kept. */
    public GoalCounts(LatencyGoals goals) {
        ttft = nanos(goals.ttft());
        itl = nanos(goals.itl());
    }

    private static long nanos(Optional<Duration> goal) {
        return goal.map(Duration::toNanos).orElse(Long.MAX_VALUE);
    }

    /**
     * A stream has its first token. If that is late, the half that took more of the time is at fault.
     *
     * @param nanos since the request came
     * @param prefill of these in the prefill leg; 0 without one
     */
    public void firstToken(long nanos, long prefill) {
        firstTokens.increment();
        prefillNanos.add(prefill);
        if (nanos > ttft) {
            (prefill > nanos - prefill ? latePrefill : lateDecode).increment();
        }
    }

    /** A prefill leg has ended. */
    public void prefillEnded() {
        prefillsEnded.increment();
    }

    /** @param nanos between two events of a stream */
    public void gap(long nanos) {
        gaps.increment();
        gapNanos.add(nanos);
        if (nanos > itl) {
            longGaps.increment();
        }
    }

    /**
     * All counts since they were last returned, or nothing if they are too few to judge. For one thread, at the end of each window.
     *
     * @param prefills legs under way
     */
    Optional<StreamTimes> look(int prefills, Duration window) {
        boolean isQueue = prefills >= ENOUGH && prefillsEnded.sum() >= FEWEST_ENDED;
        boolean suffice = (isQueue || firstTokens.sum() >= ENOUGH) && gaps.sum() >= ENOUGH;
        if (++looks < MOST_LOOKS && !suffice) {
            return Optional.empty();
        }
        double millis = looks * window.toNanos() / 1e6;
        looks = 0;
        long ended = prefillsEnded.sumThenReset();
        long first = firstTokens.sumThenReset();
        long between = gaps.sumThenReset();
        return Optional.of(new StreamTimes(
                first,
                latePrefill.sumThenReset(),
                lateDecode.sumThenReset(),
                first == 0 ? 0 : prefillNanos.sumThenReset() / 1e6 / first,
                ended < FEWEST_ENDED ? 0 : prefills * millis / ended,
                between,
                longGaps.sumThenReset(),
                between == 0 ? 0 : gapNanos.sumThenReset() / 1e6 / between));
    }
}
