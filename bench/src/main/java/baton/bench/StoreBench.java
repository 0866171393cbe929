package baton.bench;

import baton.bench.StoreReport.Rate;
import baton.bench.StoreReport.Size;
import baton.kv.BlockHash;
import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.Deadline;
import baton.kv.KvLayout;
import baton.kv.ModelFingerprint;
import baton.kv.Ticker;
import baton.memory.CopyKernel;
import baton.memory.CopyPlan;
import baton.memory.CopyRanges;
import baton.memory.Gate;
import baton.memory.MappableMemory;
import baton.memory.ParallelCopier;
import baton.memory.ParallelCopier.Copy;
import baton.store.BlockStore;
import baton.store.StoreFormat;
import baton.store.StoreTask;
import baton.store.ValueRanges;
import baton.store.memory.HostMemorySettings;
import baton.store.memory.HostMemoryStore;
import baton.store.memory.SharedMemory;
import baton.store.prompt.ScratchDirectory;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.stream.IntStream;

/**
 * Measures how fast a block store takes and gives KV blocks, and in the same run, in turns, plain copies of as many bytes with as many
 * threads, each as large as a pool.
 *
 * <p>A store moves pieces of blocks, which the memory is slower with than with whole pools: so the same ranges are also copied by the copying
 * kernel alone, between the pools and a memory where values are as in a store.
 *
 * <p>Each key is put once, so that a put stores and, when the store is full, evicts. Blocks are scattered over the pools.
 *
 * @param store name of a store, one of {@link #STORES}
 * @param threads that copy
 * @param tokens of each operation
 * @param ranks tensor-parallel ranks, each with a pool of its own and its heads of each block in it
 * @param each how long each case of each size is measured
 * @param progress receives a line for each step
 */
