package baton.store.redis;

import baton.kv.BlockHash;
import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.store.StoreFormat;
import baton.store.StoreTask;
import baton.store.ValueRanges;
import baton.store.remote.Failure;
import baton.store.remote.RemoteBlockStore;
import baton.store.remote.StoreCounters;
import baton.store.remote.ValueHeader;
import io.netty.buffer.ByteBuf;
import java.util.List;
import java.util.OptionalLong;

/**
 * Keeps values at a Redis server, or one that speaks its protocol, as Valkey.
 *
 * <h2>Keys and values</h2>
 *
 * A key is {@code <prefix>:<format>:<block hash>}: 32 hexadecimal digits of the SHA-256 of {@link StoreFormat#describe}, and the 64 of the
 * hash. So stores of several formats can share a server. A value is a {@link ValueHeader} and the bytes. A string that does not verify as the value of
 * this key in this format is a miss, counted by its cause, and deleted.
 *
 * <p>The server decides how much it keeps ({@code maxmemory}) and which values it evicts ({@code maxmemory-policy}, best
 * {@code allkeys-lru}); there are no events of its evictions. With an expiry in the settings, a value expires that long after it was last
 * written or read.
 *
 * <h2>Faults</h2>
 *
 * A server that is absent, hangs, or refuses costs operations at most one deadline; while it is away they are rejected at once, and it is
 * found in the background when it is back. A kind of command that the server refuses as a whole (it is loading, full, a replica) is not tried
 * again for a second, and then by one operation first.
 */
public final class RedisBlockStore extends RemoteBlockStore<RedisRequest> {
    /** Redis takes values of at most 512 MiB by default. */
    private static final long MOST_STORED_BYTES = 512L << 20;

    private final Keys keys;
    private final OptionalLong ttlMillis;
    private final RedisClient redis;

    private RedisBlockStore(StoreFormat format, RedisSettings settings, StoreCounters counters, RedisClient redis) {
        super("redis", format, counters, redis.remote());
        this.redis = redis;
        keys = new Keys(settings.prefix(), header.formatName());
        ttlMillis = settings.ttl().map(ttl -> OptionalLong.of(ttl.toMillis())).orElse(OptionalLong.empty());
    }

    /**
     * Opens a store. Returns at once: the server is connected to in the background, and needs not be there.
     *
     * @throws baton.kv.ConfigException if the settings cannot be used
     * @throws IllegalArgumentException if values of this format are too large for Redis
     */
    public static RedisBlockStore open(StoreFormat format, RedisSettings settings, Ticker ticker) {
        if (format.valueBytes() > MOST_STORED_BYTES - ValueHeader.BYTES) {
            throw new IllegalArgumentException(
                    "values have %d bytes; Redis takes at most %d, so blocksPerChunk=%d is too much"
                            .formatted(format.valueBytes(), MOST_STORED_BYTES, format.blocksPerChunk()));
        }
        StoreCounters counters = new StoreCounters("redis");
        long storedBytes = ValueHeader.BYTES + format.valueBytes();
        return new RedisBlockStore(
                format, settings, counters, new RedisClient(settings, storedBytes, counters, ticker));
    }

    @Override
    public StoreTask contains(List<BlockHash> batch, Deadline deadline) {
        StoreTask task = new StoreTask(batch.size(), deadline);
        return client.run(new Presence.Lookup(redis, task, KeyList.of(keys, batch)));
    }

    @Override
    public StoreTask get(List<BlockHash> batch, List<ValueRanges> to, Deadline deadline) {
        return client.run(new Read(this, new StoreTask(batch.size(), deadline), batch, to));
    }

    /** @throws IllegalArgumentException if the ranges of a key are not a value */
    @Override
    public StoreTask put(List<BlockHash> batch, List<ValueRanges> from, Deadline deadline) {
        return client.run(new Write(this, new StoreTask(batch.size(), deadline), batch, from));
    }

    RedisClient redis() {
        return redis;
    }

    ValueHeader header() {
        return header;
    }

    Keys keys() {
        return keys;
    }

    /** The time for which values are kept; empty: without end. */
    OptionalLong ttlMillis() {
        return ttlMillis;
    }

    /** Deletes the string under a key, which is not the key's value. */
    void damaged(BlockHash key, Failure cause) {
        counters.failed(cause, 1);
        client.transfer(List.of(new RedisRequest.OnKey(redis) {
            private long deleted;

            @Override
            protected void write(ByteBuf to, boolean getex) {
                Keys.command(to, 2, "DEL");
                keys.write(to, key);
            }

            @Override
            protected void number(long value) {
                deleted = value;
            }

            @Override
            protected void answered() {
                if (deleted > 0) {
                    counters.removed(key);
                }
            }
        }));
    }

    /** Lets a value expire later, at a server that cannot do so while it reads it. */
    void refresh(BlockHash key) {
        client.transfer(List.of(new RedisRequest.OnKey(redis) {
            @Override
            protected void write(ByteBuf to, boolean getex) {
                Keys.command(to, 3, "PEXPIRE");
                keys.write(to, key);
                Keys.argument(to, Long.toString(ttlMillis.orElseThrow()));
            }
        }));
    }
}
