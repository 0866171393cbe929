package baton.engine.core;

import baton.engine.EngineListener.StepTimes;
import baton.engine.StepPhase;
import baton.kv.Ticker;
import java.util.EnumMap;
import java.util.Map;

/** Divides time among the phases of a step: entering one ends the one before, at the price of one look at the clock. */
final class StepClock {
    private final Ticker ticker;
    private final Map<StepPhase, Spent> spent = new EnumMap<>(StepPhase.class);
    private StepPhase phase = StepPhase.BETWEEN;
    private long since;

    StepClock(Ticker ticker) {
        this.ticker = ticker;
        this.since = ticker.nanos();
    }

    void enter(StepPhase next) {
        long now = ticker.nanos();
        spent.computeIfAbsent(phase, _ -> new Spent()).nanos += now - since;
        since = now;
        phase = next;
    }

    /** Ends a step. The time after it is {@link StepPhase#BETWEEN} and counts for the next step. */
    StepTimes end(int sequences, int tokens) {
        enter(StepPhase.BETWEEN);
        Map<StepPhase, Long> byPhase = new EnumMap<>(StepPhase.class);
        spent.forEach((each, time) -> byPhase.put(each, time.nanos));
        forget();
        return new StepTimes(sequences, tokens, byPhase);
    }

    /** Forgets the time since the last step ended: it was spent waiting. */
    void reset() {
        forget();
        since = ticker.nanos();
    }

    private void forget() {
        spent.values().forEach(time -> time.nanos = 0);
    }

    /** Nanoseconds of a phase. */
    private static final class Spent {
        private long nanos;
    }
}
