package baton.bench;

import baton.bench.frame.Column;
import baton.bench.frame.Layout;
import baton.bench.frame.Rounds;
import baton.bench.frame.Timing;
import baton.cluster.JavaCommand;
import baton.cluster.ProcessGroup;
import baton.kv.BlockHash;
import baton.kv.DType;
import baton.kv.Deadline;
import baton.kv.KvLayout;
import baton.kv.ModelFingerprint;
import baton.kv.Ticker;
import baton.store.BlockStore;
import baton.store.StoreFormat;
import baton.store.lm.LmBlockStore;
import baton.store.lm.LmSettings;
import baton.store.redis.RedisBlockStore;
import baton.store.redis.RedisSettings;
import baton.store.remote.RemoteLimits;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.locks.LockSupport;
import java.util.function.BooleanSupplier;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * Measures {@code baton kv-server} beside {@code redis-server}, round by round on the same cores, through the same interface: both as
 * {@link BlockStore}s with the same values. Both verify the values' checksums.
 *
 * @param redis the program {@code redis-server}
 * @param baton runs Baton, for the server's process
 * @param options of the measurement
 */
public record KvServerBench(Path redis, JavaCommand baton, Options options) {
    private static final Duration DEADLINE = Duration.ofMinutes(2);
    /** Rounds, and look-ups in each, until the code of both clients and of the server is compiled. */
    private static final int WARM_UP = 10;

    private static final int WARM_UP_LOOKUPS = 400;
    private static final int LOOKUPS = 20;
    /** The first of the keys that are not there. */
    private static final long ABSENT = 1L << 30;

    private static final KvLayout LAYOUT = new KvLayout(4, 8, 16, 64, DType.BF16);
    /** The format for look-ups, where values do not matter. */
    private static final StoreFormat SMALL = format("11", new KvLayout(1, 1, 16, 64, DType.BF16), 1);

    private static final List<String> CASES =
            List.of("put", "get", "get, by socket", "contains, present", "contains, absent");

    /** How the figures are shown. */
    public static final Layout FIGURES = new Layout()
            .table(
                    "kv-server beside redis-server on this host, {value_bytes|%,d|9.765625e-4} KiB a value, {values} in a batch, {lookups} keys in a"
                            + " look-up, {connections} connections; median of {rounds} rounds",
                    "cases",
                    Column.of("", "{case}"),
                    Column.of("kv-server", "{lm|%.2f}"),
                    Column.of("redis", "{redis|%.2f}"),
                    Column.of("", "{unit}"),
                    Column.of("ratio", "{ratio|%.2f}"));

    /**
     * @param valueBytes of a value, about
     * @param values put and read in a round, in one batch
     * @param lookups keys looked up in one batch
     * @param connections of each client for values
     * @param rounds that are timed, after some that are not
     */
    public record Options(int valueBytes, int values, int lookups, int connections, int rounds) {}

    private static StoreFormat format(String fingerprint, KvLayout layout, int blocks) {
        return new StoreFormat(new ModelFingerprint("bench", fingerprint.repeat(32)), layout, blocks, 1, 1);
    }

    /** @throws IOException if a server does not start or something fails in between */
    public void run(ObjectNode json) throws IOException, InterruptedException {
        StoreFormat format =
                format("00", LAYOUT, Math.toIntExact(Math.max(1, options.valueBytes / LAYOUT.blockBytes())));
        long memory = 4L * options.values * format.valueBytes() + (256L << 20);
        try (ProcessGroup processes = ProcessGroup.create();
                OtherProgram server = OtherProgram.redis(
                        redis, "--maxmemory", Long.toString(2 * memory), "--maxmemory-policy", "allkeys-lru");
                Arena arena = Arena.ofShared()) {
            String lm = processes
                    .serve("kv-server", baton, List.of("kv-server", "--port", "0", "--memory", Long.toString(memory)))
                    .awaitReady(DEADLINE)
                    .toString();
            try (BlockStore redisValues = openRedis(format, server.port());
                    BlockStore lmValues = openLm(format, lm, true);
                    BlockStore socketValues = openLm(format, lm, false);
                    BlockStore redisKeys = openRedis(SMALL, server.port());
                    BlockStore lmKeys = openLm(SMALL, lm, true)) {
                Values values = new Values(arena, format, options.values);
                Values keys = new Values(arena, SMALL, options.lookups);
                Rounds rounds = new Rounds();
                for (int round = -WARM_UP; round < options.rounds; round++) {
                    Rounds into = round < 0 ? new Rounds() : rounds;
                    int lookups = round < 0 ? WARM_UP_LOOKUPS : LOOKUPS;
                    // The one that goes first takes turns.
                    boolean first = (round & 1) == 0;
                    for (boolean isLm : new boolean[] {first, !first}) {
                        String name = isLm ? "lm " : "redis ";
                        long batch = 1L + round + WARM_UP;
                        BlockStore store = isLm ? lmValues : redisValues;
                        into.add(name + CASES.get(0), values.put(store, batch));
                        into.add(name + CASES.get(1), values.get(store, batch));
                        into.add(name + CASES.get(2), values.get(isLm ? socketValues : store, batch));
                        StoredValues asked = keys.in(isLm ? lmKeys : redisKeys);
                        // Those of the round before may have been evicted.
                        asked.put(asked.keys(0));
                        into.add(name + CASES.get(3), found(asked, lookups, 0, options.lookups));
                        into.add(name + CASES.get(4), found(asked, lookups, ABSENT, 0));
                    }
                    if (round >= 0) {
                        write(json, rounds, format.valueBytes());
                    }
                }
            }
        }
    }

