package baton.store.lm;

import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.store.BlockStore;
import baton.store.BlockStoreContract;
import baton.store.StoreFormat;
import baton.store.lm.server.KvServer;
import baton.store.lm.server.KvServerSettings;
import java.time.Duration;
import java.util.concurrent.locks.LockSupport;

class LmBlockStoreTest extends BlockStoreContract {
    static LmSettings settings(int port) {
        return settings(port, false);
    }

    static LmSettings settings(int port, boolean sharedMemory) {
        LmSettings plain = LmSettings.of("lm://127.0.0.1:" + port);
        return new LmSettings(
                plain.url(),
                plain.connections(),
                Duration.ofSeconds(1),
                plain.maxBytesInFlight(),
                sharedMemory,
                plain.tokenFile(),
                plain.caCertificates());
    }

    /** Opens a store and waits until it is connected. */
    static LmBlockStore connected(StoreFormat format, LmSettings settings) {
        LmBlockStore store = LmBlockStore.open(format, settings, Ticker.system());
        Deadline deadline = Deadline.after(Ticker.system(), Duration.ofSeconds(20));
        while (!store.isConnected()) {
            if (deadline.isOver()) {
                store.close();
                throw new AssertionError("not connected to " + settings);
            }
            LockSupport.parkNanos(100_000);
        }
        return store;
    }

    @Override
    protected Medium medium() throws Exception {
        return medium(false);
    }

    /** A kv-server of its own. */
    static Medium medium(boolean sharedMemory) throws Exception {
        KvServer server = KvServer.start(KvServerSettings.of(0, 64 << 20));
        return new Medium() {
            @Override
            public BlockStore open(StoreFormat format) {
                return connected(format, settings(server.port(), sharedMemory));
            }

            @Override
            public boolean isDurable() {
                return true;
            }

            @Override
            public void close() {
                server.close();
            }
        };
    }
}
