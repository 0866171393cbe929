package baton.store.lmcache;

import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.kvserver.KvServer;
import baton.kvserver.KvServerSettings;
import baton.store.lm.LmClient;
import baton.store.lm.LmSettings;
import java.time.Duration;
import java.util.UUID;
import java.util.concurrent.locks.LockSupport;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.BeforeAll;

class LmCacheLmContractTest extends LmCacheStoreContract {
    @AutoClose
    private static KvServer server;

    @BeforeAll
    static void start() throws Exception {
        server = KvServer.start(KvServerSettings.of(0, 64 << 20));
    }

    @Override
    String prefix() {
        return UUID.randomUUID().toString();
    }

    @Override
    ObjectTransport transport(long objectBytes) {
        LmClient client = LmClient.open(LmSettings.of("lm://127.0.0.1:" + server.port()), Ticker.system());
        Deadline deadline = Deadline.after(Ticker.system(), Duration.ofMinutes(2));
        while (!client.isConnected()) {
            if (deadline.isOver()) {
                client.close();
                throw new AssertionError("not connected");
            }
            LockSupport.parkNanos(100_000);
        }
        return new LmTransport(client);
    }
}
