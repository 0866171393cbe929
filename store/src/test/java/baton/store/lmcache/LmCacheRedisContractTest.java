package baton.store.lmcache;

import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.store.redis.RedisServer;
import baton.store.redis.RedisSettings;
import java.nio.file.Path;
import java.time.Duration;
import java.util.UUID;
import java.util.concurrent.locks.LockSupport;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.io.TempDir;

class LmCacheRedisContractTest extends LmCacheStoreContract {
    @TempDir
    private static Path directory;

    @AutoClose
    private static RedisServer server;

    @BeforeAll
    static void start() throws Exception {
        server = RedisServer.start(directory);
    }

    @Override
    String prefix() {
        return UUID.randomUUID().toString();
    }

    @Override
    ObjectTransport transport(long objectBytes) {
        return connected(server.url(), objectBytes);
    }

    static RedisTransport connected(String url, long objectBytes) {
        RedisTransport transport = new RedisTransport(RedisSettings.of(url), objectBytes, Ticker.system());
        Deadline deadline = Deadline.after(Ticker.system(), Duration.ofMinutes(2));
        while (!transport.isConnected()) {
            if (deadline.isOver()) {
                transport.close();
                throw new AssertionError("not connected to " + url);
            }
            LockSupport.parkNanos(100_000);
        }
        return transport;
    }
}
