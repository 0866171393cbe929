package baton.store.lm;

import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.BlockHash;
import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.kvserver.KvServer;
import baton.kvserver.KvServerSettings;
import baton.store.BlockStore;
import baton.store.BlockStoreContract;
import baton.store.StoreFormat;
import baton.store.StoreTask;
import baton.store.ValueRanges;
import baton.store.remote.RemoteLimits;
import baton.store.remote.StoredValues;
import java.lang.foreign.Arena;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

class LmBlockStoreTest extends BlockStoreContract {
    static LmSettings settings(int port) {
        return settings(port, false);
    }

    static LmSettings settings(int port, boolean sharedMemory) {
        LmSettings plain = LmSettings.of("lm://127.0.0.1:" + port);
        return new LmSettings(
                plain.url(),
                sharedMemory,
                plain.tokenFile(),
                new RemoteLimits(2, Duration.ofSeconds(1), RemoteLimits.DEFAULT.maxBytesInFlight(), Optional.empty()));
    }

    /** Opens a store and waits until it is connected. */
    static LmBlockStore connected(StoreFormat format, LmSettings settings) {
        LmBlockStore store = LmBlockStore.open(format, settings, Ticker.system());
        Deadline deadline = Deadline.after(Ticker.system(), Duration.ofMinutes(2));
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

    /** More than come, are looked up, and are compared at once. */
    @Test
    void everyOneOfManyKeysIsLookedUpByItself() throws Exception {
        int stored = 700;
        int asked = 5000;
        StoreFormat format = StoredValues.format(1);
        Random random = new Random(17);
        List<BlockHash> keys = IntStream.range(0, asked)
                .mapToObj(
                        _ -> new BlockHash(random.nextLong(), random.nextLong(), random.nextLong(), random.nextLong()))
                .toList();
        List<Integer> places = new ArrayList<>(IntStream.range(0, asked).boxed().toList());
        Collections.shuffle(places, random);
        Set<Integer> present = Set.copyOf(places.subList(0, stored));
        try (KvServer server = KvServer.start(KvServerSettings.of(0, 64 << 20));
                LmBlockStore store = connected(format, settings(server.port()));
                Arena arena = Arena.ofShared()) {
            ValueRanges same = new ValueRanges(arena.allocate(format.valueBytes(), 4096));
            List<BlockHash> put = present.stream().map(keys::get).toList();
            for (int key = 0; key < stored; key++) {
                same.add(key, 0, 0, format.valueBytes());
            }
            Deadline deadline = Deadline.after(Ticker.system(), Duration.ofSeconds(60));
            StoreTask putting = store.put(put, List.of(same), deadline);
            StoredValues.until("put", putting::isQuiet);
            assertThat(putting.succeededCount()).isEqualTo(stored);
            StoreTask looking = store.contains(keys, deadline);
            StoredValues.until("looked up", looking::isQuiet);
            for (int key = 0; key < asked; key++) {
                assertThat(looking.succeeded(key)).as("key %d", key).isEqualTo(present.contains(key));
            }
        }
    }
}
