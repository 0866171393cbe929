package baton.pipe.c10d;

import baton.pipe.PipeException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.Semaphore;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;

/**
 * Makes calls that wait in native code on platform threads of its own: a virtual thread that waits there pins its carrier, and as
 * many as there are processors would stop all other ones. Callers on platform threads make their calls themselves.
 */
final class NativeCalls implements AutoCloseable {
    private static final long IDLE_SECONDS = 5;

    private final String name;
    private final int most;

    /** Counts calls; the number of threads does not, because a thread is free a moment after its call has ended. */
    private final Semaphore more;

    private final ThreadPoolExecutor threads;

    /** @param most calls at a time; more are refused, because calls that wait for their turn could wait for each other */
    NativeCalls(String name, int most) {
        this.name = name;
        this.most = most;
        this.more = new Semaphore(most);
        this.threads = new ThreadPoolExecutor(
                0,
                Integer.MAX_VALUE,
                IDLE_SECONDS,
                TimeUnit.SECONDS,
                new SynchronousQueue<>(),
                Thread.ofPlatform().daemon().name(name + "-", 0).factory());
    }

    /** A call that may wait in native code. */
    interface Call<T> {
        T call() throws PipeException;
    }

    /**
     * Makes the call. Returns when it has ended, even if the thread is interrupted.
     *
     * @param onInterrupt has to end the call
     */
    <T> T make(Call<T> call, Runnable onInterrupt) throws PipeException {
        if (!Thread.currentThread().isVirtual()) {
            return call.call();
        }
        if (!more.tryAcquire()) {
            throw new PipeException(name + ": " + most + " calls are under way, no more at a time");
        }
        Future<T> made;
        try {
            made = threads.submit(() -> {
                try {
                    return call.call();
                } finally {
                    more.release();
                }
            });
        } catch (RejectedExecutionException e) {
            more.release();
            throw new PipeException(name + " is closed", e);
        } catch (RuntimeException | Error e) {
            more.release();
            throw e;
        }
        boolean interrupted = false;
        try {
            while (true) {
                try {
                    // Without a timeout: the call has its own.
                    return made.get();
                } catch (InterruptedException e) {
                    interrupted = true;
                    onInterrupt.run();
                } catch (ExecutionException e) {
                    throw failure(e);
                }
            }
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    private static PipeException failure(ExecutionException failed) {
        return switch (failed.getCause()) {
            case RuntimeException e -> throw e;
            case Error e -> throw e;
            case PipeException e -> new PipeException(String.valueOf(e.getMessage()), e);
            case null, default -> new PipeException(failed.toString(), failed);
        };
    }

    /** Calls under way continue; their threads end with them. */
    @Override
    public void close() {
        threads.shutdown();
    }
}
