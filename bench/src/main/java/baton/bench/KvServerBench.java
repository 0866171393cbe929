package baton.bench;

import baton.cluster.JavaCommand;
import baton.cluster.ServerProcess;
import baton.kv.BlockHash;
import baton.kv.DType;
import baton.kv.Deadline;
import baton.kv.KvLayout;
import baton.kv.ModelFingerprint;
import baton.kv.Ticker;
import baton.store.BlockStore;
import baton.store.StoreFormat;
import baton.store.StoreTask;
import baton.store.ValueRanges;
import baton.store.lm.LmBlockStore;
import baton.store.lm.LmSettings;
import baton.store.redis.RedisBlockStore;
import baton.store.redis.RedisSettings;
import baton.store.remote.RemoteLimits;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.locks.LockSupport;
import java.util.function.BooleanSupplier;
import java.util.function.Function;
import java.util.function.Supplier;
import java.util.stream.LongStream;

/**
 * Measures {@code baton kv-server} beside {@code redis-server}, round by round on the same cores, through the same interface: both as
 * {@link BlockStore}s with the same values, whose checksums both verify.
 */
public final class KvServerBench {
    private static final Duration DEADLINE = Duration.ofMinutes(2);

    /** Rounds, and look-ups in each, until the code of both clients and of the server is compiled. */
    static final int WARM_UP = 10;

    private static final int WARM_UP_LOOKUPS = 400;
    private static final int LOOKUPS = 20;

    private static final Ticker TICKER = Ticker.system();
    private static final KvLayout LAYOUT = new KvLayout(4, 8, 16, 64, DType.BF16);

    /** For look-ups: the values are of no matter. */
    private static final StoreFormat SMALL = new StoreFormat(
            new ModelFingerprint("bench", "11".repeat(32)), new KvLayout(1, 1, 16, 64, DType.BF16), 1, 1, 1);

    private final RedisProgram redis;
    private final JavaCommand baton;

    /**
     * What to measure.
     *
     * @param valueBytes of a value, about
     * @param values put and read in a round, in one batch
     * @param lookups keys looked up in one batch
     * @param connections of each client for values
     * @param rounds that are timed, after {@link #WARM_UP} that are not
     */
    public record Options(int valueBytes, int values, int lookups, int connections, int rounds) {}

    /** @param baton runs Baton, for the server's process */
    public KvServerBench(RedisProgram redis, JavaCommand baton) {
        this.redis = redis;
        this.baton = baton;
    }

    /** @throws IOException if a server does not start or something fails in between */
    public KvServerReport run(Options options) throws IOException {
        StoreFormat format = new StoreFormat(
                new ModelFingerprint("bench", "00".repeat(32)),
                LAYOUT,
                Math.toIntExact(Math.max(1, options.valueBytes / LAYOUT.blockBytes())),
                1,
                1);
        Path log = Files.createTempFile("baton-kv-server", ".log");
        long memory = 4L * options.values * format.valueBytes() + (256L << 20);
        ServerProcess process = ServerProcess.start(
                "kv-server", baton, List.of("kv-server", "--port", "0", "--memory", Long.toString(memory)), log);
        try (RedisProgram.Running server =
                        redis.start("--maxmemory", Long.toString(2 * memory), "--maxmemory-policy", "allkeys-lru");
                Arena arena = Arena.ofShared()) {
            String lm = process.awaitReady(DEADLINE).toString();
            Side ofRedis = new Side("redis", of -> openRedis(of, server.port(), options));
            Side ofLm = new Side("lm", of -> openLm(of, lm, options, true));
            Side bySocket = new Side("lm", of -> openLm(of, lm, options, false));
            Map<String, List<Double>> rates = new TreeMap<>();
            try (BlockStore redisValues = ofRedis.open(format);
                    BlockStore lmValues = ofLm.open(format);
                    BlockStore socketValues = bySocket.open(format);
                    BlockStore redisKeys = ofRedis.open(SMALL);
                    BlockStore lmKeys = ofLm.open(SMALL)) {
                Values values = new Values(options.values, format, arena);
                Values keys = new Values(options.lookups, SMALL, arena);
                for (int round = -WARM_UP; round < options.rounds; round++) {
                    Map<String, List<Double>> into = round < 0 ? new TreeMap<>() : rates;
                    int batches = round < 0 ? WARM_UP_LOOKUPS : LOOKUPS;
                    // The one that goes first takes turns.
                    boolean first = (round & 1) == 0;
                    for (boolean isLm : new boolean[] {first, !first}) {
                        String name = isLm ? "lm " : "redis ";
                        BlockStore store = isLm ? lmValues : redisValues;
                        add(into, name + KvServerReport.PUT, values.put(store, 1000L * (round + WARM_UP + 1)));
                        add(into, name + KvServerReport.GET, values.get(store, 1000L * (round + WARM_UP + 1)));
                        add(
                                into,
                                name + KvServerReport.SOCKET_GET,
                                values.get(isLm ? socketValues : store, 1000L * (round + WARM_UP + 1)));
                        BlockStore asked = isLm ? lmKeys : redisKeys;
                        // Those of the round before may have been evicted.
                        keys.put(asked, 0);
                        add(into, name + KvServerReport.HIT, keys.find(asked, batches, 0, options.lookups));
                        add(into, name + KvServerReport.MISS, keys.find(asked, batches, 1L << 40, 0));
                    }
                }
            }
            return new KvServerReport(format.valueBytes(), options, Map.copyOf(rates));
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IOException("interrupted", e);
        } finally {
            process.process().kill();
            Files.deleteIfExists(log);
        }
    }

