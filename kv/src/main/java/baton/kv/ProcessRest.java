package baton.kv;

import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.util.concurrent.TimeUnit;
import java.util.function.LongSupplier;

/**
 * Waits until this process hardly uses a processor. After a warm-up the JVM's compilers still have a queue of hot methods, and where there are
 * few processors the first requests would share theirs with them.
 */
public final class ProcessRest {
    private static final Duration LOOK = Duration.ofMillis(20);
    /** Of a processor's time between two looks. */
    private static final double LITTLE = 0.1;
    /** Looks in a row with little use. */
    private static final int ENOUGH = 2;

    private ProcessRest() {}

    /** Returns when the process is at rest, or after {@code atMost}. */
    public static void await(Duration atMost) throws InterruptedException {
        if (ManagementFactory.getOperatingSystemMXBean() instanceof OperatingSystemMXBean system) {
            await(atMost, system::getProcessCpuTime);
        }
    }

    /** @param used processor time of the process until now, in nanoseconds */
    static void await(Duration atMost, LongSupplier used) throws InterruptedException {
        long start = System.nanoTime();
        long looked = start;
        long before = used.getAsLong();
        for (int rests = 0; rests < ENOUGH && looked - start < atMost.toNanos(); ) {
            TimeUnit.NANOSECONDS.sleep(LOOK.toNanos());
            long now = System.nanoTime();
            long then = used.getAsLong();
            rests = then - before < LITTLE * (now - looked) ? rests + 1 : 0;
            looked = now;
            before = then;
        }
    }
}