public record StoreBench(
        String store,
        int threads,
        List<Integer> tokens,
        List<Integer> ranks,
        Duration each,
        Consumer<String> progress) {
    public static final List<Integer> TOKENS = List.of(128, 512, 2048, 8192);
    public static final List<Integer> RANKS = List.of(1, 2, 8);

    static final String COPY = "copy";
    static final String PUT = "put";
    static final String GET = "get";

    /** The copying kernel with the same ranges as {@link #PUT} and {@link #GET}. */
    static final String RANGES_OUT = "copy of the ranges put";

    static final String RANGES_IN = "copy of the ranges got";

    private static final int ROUNDS = 7;
    private static final Duration DEADLINE = Duration.ofMinutes(1);

    /** Llama-3.2-1B: 16 layers, 8 KV heads, head dimension 64, bfloat16. */
    private static final KvLayout LAYOUT = new KvLayout(16, 8, 64, 16, DType.BF16);

    private static final StoreFormat FORMAT = format(LAYOUT);

    /** Blocks of a small model, so that a store has very many. */
    private static final StoreFormat SMALL = format(new KvLayout(1, 1, 16, 8, DType.BF16));

    private static final int LOOKED_UP = 2000;
    private static final int STORED = 1 << 17;

    private static StoreFormat format(KvLayout layout) {
        return new StoreFormat(new ModelFingerprint("bench", "0".repeat(64)), layout, 1, 0, 0);
    }

    private interface Opener {
        /** @param values that it has room for */
        BlockStore open(StoreFormat format, int values, int threads) throws IOException;
    }

    private static final Map<String, Opener> OPENERS = Collections.unmodifiableMap(new TreeMap<>(Map.of(
            "cpu",
            (format, values, threads) -> host(format, settings(format, values, threads)),
            "cpu-unchecked",
            (format, values, threads) ->
                    host(format, settings(format, values, threads).withChecksums(false)),
            "cpu-shared",
            StoreBench::shared)));

    /** Stores by name. */
    public static final Set<String> STORES = OPENERS.keySet();

    private static HostMemorySettings settings(StoreFormat format, int values, int threads) {
        return HostMemorySettings.of(values * format.valueBytes())
                .withThreads(threads)
                .withEvents(false);
    }

    private static BlockStore host(StoreFormat format, HostMemorySettings settings) throws IOException {
        return HostMemoryStore.open(format, settings, Ticker.system());
    }

    /** In a directory that is removed as soon as the store is open. */
    private static BlockStore shared(StoreFormat format, int values, int threads) throws IOException {
        try (ScratchDirectory directory = ScratchDirectory.create()) {
            return host(
                    format, settings(format, values, threads).withShared(new SharedMemory(directory.path(), "bench")));
        }
    }

    /** @throws ConfigException if there is no such store, or a number is not positive */
    public StoreBench {
        if (!STORES.contains(store)) {
            throw ConfigException.unsupported("store", store, String.join(", ", STORES));
        }
        if (threads <= 0) {
            throw new ConfigException("threads", "is " + threads + ", must be positive");
        }
        if (!each.isPositive()) {
            throw new ConfigException("seconds", "is " + each.toMillis() / 1e3 + ", must be positive");
        }
        for (int count : ranks) {
            if (count <= 0 || LAYOUT.kvHeads() % count != 0) {
                throw new ConfigException(
                        "ranks", "has %d, must have divisors of %d heads".formatted(count, LAYOUT.kvHeads()));
            }
        }
        tokens = TokenCounts.require(tokens, LAYOUT.blockSize());
        ranks = List.copyOf(ranks);
    }

    private Opener opener() {
        Opener opener = OPENERS.get(store);
        if (opener == null) {
            throw new IllegalStateException("store=" + store);
        }
        return opener;
    }

    /**
     * Measures.
     *
     * @throws IOException if the store cannot be opened
     */
    public StoreReport run() throws IOException {
        List<Size> sizes = new ArrayList<>();
        for (int count : tokens) {
            for (int parts : ranks) {
                progress.accept("%d tokens, ranks: %d".formatted(count, parts));
                sizes.add(measure(count / LAYOUT.blockSize(), parts));
            }
        }
        progress.accept("looking up %d of %d keys".formatted(LOOKED_UP, STORED));
        return new StoreReport(store, Machine.here(), threads, LOOKED_UP, STORED, lookUp(), sizes);
    }

    private interface Case {
        /** @return seconds that it took */
        double run();
    }

    private static List<Double> list(Map<String, List<Double>> seconds, String name) {
        return seconds.computeIfAbsent(name, _ -> new ArrayList<>());
    }

    private Size measure(int blocks, int parts) throws IOException {
        try (Arena arena = Arena.ofShared();
                BlockStore opened = opener().open(FORMAT, 2 * blocks, threads);
                ParallelCopier copier = new ParallelCopier("bench", threads, CopyKernel.ofThisMachine())) {
            Operations operations = new Operations(opened, blocks, pools(arena, blocks, parts));
            Copies copies = new Copies(arena, copier, operations.pools);
            operations.put();
            Map<String, Case> cases = new LinkedHashMap<>();
            cases.put(COPY, copies::run);
            cases.put(PUT, operations::put);
            cases.put(GET, operations::get);
            RangeCopies rows = new RangeCopies(arena, copier, operations.ranges, blocks);
            cases.put(RANGES_OUT, () -> rows.run(true));
            cases.put(RANGES_IN, () -> rows.run(false));
            for (int i = 0; i < 3; i++) {
                cases.values().forEach(Case::run);
            }
            Map<String, List<Double>> seconds = new LinkedHashMap<>();
            long share = each.dividedBy(ROUNDS).toNanos();
            for (int round = 0; round < ROUNDS; round++) {
                for (Map.Entry<String, Case> one : cases.entrySet()) {
                    long end = System.nanoTime() + share;
                    do {
                        list(seconds, one.getKey()).add(one.getValue().run());
                    } while (System.nanoTime() < end);
                }
            }
            Map<String, Rate> rates = new LinkedHashMap<>();
            seconds.forEach((name, times) -> rates.put(name, new Rate(blocks * FORMAT.valueBytes(), Timing.of(times))));
            return new Size(blocks * LAYOUT.blockSize(), parts, rates);
        }
    }

    private static List<MemorySegment> pools(Arena arena, int blocks, int parts) {
        return IntStream.range(0, parts)
                .mapToObj(_ -> allocate(arena, blocks * FORMAT.valueBytes() / parts))
                .toList();
    }

    private static MemorySegment allocate(Arena arena, long bytes) {
        MemorySegment memory = MappableMemory.whyNone().isEmpty()
                ? MappableMemory.allocate(arena, bytes, "bench").memory()
                : arena.allocate(bytes, 64);
        return memory.fill((byte) 3);
    }

    /** What is asked of a store: blocks of all pools, by keys that are new for each put. */
    private static final class Operations {
        private final BlockStore store;
        private final int blocks;
        private final List<MemorySegment> pools;
        private final List<ValueRanges> ranges = new ArrayList<>();
        private final Random random = new Random(3);
        private List<BlockHash> keys = List.of();

        private Operations(BlockStore store, int blocks, List<MemorySegment> pools) {
            this.store = store;
            this.blocks = blocks;
            this.pools = pools;
            List<Integer> places =
                    new ArrayList<>(IntStream.range(0, blocks).boxed().toList());
            Collections.shuffle(places, random);
            long share = LAYOUT.layerBytes() / pools.size();
            for (int rank = 0; rank < pools.size(); rank++) {
                ValueRanges ofRank = new ValueRanges(pools.get(rank));
                for (int block = 0; block < blocks; block++) {
                    for (int layer = 0; layer < LAYOUT.layers(); layer++) {
                        ofRank.add(
                                block,
                                LAYOUT.layerOffset(layer) + rank * share,
                                ((long) places.get(block) * LAYOUT.layers() + layer) * share,
                                share);
                    }
                }
                ranges.add(ofRank);
            }
        }

        private double put() {
            keys = keys(random, blocks);
            return timed(PUT, () -> store.put(keys, ranges, deadline()), blocks);
        }

        private double get() {
            return timed(GET, () -> store.get(keys, ranges, deadline()), blocks);
        }
    }

    private static List<BlockHash> keys(Random random, int count) {
        return IntStream.range(0, count)
                .mapToObj(
                        _ -> new BlockHash(random.nextLong(), random.nextLong(), random.nextLong(), random.nextLong()))
                .toList();
    }

    private static Deadline deadline() {
        return Deadline.after(Ticker.system(), DEADLINE);
    }

    private interface Start {
        StoreTask start();
    }

    private static double timed(String what, Start operation, int expected) {
        long begun = System.nanoTime();
        StoreTask task = operation.start();
        CountDownLatch over = new CountDownLatch(1);
        task.onQuiet(over::countDown);
        await(over);
        double seconds = (System.nanoTime() - begun) / 1e9;
        if (task.succeededCount() != expected) {
            throw new IllegalStateException(
                    "%s has succeeded for %d of %d keys".formatted(what, task.succeededCount(), expected));
        }
        return seconds;
    }

    /** The threads that copy need the processors meanwhile. */
    private static void await(CountDownLatch over) {
        try {
            if (!over.await(DEADLINE.toNanos(), TimeUnit.NANOSECONDS)) {
                throw new IllegalStateException("copying took longer than " + DEADLINE);
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException("interrupted", e);
        }
    }

    /** Plain copies of pools as they are. */
    private static final class Copies {
        private final ParallelCopier copier;
        private final List<Copy> copies;

        private Copies(Arena arena, ParallelCopier copier, List<MemorySegment> pools) {
            this.copier = copier;
            this.copies = pools.stream()
                    .map(pool -> new Copy(pool, allocate(arena, pool.byteSize())))
                    .toList();
        }

        private double run() {
            long begun = System.nanoTime();
            Copying copying = new Copying();
            copier.start(copying, copying, copies);
            await(copying.over);
            return (System.nanoTime() - begun) / 1e9;
        }
    }

    /** Copies of ranges of pools to where values lie one after the other, and back. */
    private static final class RangeCopies {
        private final ParallelCopier copier;
        private final List<ValueRanges> ranges;
        private final MemorySegment values;

        private RangeCopies(Arena arena, ParallelCopier copier, List<ValueRanges> ranges, int blocks) {
            this.copier = copier;
            this.ranges = ranges;
            values = allocate(arena, blocks * FORMAT.valueBytes());
        }

        private double run(boolean out) {
            long begun = System.nanoTime();
            Copying copying = new Copying();
            List<CopyRanges> sources =
                    ranges.stream().map(each -> ranges(each, out)).toList();
            copier.startRanges(copying, copying, sources, values.byteSize(), false);
            await(copying.over);
            return (System.nanoTime() - begun) / 1e9;
        }

        private CopyRanges ranges(ValueRanges of, boolean out) {
            return new CopyRanges() {
                @Override
                public int size() {
                    return of.size();
                }

                @Override
                public long bytes(int range) {
                    return of.bytes(range);
                }

                @Override
                public CopyPlan newPlan() {
                    return out
                            ? new CopyPlan(of.memory(), values, Optional.empty())
                            : new CopyPlan(values, of.memory(), Optional.empty());
                }

                @Override
                public void addTo(CopyPlan plan, int range, long at, long length) {
                    long inMemory = of.memoryOffset(range) + at;
                    long inValues = of.key(range) * FORMAT.valueBytes() + of.valueOffset(range) + at;
                    plan.add(0, 0, out ? inMemory : inValues, out ? inValues : inMemory, length);
                }
            };
        }
    }

    private static final class Copying extends Gate<Boolean> implements ParallelCopier.Completion {
        private final CountDownLatch over = new CountDownLatch(1);

        @Override
        protected void over(Boolean end) {
            over.countDown();
        }

        @Override
        public void copied() {
            end(true);
        }

        @Override
        public void failed(Throwable cause) {
            throw new IllegalStateException(cause);
        }

        @Override
        public void rejected() {
            throw new IllegalStateException("the copier is closed");
        }
    }

    /** Seconds of a look-up of many keys that are there, other ones each time. */
    private Timing lookUp() throws IOException {
        Random random = new Random(5);
        try (Arena arena = Arena.ofShared();
                BlockStore opened = opener().open(SMALL, STORED, threads)) {
            List<List<BlockHash>> batches = new ArrayList<>();
            MemorySegment memory = arena.allocate(LOOKED_UP * SMALL.valueBytes(), 64);
            ValueRanges ranges = new ValueRanges(memory);
            for (int i = 0; i < LOOKED_UP; i++) {
                ranges.add(i, 0, i * SMALL.valueBytes(), SMALL.valueBytes());
            }
            for (int i = 0; i < STORED / LOOKED_UP; i++) {
                List<BlockHash> keys = keys(random, LOOKED_UP);
                timed(PUT, () -> opened.put(keys, List.of(ranges), deadline()), LOOKED_UP);
                batches.add(keys);
            }
            List<Double> seconds = new ArrayList<>();
            long end = System.nanoTime() + each.toNanos();
            do {
                Collections.shuffle(batches, random);
                for (List<BlockHash> keys : batches) {
                    seconds.add(timed("contains", () -> opened.contains(keys, deadline()), LOOKED_UP));
                }
            } while (System.nanoTime() < end);
            return Timing.of(seconds);
        }
    }
}
