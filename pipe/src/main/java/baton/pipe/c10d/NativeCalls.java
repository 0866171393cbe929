package baton.pipe.c10d;

import baton.pipe.PipeException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;

/**
 * Makes calls that wait in native code on platform threads of its own: a virtual thread that waits there keeps its carrier, and as many
 * as there are processors would stop all others. Callers on platform threads make their calls themselves.
 */
final class NativeCalls implements AutoCloseable {
    private static final long IDLE_SECONDS = 5;

    private final String name;
    private final ThreadPoolExecutor threads;

    /** @param most calls at a time; more are refused, as waiting for their turn could be waiting for each other */
    NativeCalls(String name, int most) {
        this.name = name;
        this.threads = new ThreadPoolExecutor(
                0,
                most,
                IDLE_SECONDS,
                TimeUnit.SECONDS,
                new SynchronousQueue<>(),
                Thread.ofPlatform().daemon().name(name + "-", 0).factory());
    }

    /** What may wait. */
    interface Call<T> {
        T call() throws PipeException;
    }

    /**
     * Makes the call. Returns when it has ended, in any case.
     *
     * @param onInterrupt is to end it
     */
    <T> T make(Call<T> call, Runnable onInterrupt) throws PipeException {
        if (!Thread.currentThread().isVirtual()) {
            return call.call();
        }
        Future<T> made;
        try {
            made = threads.submit(call::call);
        } catch (RejectedExecutionException e) {
            throw new PipeException(
                    threads.isShutdown()
                            ? name + " is closed"
                            : name + ": " + threads.getMaximumPoolSize() + " calls are under way, no more at a time",
                    e);
        }
        boolean interrupted = false;
        try {
            while (true) {
                try {
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

    /** Calls under way go on; their threads end with them. */
    @Override
    public void close() {
        threads.shutdown();
    }
}
