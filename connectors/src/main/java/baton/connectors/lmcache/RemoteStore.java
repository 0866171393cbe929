package baton.connectors.lmcache;

import baton.store.lm.LmSettings;
import baton.store.redis.RedisSettings;
import java.nio.file.Path;
import java.util.List;

/** The store that {@code remote_url} names. */
public sealed interface RemoteStore {
    /** {@code redis://} or {@code rediss://}. */
    record Redis(RedisSettings settings) implements RemoteStore {}

    /** {@code lm://}, or {@code lms://} for one with TLS. */
    record Lm(LmSettings settings) implements RemoteStore {}

    /**
     * {@code fs://}.
     *
     * @param hasMetadata {@code extra_config.save_chunk_meta}
     */
    record Fs(List<Path> directories, boolean hasMetadata) implements RemoteStore {}
}
