package baton.router;

import io.netty.handler.flush.FlushConsolidationHandler;
import io.vertx.core.http.HttpConnection;
import io.vertx.core.net.impl.ConnectionBase;

/**
 * One system call for all that a turn of the event loop writes to a client: one for each write costs more than all else that the router does for a stream,
 * and wakes the client as often.
 */
final class FlushConsolidation {
    private FlushConsolidation() {}

    /** Consolidates a connection's flushes. To be called on its event loop, before anything is written. */
    static void of(HttpConnection connection) {
        // Vert.x has no option for it. The handler is Netty's, and the first: with TLS it holds back records.
        if (connection instanceof ConnectionBase base) {
            base.channel()
                    .pipeline()
                    .addFirst(new FlushConsolidationHandler(
                            FlushConsolidationHandler.DEFAULT_EXPLICIT_FLUSH_AFTER_FLUSHES, true));
        }
    }
}
