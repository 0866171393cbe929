package baton.connectors.offloading;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.Ticker;
import baton.store.BlockStore;
import baton.store.StoreFormat;
import baton.store.ValueCache;
import baton.store.file.FileBlockStore;
import baton.store.file.FileStoreSettings;
import baton.store.lm.LmBlockStore;
import baton.store.lm.LmSettings;
import baton.store.memory.Eviction;
import baton.store.memory.HostMemorySettings;
import baton.store.memory.HostMemoryStore;
import baton.store.memory.SharedMemory;
import baton.store.redis.RedisBlockStore;
import baton.store.redis.RedisSettings;
import java.io.IOException;
import java.util.Optional;

/** The machine's stores. */
final class SystemStores implements StoreOpener {
    @Override
    public ValueCache memory(
            StoreFormat format, long bytes, Eviction eviction, Optional<SharedMemory> shared, Ticker ticker) {
        HostMemorySettings settings = HostMemorySettings.of(bytes).withEviction(eviction);
        if (shared.isPresent()) {
            settings = settings.withShared(shared.get());
        }
        try {
            return HostMemoryStore.open(format, settings, ticker);
        } catch (IOException e) {
            throw new IllegalStateException(e.getMessage(), e);
        }
    }

    @Override
    public BlockStore tier(String type, JsonFields settings, StoreFormat format, Ticker ticker) {
        return switch (type) {
            case TierSettings.FS -> FileBlockStore.open(FileStoreSettings.of(settings), format, ticker);
            case TierSettings.REDIS -> RedisBlockStore.open(format, RedisSettings.of(settings), ticker);
            case TierSettings.LM -> LmBlockStore.open(format, LmSettings.of(settings), ticker);
            default -> throw ConfigException.unsupported(settings.field("type"), type, "fs, redis, lm");
        };
    }
}
