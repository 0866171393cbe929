package baton.store.redis;

import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.kv.connector.Measurement;
import baton.store.BlockStore;
import baton.store.BlockStoreContract;
import baton.store.StoreFormat;
import baton.store.remote.RemoteLimits;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Stream;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.io.TempDir;

class RedisBlockStoreTest extends BlockStoreContract {
    @TempDir
    private static Path directory;

    @AutoClose
    private static RedisServer server;

    @BeforeAll
    static void start() throws Exception {
        server = RedisServer.start(directory);
    }

    static RedisSettings settings(RedisServer server, String prefix, Duration... ttl) {
        RedisSettings plain = RedisSettings.of(server.url());
        return new RedisSettings(
                plain.url(),
                prefix,
                Stream.of(ttl).findFirst(),
                new RemoteLimits(2, Duration.ofSeconds(1), RemoteLimits.DEFAULT.maxBytesInFlight(), Optional.empty()));
    }

    static RedisBlockStore connected(StoreFormat format, RedisSettings settings) {
        return connected(format, settings, Ticker.system());
    }

    /** Opens a store and waits until all of its connections are up. */
    static RedisBlockStore connected(StoreFormat format, RedisSettings settings, Ticker ticker) {
        RedisBlockStore store = RedisBlockStore.open(format, settings, ticker);
        Deadline deadline = Deadline.after(Ticker.system(), Duration.ofMinutes(2));
        while (connections(store) <= settings.limits().connections()) {
            if (deadline.isOver()) {
                store.close();
                throw new AssertionError("not connected to " + settings);
            }
            LockSupport.parkNanos(100_000);
        }
        return store;
    }

    /** One of them is for look-ups. */
    private static double connections(RedisBlockStore store) {
        return store.takeMeasurements().stream()
                .filter(each -> each.name().equals("baton:kv_store_connections"))
                .mapToDouble(Measurement::value)
                .sum();
    }

    @Override
    protected Medium medium() {
        String prefix = "test-" + UUID.randomUUID();
        return new Medium() {
            @Override
            public BlockStore open(StoreFormat format) {
                return connected(format, settings(server, prefix));
            }

            @Override
            public boolean isDurable() {
                return true;
            }
        };
    }
}
