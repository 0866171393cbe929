package baton.bench;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.function.LongSupplier;

/**
 * Times at which a thread that only looks at the clock did not run, because the host of a virtual machine or a program of the system had its
 * processor. A request that meets one takes longer, whatever it does: no percentile is below their share of the time.
 *
 * @param seconds looked at, of all processors together
 * @param pauses of more than {@link #LONG}
 * @param lost seconds in these
 */
record ProcessorPauses(double seconds, int pauses, double lost) {
    static final ProcessorPauses NONE = new ProcessorPauses(0, 0, 0);

    static final Duration LONG = Duration.ofMillis(1);

    /** Looks for pauses of all processors that this process may use, which should have nothing else to do. */
    static ProcessorPauses look(Duration time) throws InterruptedException {
        List<FutureTask<ProcessorPauses>> looks = new ArrayList<>();
        for (int each = 0; each < Runtime.getRuntime().availableProcessors(); each++) {
            FutureTask<ProcessorPauses> look = new FutureTask<>(() -> onThisThread(time, System::nanoTime));
            looks.add(look);
            Thread.ofPlatform().daemon().name("processor-pauses").start(look);
        }
        ProcessorPauses all = NONE;
        for (FutureTask<ProcessorPauses> look : looks) {
            try {
                all = all.plus(look.get());
            } catch (ExecutionException e) {
                throw new IllegalStateException(e);
            }
        }
        return all;
    }

    /** @param clock nanoseconds */
    static ProcessorPauses onThisThread(Duration time, LongSupplier clock) {
        long begun = clock.getAsLong();
        long last = begun;
        int pauses = 0;
        long lost = 0;
        while (last - begun < time.toNanos()) {
            long now = clock.getAsLong();
            if (now - last > LONG.toNanos()) {
                pauses++;
                lost += now - last;
            }
            last = now;
        }
        return new ProcessorPauses((last - begun) * 1e-9, pauses, lost * 1e-9);
    }

    ProcessorPauses plus(ProcessorPauses more) {
        return new ProcessorPauses(seconds + more.seconds, pauses + more.pauses, lost + more.lost);
    }

    /** Of one processor. */
    double perSecond() {
        return seconds == 0 ? 0 : pauses / seconds;
    }

    /** Of the time. */
    double share() {
        return seconds == 0 ? 0 : lost / seconds;
    }
}
