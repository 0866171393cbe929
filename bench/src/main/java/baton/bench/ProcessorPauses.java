package baton.bench;

import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.LongSupplier;

/**
 * Times at which a thread that only looks at the clock did not run: the host of a virtual machine, another program, or a compiler had its
 * processor. Requests that are under way meanwhile take longer, whatever they do, so high percentiles of latency measure such pauses.
 *
 * @param seconds looked at, of all threads together
 * @param pauses of more than {@link #LONG}
 * @param lost seconds in these
 */
public record ProcessorPauses(double seconds, int pauses, double lost) {
    static final ProcessorPauses NONE = new ProcessorPauses(0, 0, 0);

    private static final Duration LONG = Duration.ofMillis(1);

    /** A time for earlier work, such as compilers, to end. */
    private static final Duration REST = Duration.ofMillis(100);

    /** The time in which the measuring loop is compiled; does not count. */
    private static final Duration WARM_UP = Duration.ofMillis(20);

    private static final Duration DEADLINE = Duration.ofSeconds(10);

    /**
     * Looks with as many threads as there are processors, which should have nothing else to do.
     *
     * @throws IOException if a thread has not ended 10 seconds after that time
     */
    static ProcessorPauses look(Duration time) throws IOException, InterruptedException {
        TimeUnit.NANOSECONDS.sleep(REST.toNanos());
        List<FutureTask<ProcessorPauses>> looks = new ArrayList<>();
        for (int each = 0; each < Runtime.getRuntime().availableProcessors(); each++) {
            FutureTask<ProcessorPauses> look = new FutureTask<>(() -> {
                var _ = onThisThread(WARM_UP, System::nanoTime);
                return onThisThread(time, System::nanoTime);
            });
            looks.add(look);
            Thread.ofPlatform().daemon().name("processor-pauses").start(look);
        }
        ProcessorPauses all = NONE;
        for (FutureTask<ProcessorPauses> look : looks) {
            try {
                all = all.plus(look.get(time.plus(DEADLINE).toNanos(), TimeUnit.NANOSECONDS));
            } catch (ExecutionException | TimeoutException e) {
                throw new IOException("looking for pauses of the processors: " + e, e);
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

    /** The pauses per second of one thread. */
    double perSecond() {
        return seconds == 0 ? 0 : pauses / seconds;
    }

    /** The pauses' share of the time. */
    double share() {
        return seconds == 0 ? 0 : lost / seconds;
    }
}
