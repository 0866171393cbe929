package baton.router;

import io.vertx.core.Future;
import io.vertx.core.Vertx;
import java.util.concurrent.Callable;

/** Runs work on bodies: at once for small ones, on a worker thread for large ones, which would hold the event loop for too long. */
record BodyWorker(Vertx vertx) {
    /** The bytes of a large body: about a tenth of a millisecond of parsing. */
    static final int LARGE = 64 << 10;

    /**
     * Runs a task; the returned future completes on the caller's event loop, and before this method returns if the task is small.
     *
     * @param bytes that the task reads
     */
    <T> Future<T> run(long bytes, Callable<T> task) {
        if (bytes > LARGE) {
            return vertx.executeBlocking(task, false);
        }
        try {
            return Future.succeededFuture(task.call());
        } catch (Exception e) {
            return Future.failedFuture(e);
        }
    }
}
