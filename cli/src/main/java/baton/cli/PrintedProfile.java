package baton.cli;

import baton.engine.EngineListener;
import baton.engine.StepProfile;
import baton.kv.ConfigException;
import java.time.Duration;

/** Prints an engine's profile to standard error at intervals, of the steps since the last print. */
final class PrintedProfile implements EngineListener {
    private final StepProfile profile = new StepProfile();
    private final long everyNanos;
    /** Used by the engine thread only. */
    private long next;

    /** @param seconds between two prints, if the engine is busy */
    PrintedProfile(int seconds) {
        if (seconds <= 0) {
            throw new ConfigException("profile", "is " + seconds + ", must be a positive number of seconds");
        }
        everyNanos = Duration.ofSeconds(seconds).toNanos();
        next = System.nanoTime() + everyNanos;
    }

    @Override
    public void onStepTimes(StepTimes times) {
        profile.onStepTimes(times);
        long now = System.nanoTime();
        if (now - next >= 0) {
            print();
            next = now + everyNanos;
        }
    }

    void print() {
        System.err.println(profile.takeTable());
    }
}
