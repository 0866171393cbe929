package baton.store.redis;

import baton.kv.Ticker;
import baton.store.remote.Breaker;
import baton.store.remote.Failure;
import baton.store.remote.RemoteClient;
import baton.store.remote.RemoteServer;
import baton.store.remote.StoreCounters;
import java.time.Duration;

/** A client of one server, and the consequences of the server's refusals for further commands. */
final class RedisClient {
    private static final Duration PAUSE = Duration.ofSeconds(1);
    private static final long LEAST_WINDOW = 8L << 20;

    private final RemoteClient<RedisRequest> remote;
    private final Breaker reads;
    private final Breaker writes;

    /**
     * Begins to connect.
     *
     * @param valueBytes of a stored value
     * @throws baton.kv.ConfigException if the settings cannot be used
     */
    RedisClient(RedisSettings settings, long valueBytes, StoreCounters counters, Ticker ticker) {
        reads = new Breaker(ticker, PAUSE);
        writes = new Breaker(ticker, PAUSE);
        RemoteServer server =
                RemoteServer.of(settings.server(), settings.host(), settings.port(), settings.tls(), settings.limits());
        remote = new RemoteClient<>(
                server,
                Math.max(LEAST_WINDOW, 2 * valueBytes),
                connection -> new RedisSession(connection, settings),
                counters,
                ticker);
    }

    RemoteClient<RedisRequest> remote() {
        return remote;
    }

    Breaker reads() {
        return reads;
    }

    Breaker writes() {
        return writes;
    }

    /**
     * A request has failed.
     *
     * @param error the server's text; empty if there is none
     */
    void refused(Failure cause, String error) {
        switch (cause) {
            case LOADING, AUTHENTICATION -> {
                reads.refused();
                writes.refused();
            }
            case OUT_OF_MEMORY, READ_ONLY -> writes.refused();
            default -> {}
        }
        if (!error.isEmpty()) {
            remote.note("has replied: " + error);
        }
    }
}
