package baton.bench;

import baton.bench.frame.Column;
import baton.bench.frame.Layout;
import baton.bench.frame.Machine;
import baton.bench.frame.Rates;
import baton.bench.frame.Rounds;
import baton.bench.frame.Timing;
import baton.kv.BlockHash;
import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.KvLayout;
import baton.kv.ModelFingerprint;
import baton.kv.Require;
import baton.kv.TemporaryDirectory;
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
import baton.store.ValueRanges;
import baton.store.memory.HostMemorySettings;
import baton.store.memory.HostMemoryStore;
import baton.store.memory.SharedMemory;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Consumer;
import java.util.stream.IntStream;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

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
    private static final int WARM_UPS = 4;

    /** Llama-3.2-1B: 16 layers, 8 KV heads, head dimension 64, bfloat16. */
    private static final KvLayout LAYOUT = new KvLayout(16, 8, 64, 16, DType.BF16);

    private static final StoreFormat FORMAT = format(LAYOUT);

    /** Blocks of a small model, so that a store has very many. */
    private static final StoreFormat SMALL = format(new KvLayout(1, 1, 16, 8, DType.BF16));

    private static final int LOOKED_UP = 2000;
    private static final int STORED = 1 << 17;

    private static final String SHARES = " {%1$s/median_share_of_ranges|%%.0f|100} %%";

    /** How the figures are shown. */
    public static final Layout FIGURES = new Layout()
            .machine()
            .table(
                    "The store {store}, KV blocks of Llama-3.2-1B; GB/s of the best run (median), shares of plain copies likewise",
                    "sizes",
                    Column.of("tokens", "{tokens|%,d}"),
                    Column.of("ranks", "{ranks}"),
                    Column.of("copy", Rates.rate(COPY)),
                    Column.of("put", Rates.rate(PUT) + " " + Rates.share(PUT)),
                    Column.of("get", Rates.rate(GET) + " " + Rates.share(GET)))
            .table(
                    "The copying kernel alone with the same ranges, GB/s of the best run (median), and the shares of its median that put and get reach",
                    "sizes",
                    Column.of("tokens", "{tokens|%,d}"),
                    Column.of("ranks", "{ranks}"),
                    Column.of("put", Rates.rate(RANGES_OUT) + SHARES.formatted(PUT)),
                    Column.of("get", Rates.rate(RANGES_IN) + SHARES.formatted(GET)))
            .line("\ncontains of {contains/keys|%,d} keys, of {contains/stored|%,d} that are there:"
                    + " {contains/seconds|%.1f|1e6} us (median {contains/median_seconds|%.1f|1e6} us)");

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

    /** Opens a store in a directory that is removed as soon as the store is open. */
    private static BlockStore shared(StoreFormat format, int values, int threads) throws IOException {
        try (TemporaryDirectory directory = TemporaryDirectory.inMemory("baton-")) {
            return host(
                    format,
                    settings(format, values, threads)
                            .withShared(Optional.of(new SharedMemory(directory.path(), "bench"))));
        }
    }

    /** @throws ConfigException if there is no such store, or a number is not positive */
    public StoreBench {
        if (!STORES.contains(store)) {
            throw ConfigException.unsupported("store", store, String.join(", ", STORES));
        }
        Require.positive("threads", threads);
        Require.positive("seconds", each);
        for (int count : ranks) {
            if (count <= 0 || LAYOUT.kvHeads() % count != 0) {
                throw new ConfigException(
                        "ranks", "has %d, must have divisors of %d heads".formatted(count, LAYOUT.kvHeads()));
            }
        }
        Require.multiples("tokens", tokens, LAYOUT.blockSize());
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
     * @throws IOException if the store cannot be opened, or an operation fails
     */
    public void run(ObjectNode json) throws IOException {
        json.put("store", store).put("threads", threads);
        Machine.here().writeTo(json.putObject("machine"));
        ArrayNode sizes = json.putArray("sizes");
        for (int count : tokens) {
            for (int parts : ranks) {
                progress.accept("%d tokens, ranks: %d".formatted(count, parts));
                measure(count / LAYOUT.blockSize(), parts, sizes.addObject());
            }
        }
        progress.accept("looking up %d of %d keys".formatted(LOOKED_UP, STORED));
        Timing lookUp = lookUp();
        json.putObject("contains")
                .put("keys", LOOKED_UP)
                .put("stored", STORED)
                .put("seconds", lookUp.best())
                .put("median_seconds", lookUp.median());
    }

    private void measure(int blocks, int parts, ObjectNode json) throws IOException {
        try (Arena arena = Arena.ofShared();
                BlockStore opened = opener().open(FORMAT, 2 * blocks, threads);
                ParallelCopier copier = new ParallelCopier("bench", threads, CopyKernel.ofThisMachine())) {
            List<MemorySegment> pools = pools(arena, blocks, parts);
            List<ValueRanges> ranges = scattered(pools, blocks);
            StoredValues values = new StoredValues(opened, blocks, ranges, ranges);
            Copies copies = new Copies(arena, copier, pools);
            RangeCopies rows = new RangeCopies(arena, copier, ranges, blocks);
            AtomicLong batch = new AtomicLong();
            Rounds rounds = new Rounds()
                    .add(COPY, copies::run)
                    .add(PUT, () -> values.put(values.keys(batch.incrementAndGet())))
                    .add(GET, () -> values.get(values.keys(batch.get())))
                    .add(RANGES_OUT, () -> rows.run(true))
                    .add(RANGES_IN, () -> rows.run(false));
            rounds.warmUp(WARM_UPS);
            json.put("tokens", blocks * LAYOUT.blockSize()).put("ranks", parts);
            rounds.run(ROUNDS, each, () -> {
                Rates.write(json, rounds, blocks * FORMAT.valueBytes());
                Rates.share(json, PUT, RANGES_OUT, "_of_ranges");
                Rates.share(json, GET, RANGES_IN, "_of_ranges");
                Rates.share(json, PUT, COPY);
                Rates.share(json, GET, COPY);
            });
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

    /** Blocks in random places of all pools, each rank's share of a block in its own. */
    private static List<ValueRanges> scattered(List<MemorySegment> pools, int blocks) {
        List<Integer> places =
                new ArrayList<>(IntStream.range(0, blocks).boxed().toList());
        Collections.shuffle(places, new Random(3));
        long share = LAYOUT.layerBytes() / pools.size();
        List<ValueRanges> ranges = new ArrayList<>();
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
        return ranges;
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

        private double run() throws Exception {
            return Rounds.seconds(() -> {
                Copying copying = new Copying();
                copier.start(copying, copying, copies);
                StoredValues.await(copying.over);
            });
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

        private double run(boolean out) throws Exception {
            return Rounds.seconds(() -> {
                Copying copying = new Copying();
                List<CopyRanges> sources =
                        ranges.stream().map(each -> ranges(each, out)).toList();
                copier.startRanges(copying, copying, sources, values.byteSize(), false);
                StoredValues.await(copying.over);
            });
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
        try (Arena arena = Arena.ofShared();
                BlockStore opened = opener().open(SMALL, STORED, threads)) {
            long bytes = SMALL.valueBytes();
            List<ValueRanges> ranges = StoredValues.inARow(arena.allocate(LOOKED_UP * bytes, 64), LOOKED_UP, bytes);
            StoredValues values = new StoredValues(opened, LOOKED_UP, ranges, ranges);
            List<List<BlockHash>> batches = new ArrayList<>();
            for (int i = 0; i < STORED / LOOKED_UP; i++) {
                batches.add(values.keys(i));
                values.put(batches.getLast());
            }
            Random random = new Random(5);
            List<Double> seconds = new ArrayList<>();
            long end = System.nanoTime() + each.toNanos();
            do {
                Collections.shuffle(batches, random);
                for (List<BlockHash> keys : batches) {
                    seconds.add(values.contains(keys, LOOKED_UP));
                }
            } while (System.nanoTime() < end);
            return Timing.of(seconds);
        }
    }
}