    private void write(ObjectNode json, Rounds rounds, long valueBytes) {
        json.put("value_bytes", valueBytes)
                .put("values", options.values)
                .put("lookups", options.lookups)
                .put("connections", options.connections)
                .put("rounds", options.rounds);
        ArrayNode cases = json.putArray("cases");
        for (String name : CASES) {
            double lm = Timing.median(rounds.values("lm " + name));
            double redisRate = Timing.median(rounds.values("redis " + name));
            json.put("lm " + name, lm).put("redis " + name, redisRate).put("ratio " + name, lm / redisRate);
            boolean isLookUp = name.startsWith("contains");
            double scale = isLookUp ? 1e-3 : valueBytes / 1e9;
            cases.addObject()
                    .put("case", name)
                    .put("lm", lm * scale)
                    .put("redis", redisRate * scale)
                    .put("unit", isLookUp ? "k/s" : "GB/s")
                    .put("ratio", lm / redisRate);
        }
    }

    /** Keys a second, of several batches one after the other. */
    private static double found(StoredValues values, int batches, long batch, int expected) throws IOException {
        List<BlockHash> keys = values.keys(batch);
        double sum = 0;
        for (int i = 0; i < batches; i++) {
            sum += values.contains(keys, expected);
        }
        return (double) batches * keys.size() / sum;
    }

    private BlockStore openRedis(StoreFormat format, int port) {
        RedisSettings plain = RedisSettings.of("redis://127.0.0.1:" + port);
        RedisBlockStore store = RedisBlockStore.open(
                format, new RedisSettings(plain.url(), plain.prefix(), plain.ttl(), limits()), Ticker.system());
        await(store::isConnected);
        return store;
    }

    private BlockStore openLm(StoreFormat format, String url, boolean sharedMemory) {
        LmSettings plain = LmSettings.of(url);
        LmBlockStore store = LmBlockStore.open(
                format, new LmSettings(plain.url(), sharedMemory, plain.tokenFile(), limits()), Ticker.system());
        await(store::isConnected);
        return store;
    }

    private RemoteLimits limits() {
        return new RemoteLimits(
                options.connections, RemoteLimits.DEFAULT.connectTimeout(), Long.MAX_VALUE, Optional.empty());
    }

    private static void await(BooleanSupplier condition) {
        Deadline deadline = Deadline.after(Ticker.system(), DEADLINE);
        while (!condition.getAsBoolean()) {
            if (deadline.isOver()) {
                throw new IllegalStateException("a server has not accepted connections within " + deadline);
            }
            LockSupport.parkNanos(1_000_000);
        }
    }

    /** A batch of values in memory, put and got under other keys each time. */
    private static final class Values {
        private final int count;
        private final long bytes;
        private final MemorySegment from;
        private final MemorySegment to;

        Values(Arena arena, StoreFormat format, int count) {
            this.count = count;
            bytes = format.valueBytes();
            from = arena.allocate(count * bytes, 4096);
            to = arena.allocate(count * bytes, 4096);
            Random random = new Random(1);
            for (long at = 0; at < from.byteSize(); at += 8) {
                from.set(ValueLayout.JAVA_LONG, at, random.nextLong());
            }
        }

        StoredValues in(BlockStore store) {
            return new StoredValues(
                    store, count, StoredValues.inARow(from, count, bytes), StoredValues.inARow(to, count, bytes));
        }

        /** Values a second. */
        double put(BlockStore store, long batch) throws IOException {
            StoredValues values = in(store);
            return count / values.put(values.keys(batch));
        }

        double get(BlockStore store, long batch) throws IOException {
            StoredValues values = in(store);
            to.fill((byte) 0);
            double seconds = values.get(values.keys(batch));
            if (to.mismatch(from) >= 0) {
                throw new IOException("the bytes read differ from those put");
            }
            return count / seconds;
        }
    }
}
