package baton.connectors.onesided;

import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;

/**
 * Work beside a rank's thread.
 *
 * @param executor does not run a task in the thread that submits it
 * @param wake makes the engine poll the results soon; called after each task, by any thread
 */
public record Background(Executor executor, Runnable wake) {
    /** Runs a task. Whatever it throws is the future's exception. */
    public <T> CompletableFuture<T> run(Callable<T> task) {
        CompletableFuture<T> result = new CompletableFuture<>();
        executor.execute(() -> {
            try {
                result.complete(task.call());
            } catch (Exception | Error e) {
                result.completeExceptionally(e);
            }
            wake.run();
        });
        return result;
    }
}
