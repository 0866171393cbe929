package baton.bench;

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
import baton.store.redis.RedisBlockStore;
import baton.store.redis.RedisSettings;
import baton.store.remote.RemoteLimits;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.net.InetAddress;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Supplier;
import java.util.stream.LongStream;

/**
 * Measures a {@link RedisBlockStore} at a server that it starts on this host, and next to it, round by round, {@code redis-benchmark}: a
 * client in C that sends the same commands, pipelined, and does nothing with the replies.
 */
public final class RedisStoreBench {
    /** Commands that {@code redis-benchmark} sends before it reads, of each kind. */
    private static final int PIPELINED_VALUES = 8;

    private static final int PIPELINED_LOOKUPS = 64;
    private static final int SETS_PER_KEY = 5;
    private static final Duration DEADLINE = Duration.ofMinutes(2);
    private static final Ticker TICKER = Ticker.system();

    private final RedisProgram server;
    private final Path benchmark;

    private RedisStoreBench(RedisProgram server, Path benchmark) {
        this.server = server;
        this.benchmark = benchmark;
    }

    /**
     * What to measure.
     *
     * @param valueBytes of a value, about
     * @param values put and read in a round, in one batch
     * @param lookups keys looked up in a round, in one batch
     * @param rounds that are timed, after one that is not
     */
    public record Options(int valueBytes, int values, int lookups, int connections, int rounds) {}

    /** @param path directories to look for {@code redis-server} and {@code redis-benchmark} in, as of the environment variable {@code PATH} */
    public static Optional<RedisStoreBench> find(String path) {
        return RedisProgram.find(path)
                .flatMap(server ->
                        RedisProgram.program(path, "redis-benchmark").map(tool -> new RedisStoreBench(server, tool)));
    }

    /** @throws IOException if the server does not start or something fails in between */
    public RedisStoreReport run(Options options) throws IOException {
        try (RedisProgram.Running running = server.start()) {
            return run(options, running);
        }
    }

    private RedisStoreReport run(Options options, RedisProgram.Running running) throws IOException {
        RedisSettings plain = RedisSettings.of("redis://127.0.0.1:" + running.port());
        RedisSettings settings = new RedisSettings(
                plain.url(),
                plain.prefix(),
                plain.ttl(),
                new RemoteLimits(
                        options.connections, RemoteLimits.DEFAULT.connectTimeout(), Long.MAX_VALUE, Optional.empty()));
        KvLayout layout = new KvLayout(4, 8, 16, 64, DType.BF16);
        StoreFormat format = new StoreFormat(
                new ModelFingerprint("bench", "00".repeat(32)),
                layout,
                Math.toIntExact(Math.max(1, options.valueBytes / layout.blockBytes())),
                1,
                1);
        try (RedisBlockStore store = RedisBlockStore.open(format, settings, TICKER);
                Arena arena = Arena.ofShared()) {
            Deadline deadline = Deadline.after(TICKER, DEADLINE);
            while (!store.isConnected()) {
                if (deadline.isOver() || !running.process().isAlive()) {
                    throw new IOException("redis-server has not started within " + deadline);
                }
                LockSupport.parkNanos(1_000_000);
            }
            return new Run(options, store, running.port(), arena).run();
        }
    }

    private final class Run {
        private final Options options;
        private final BlockStore store;
        private final int port;
        private final long bytes;
        private final MemorySegment from;
        private final MemorySegment to;
        private final Map<String, List<Double>> rates = new TreeMap<>();

        private Run(Options options, BlockStore store, int port, Arena arena) {
            this.options = options;
            this.store = store;
            this.port = port;
            bytes = store.format().valueBytes();
            from = arena.allocate(options.values * bytes, 4096);
            to = arena.allocate(options.values * bytes, 4096);
            Random random = new Random(1);
            for (long at = 0; at < from.byteSize(); at += 8) {
                from.set(ValueLayout.JAVA_LONG, at, random.nextLong());
            }
        }

        private RedisStoreReport run() throws IOException {
            for (int round = 0; round <= options.rounds; round++) {
                boolean timed = round > 0;
                values(timed);
                lookups(timed);
                external(timed);
            }
            return new RedisStoreReport(bytes, options, Map.copyOf(rates));
        }

        private void values(boolean timed) throws IOException {
            flush();
            List<BlockHash> keys = keys(0, options.values);
            double put = seconds(keys.size(), () -> store.put(keys, ranges(from), Deadline.after(TICKER, DEADLINE)));
            add(timed, RedisStoreReport.PUT, keys.size() / put);
            to.fill((byte) 0);
            double get = seconds(keys.size(), () -> store.get(keys, ranges(to), Deadline.after(TICKER, DEADLINE)));
            add(timed, RedisStoreReport.GET, keys.size() / get);
            if (to.mismatch(from) >= 0) {
                throw new IOException("what was read is not what was put");
            }
        }

