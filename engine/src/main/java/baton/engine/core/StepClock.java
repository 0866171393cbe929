package baton.engine.core;

import baton.engine.EngineListener.StepTimes;
import baton.engine.StepPhase;
import baton.kv.Ticker;
import java.util.EnumMap;
import java.util.Map;

/** Divides time among the phases of a step: entering one ends the one before, at the price of one look at the clock. */
final class StepClock {
    private final Ticker ticker;
    private Map<StepPhase, Long> nanos = new EnumMap<>(StepPhase.class);
    private StepPhase phase = StepPhase.BETWEEN;
    private long since;

    StepClock(Ticker ticker) {
        this.ticker = ticker;
        this.since = ticker.nanos();
    }

    void enter(StepPhase next) {
        long now = ticker.nanos();
        nanos.merge(phase, now - since, Long::sum);
        since = now;
        phase = next;
    }

    /** Ends a step. What follows is {@link StepPhase#BETWEEN} and counts for the next step. */
    StepTimes end(int sequences, int tokens) {
        enter(StepPhase.BETWEEN);
        StepTimes times = new StepTimes(sequences, tokens, nanos);
        nanos = new EnumMap<>(StepPhase.class);
        return times;
    }

    /** Forgets what has passed since the last step ended: it was spent waiting. */
    void reset() {
        nanos.clear();
        since = ticker.nanos();
    }
}
