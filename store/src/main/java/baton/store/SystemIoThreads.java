package baton.store;

import java.util.concurrent.Executor;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;

/**
 * Platform threads that end when they have been idle for a while. Not virtual ones: a system call on a directory that does not answer holds
 * its carrier, and a few of these would hold all virtual threads of the process.
 */
public final class SystemIoThreads implements IoThreads {
    private static final long IDLE_SECONDS = 10;

    /** How often a wait looks at its deadline, as the ticker's time need not be the system's. */
    private static final long POLL_MILLIS = 10;

    private final Executor executor = new ThreadPoolExecutor(
            0,
            Integer.MAX_VALUE,
            IDLE_SECONDS,
            TimeUnit.SECONDS,
            new SynchronousQueue<>(),
            Thread.ofPlatform().daemon().name("kv-file-", 0).factory());

    @Override
    public void start(Runnable task) {
        executor.execute(task);
    }

    @Override
    @SuppressWarnings("WaitNotInLoop") // the callers loop
    public void awaitChange(Object monitor) throws InterruptedException {
        monitor.wait(POLL_MILLIS);
    }
}