    private static void add(Map<String, List<Double>> rates, String name, double rate) {
        rates.computeIfAbsent(name, _ -> new ArrayList<>()).add(rate);
    }

    /** One of the two servers. */
    private record Side(String name, Function<StoreFormat, BlockStore> opener) {
        BlockStore open(StoreFormat format) {
            return opener.apply(format);
        }
    }

    private static BlockStore openRedis(StoreFormat format, int port, Options options) {
        RedisSettings plain = RedisSettings.of("redis://127.0.0.1:" + port);
        RedisBlockStore store = RedisBlockStore.open(
                format, new RedisSettings(plain.url(), plain.prefix(), plain.ttl(), limits(options)), TICKER);
        await(store::isConnected);
        return store;
    }

    private static BlockStore openLm(StoreFormat format, String url, Options options, boolean sharedMemory) {
        LmSettings plain = LmSettings.of(url);
        LmBlockStore store = LmBlockStore.open(
                format, new LmSettings(plain.url(), sharedMemory, plain.tokenFile(), limits(options)), TICKER);
        await(store::isConnected);
        return store;
    }

    private static RemoteLimits limits(Options options) {
        return new RemoteLimits(
                options.connections, RemoteLimits.DEFAULT.connectTimeout(), Long.MAX_VALUE, Optional.empty());
    }

    private static void await(BooleanSupplier condition) {
        Deadline deadline = Deadline.after(TICKER, DEADLINE);
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

        private Values(int count, StoreFormat format, Arena arena) {
            this.count = count;
            bytes = format.valueBytes();
            from = arena.allocate(count * bytes, 4096);
            to = arena.allocate(count * bytes, 4096);
            Random random = new Random(1);
            for (long at = 0; at < from.byteSize(); at += 8) {
                from.set(ValueLayout.JAVA_LONG, at, random.nextLong());
            }
        }

        private List<ValueRanges> ranges(MemorySegment memory) {
            ValueRanges ranges = new ValueRanges(memory);
            for (int i = 0; i < count; i++) {
                ranges.add(i, 0, i * bytes, bytes);
            }
            return List.of(ranges);
        }

        private List<BlockHash> keys(long first) {
            return LongStream.range(first, first + count)
                    .mapToObj(i -> new BlockHash(0x9e3779b97f4a7c15L * (i + 1), i, ~i, 31 * i))
                    .toList();
        }

        /** Values a second. */
        double put(BlockStore store, long first) throws IOException {
            List<BlockHash> keys = keys(first);
            List<ValueRanges> ranges = ranges(from);
            return count / seconds(count, () -> store.put(keys, ranges, Deadline.after(TICKER, DEADLINE)));
        }

        double get(BlockStore store, long first) throws IOException {
            List<BlockHash> keys = keys(first);
            to.fill((byte) 0);
            List<ValueRanges> ranges = ranges(to);
            double seconds = seconds(count, () -> store.get(keys, ranges, Deadline.after(TICKER, DEADLINE)));
            if (to.mismatch(from) >= 0) {
                throw new IOException("what was read is not what was put");
            }
            return count / seconds;
        }

        /** Keys a second, of several batches one after the other. */
        double find(BlockStore store, int batches, long first, int expected) throws IOException {
            List<BlockHash> keys = keys(first);
            double sum = 0;
            for (int i = 0; i < batches; i++) {
                sum += seconds(expected, () -> store.contains(keys, Deadline.after(TICKER, DEADLINE)));
            }
            return (double) batches * count / sum;
        }

        private static double seconds(int expected, Supplier<StoreTask> operation) throws IOException {
            Thread caller = Thread.currentThread();
            long start = System.nanoTime();
            StoreTask task = operation.get();
            task.onQuiet(() -> LockSupport.unpark(caller));
            while (!task.isDone() || !task.isQuiet()) {
                LockSupport.parkNanos(1_000_000);
            }
            double seconds = (System.nanoTime() - start) / 1e9;
            if (task.succeededCount() != expected) {
                throw new IOException("of %d keys %d have succeeded after %.3f s"
                        .formatted(expected, task.succeededCount(), seconds));
            }
            return seconds;
        }
    }
}