        /** Of keys that are there and of keys that are not: the values of the last round are asked for again and again. */
        private void lookups(boolean timed) throws IOException {
            List<BlockHash> there = keys(0, options.values);
            int times = Math.max(1, options.lookups / options.values);
            double hit = 0;
            for (int i = 0; i < times; i++) {
                hit += seconds(there.size(), () -> store.contains(there, Deadline.after(TICKER, DEADLINE)));
            }
            add(timed, RedisStoreReport.HIT, (double) times * there.size() / hit);
            List<BlockHash> absent = keys(1L << 32, options.lookups);
            add(
                    timed,
                    RedisStoreReport.MISS,
                    absent.size() / seconds(0, () -> store.contains(absent, Deadline.after(TICKER, DEADLINE))));
        }

        private void external(boolean timed) throws IOException {
            flush();
            String count = Integer.toString(options.values);
            // It chooses keys by chance: after so many nearly all are there.
            add(timed, RedisStoreReport.RAW_SET, benchmark(ofValues("set", SETS_PER_KEY * options.values), "SET"));
            add(timed, RedisStoreReport.RAW_GET, benchmark(ofValues("get", 2 * options.values), "GET"));
            add(
                    timed,
                    RedisStoreReport.RAW_EXISTS,
                    benchmark(
                            List.of(
                                    "-P",
                                    Integer.toString(PIPELINED_LOOKUPS),
                                    "-n",
                                    Integer.toString(Math.max(options.lookups, 100_000)),
                                    "-r",
                                    count,
                                    "EXISTS",
                                    "key:__rand_int__"),
                            "EXISTS"));
        }

        private List<String> ofValues(String test, int operations) {
            return List.of(
                    "-t",
                    test,
                    "-d",
                    Long.toString(bytes),
                    "-P",
                    Integer.toString(PIPELINED_VALUES),
                    "-n",
                    Integer.toString(operations),
                    "-r",
                    Integer.toString(options.values));
        }

        private void add(boolean timed, String name, double rate) {
            if (timed) {
                rates.computeIfAbsent(name, _ -> new ArrayList<>()).add(rate);
            }
        }

        private List<ValueRanges> ranges(MemorySegment memory) {
            ValueRanges ranges = new ValueRanges(memory);
            for (int i = 0; i < options.values; i++) {
                ranges.add(i, 0, i * bytes, bytes);
            }
            return List.of(ranges);
        }

        private static List<BlockHash> keys(long first, int count) {
            return LongStream.range(first, first + count)
                    .mapToObj(i -> new BlockHash(0x9e3779b97f4a7c15L * (i + 1), i, ~i, 31 * i))
                    .toList();
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
                throw new IOException("of %d keys %d have succeeded".formatted(expected, task.succeededCount()));
            }
            return seconds;
        }

        private void flush() throws IOException {
            try (Socket socket = new Socket(InetAddress.getLoopbackAddress(), port)) {
                socket.setSoTimeout((int) DEADLINE.toMillis());
                socket.getOutputStream().write("FLUSHALL\r\n".getBytes(StandardCharsets.US_ASCII));
                if (socket.getInputStream().read() != '+') {
                    throw new IOException("FLUSHALL is refused");
                }
            }
        }

        /** Operations a second of a test, from a line {@code "SET","1234.5",...}. */
        private double benchmark(List<String> arguments, String test) throws IOException {
            List<String> command = new ArrayList<>(List.of(
                    benchmark.toString(),
                    "-p",
                    Integer.toString(port),
                    "-c",
                    Integer.toString(options.connections),
                    "--csv"));
            command.addAll(arguments);
            Process process =
                    new ProcessBuilder(command).redirectErrorStream(true).start();
            try {
                String said = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
                if (!process.waitFor(DEADLINE.toSeconds(), TimeUnit.SECONDS)) {
                    throw new IOException("redis-benchmark does not end");
                }
                String start = "\"" + test;
                return said.lines()
                        .map(String::strip)
                        .filter(line -> line.toUpperCase(Locale.ROOT).startsWith(start))
                        .map(line -> Double.parseDouble(line.split("\",\"", -1)[1]))
                        .findFirst()
                        .orElseThrow(() -> new IOException("redis-benchmark says no figure of " + test + ": " + said));
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                throw new IOException("interrupted", e);
            } finally {
                process.destroyForcibly();
            }
        }
    }
}
