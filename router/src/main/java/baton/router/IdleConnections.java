package baton.router;

import baton.kv.Ticker;
import io.vertx.core.Vertx;
import io.vertx.core.http.HttpConnection;
import java.time.Duration;
import java.util.IdentityHashMap;

/**
 * Closes connections of clients that send no request, or not the whole head of one, for too long. Bytes do not count: a head may come
 * byte by byte. Confined to one event loop.
 */
final class IdleConnections {
    private final Vertx vertx;
    private final Ticker ticker;
    private final long mostNanos;
    private final IdentityHashMap<HttpConnection, Watch> watches = new IdentityHashMap<>();

    /** One timer for each connection, set again for the rest: cheaper than one for each request. */
    private final class Watch {
        private final HttpConnection connection;
        private int requests;
        private long since = ticker.nanos();
        private long timer;

        Watch(HttpConnection connection) {
            this.connection = connection;
            arm(mostNanos);
        }

        private void arm(long nanos) {
            timer = vertx.setTimer(Math.max(1, nanos / 1_000_000), _ -> {
                long left = requests > 0 ? mostNanos : mostNanos - (ticker.nanos() - since);
                if (left > 0) {
                    arm(left);
                } else {
                    connection.close();
                }
            });
        }
    }

    IdleConnections(Vertx vertx, Ticker ticker, Duration most) {
        this.vertx = vertx;
        this.ticker = ticker;
        this.mostNanos = most.toNanos();
    }

    void opened(HttpConnection connection) {
        watches.put(connection, new Watch(connection));
        connection.closeHandler(_ -> {
            Watch watch = watches.remove(connection);
            if (watch != null) {
                vertx.cancelTimer(watch.timer);
            }
        });
    }

    /** The head of a request is complete. */
    void began(HttpConnection connection) {
        Watch watch = watches.get(connection);
        if (watch != null) {
            watch.requests++;
        }
    }

    /** Its answer has ended. */
    void ended(HttpConnection connection) {
        Watch watch = watches.get(connection);
        if (watch != null) {
            watch.requests--;
            watch.since = ticker.nanos();
        }
    }
}
