package baton.engine.core;

import baton.engine.kernel.ParallelFor;
import baton.engine.model.Logits;
import baton.engine.model.ModelConfig;
import baton.engine.model.ModelRunner;
import baton.kv.DType;
import baton.kv.KvCache;
import baton.kv.KvFence;
import baton.kv.KvGroups;
import baton.kv.KvGroups.Group;
import baton.kv.KvLayout;
import baton.kv.KvMemory;
import baton.kv.ModelFingerprint;
import baton.kv.connector.HiddenState;
import baton.testkit.RefusingMemory;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.IntStream;

/**
 * A model in which the next token depends on every token before it, read from the cache only: a token's key is its id, its value its
 * position. A lost, stale or misplaced cache entry changes the output.
 */
public final class OracleRunner implements ModelRunner {
    public static final int VOCABULARY = 97;
    public static final ModelFingerprint FINGERPRINT = new ModelFingerprint("oracle", "00ff");
    public static final int LAYERS = 2;

    private final Arena arena;
    private final boolean device;
    private final KvGroups groups;
    private final int layers;
    /** The cache's bytes. */
    private final MemorySegment pool;

    private final KvCache cache;
    private final ModelConfig config;
    /** Slices run so far, for tests that count computed tokens. */
    final List<SequenceSlice> computed = new ArrayList<>();

    OracleRunner(int blocks, int blockSize) {
        this(Arena.ofShared(), blocks, blockSize);
    }

    public OracleRunner(Arena arena, int blocks, int blockSize) {
        this(arena, blocks, blockSize, false, KvGroups.one(LAYERS));
    }

    /**
     * @param arena for the cache; closed with this runner
     * @param device whether the cache is a device's, which computes a layer when its fence is awaited
     * @param groups of the layers, which attend as far back as their windows reach
     */
    public OracleRunner(Arena arena, int blocks, int blockSize, boolean device, KvGroups groups) {
        this.arena = arena;
        this.device = device;
        this.groups = groups;
        this.layers = groups.layers();
        KvLayout layout = new KvLayout(groups.layersOfBlock(), 1, 1, blockSize, DType.F32);
        pool = arena.allocate(blocks * layout.blockBytes());
        KvMemory memory = device ? new RefusingMemory(pool).memory() : new KvMemory.Host(pool, Optional.empty());
        List<String> names =
                IntStream.range(0, layers).mapToObj(layer -> "layers." + layer).toList();
        cache = new KvCache(memory, layout, blocks, names, groups);
        config = new ModelConfig(
                "oracle", VOCABULARY, 1, 1, layers, 1, 1, 1, 1 << 20, 1e-5, 1e4, Optional.empty(), true, DType.F32);
    }

    private int poison = -1;
    /** Logits after that token are no numbers. */
    int unusableAfter = -1;
    /** Threads that have asked for {@link #threads}, by name. */
    final Set<String> loopingThreads = ConcurrentHashMap.newKeySet();

    /** The time of the last {@link #forward}. */
    long forwardNanos;

    /** Makes {@link #forward} fail on that token. */
    void poison(int token) {
        poison = token;
    }

    /** The token that follows these. */
    public static int next(int[] tokens) {
        return next(tokens, KvGroups.one(LAYERS));
    }

    /** The token that follows these, by layers of these groups: the first layer, and others that have a window, choose it. */
    public static int next(int[] tokens, KvGroups groups) {
        long state = 17;
        for (int layer = 0; layer < groups.layers(); layer++) {
            Group group = groups.groups().get(groups.groupOf(layer));
            for (int position = group.firstOf(tokens.length - 1);
                    chooses(layer, group) && position < tokens.length;
                    position++) {
                state = mix(state, tokens[position], position);
            }
        }
        return (int) Long.remainderUnsigned(state, VOCABULARY);
    }

    private static boolean chooses(int layer, Group group) {
        return layer == 0 || group.window().isPresent();
    }

    /** Writes the entry that {@link #forward} would write for that token. */
    static void write(KvCache cache, int layer, int[] blockTable, int position, int token) {
        write(cache.host(), cache, layer, blockTable, position, token);
    }

    private static void write(MemorySegment pool, KvCache cache, int layer, int[] blockTable, int position, int token) {
        KvLayout layout = cache.layout();
        long at = cache.layerStart(blockTable[position / layout.blockSize()], layer)
                + (position % layout.blockSize()) * layout.entryBytes();
        pool.set(ValueLayout.JAVA_FLOAT, at, token);
        pool.set(ValueLayout.JAVA_FLOAT, at + 4, position);
    }

    private static long mix(long state, int token, int position) {
        return (state ^ (token * 31L + position)) * 0x9E3779B97F4A7C15L ^ (state >>> 29);
    }

    @Override
    public ModelConfig config() {
        return config;
    }

    @Override
    public ModelFingerprint fingerprint() {
        return FINGERPRINT;
    }

    @Override
    public KvCache cache() {
        return cache;
    }

    @Override
    public Logits forward(List<SequenceSlice> slices, LayerHooks hooks) {
        long start = System.nanoTime();
        try {
            return compute(slices, hooks);
        } finally {
            forwardNanos = System.nanoTime() - start;
        }
    }

    @Override
    public ParallelFor threads() {
        loopingThreads.add(Thread.currentThread().getName());
        return ParallelFor.alone();
    }

    private Logits compute(List<SequenceSlice> slices, LayerHooks hooks) {
        for (SequenceSlice slice : slices) {
            if (Arrays.stream(slice.tokens()).anyMatch(token -> token == poison)) {
                throw new IllegalStateException("poisoned token");
            }
        }
        computed.addAll(slices);
        List<KvFence> launched = new ArrayList<>();
        for (int layer = 0; layer < layers; layer++) {
            KvFence computed = new Layer(layer, slices, hooks.beforeLayer(layer));
            if (!device) {
                computed.await();
            }
            launched.add(computed);
            hooks.afterLayer(layer, computed);
        }
        launched.forEach(KvFence::await);
        for (int index : hooks.hiddenWanted()) {
            SequenceSlice slice = slices.get(index);
            hooks.hidden(index, hidden(predict(slice.blockTables(), slice.start() + slice.tokens().length - 1)));
        }
        List<Integer> rows = new ArrayList<>();
        Set<Integer> unusable = new HashSet<>();
        for (SequenceSlice slice : slices) {
            if (slice.hidden().isPresent()) {
                rows.add((int) slice.hidden().get().data().get(ValueLayout.JAVA_FLOAT_UNALIGNED, 0));
                continue;
            }
            int end = slice.start() + slice.tokens().length;
            for (int position = end - slice.logits(); position < end; position++) {
                if (slice.tokens()[position - slice.start()] == unusableAfter) {
                    unusable.add(rows.size());
                }
                rows.add(predict(slice.blockTables(), position));
            }
        }
        return new OneHot(rows, unusable);
    }

    /** A layer that is computed when its fence is awaited. */
    private final class Layer implements KvFence {
        private final int layer;
        private final List<SequenceSlice> slices;
        private final KvFence loaded;
        private boolean computed;

        private Layer(int layer, List<SequenceSlice> slices, KvFence loaded) {
            this.layer = layer;
            this.slices = slices;
            this.loaded = loaded;
        }

        @Override
        public boolean isPassed() {
            return computed;
        }

        @Override
        public void await() {
            if (computed) {
                return;
            }
            computed = true;
            loaded.await();
            for (SequenceSlice slice : slices) {
                for (int i = 0; i < slice.tokens().length; i++) {
                    write(
                            pool,
                            cache,
                            layer,
                            slice.blockTables()[groups.groupOf(layer)],
                            slice.start() + i,
                            slice.tokens()[i]);
                }
            }
        }
    }

    /** The cache's bytes, also if it is a device's. */
    public MemorySegment pool() {
        return pool;
    }

    /** The hidden state from which that token follows. */
    static HiddenState hidden(int next) {
        return new HiddenState(DType.F32, MemorySegment.ofArray(new float[] {next}));
    }

    @Override
    public boolean takes(HiddenState state) {
        return state.dtype() == DType.F32 && state.data().byteSize() == Float.BYTES;
    }

    private int predict(int[][] blockTables, int lastPosition) {
        long state = 17;
        for (int layer = 0; layer < layers; layer++) {
            Group group = groups.groups().get(groups.groupOf(layer));
            int[] blockTable = blockTables[groups.groupOf(layer)];
            for (int position = group.firstOf(lastPosition); position <= lastPosition; position++) {
                long at = cache.entryStart(blockTable, layer, 0, position);
                int token = (int) pool.get(ValueLayout.JAVA_FLOAT, at);
                int stored = (int) pool.get(ValueLayout.JAVA_FLOAT, at + 4);
                if (chooses(layer, group)) {
                    state = mix(state, token, stored);
                } else if (stored != position) {
                    state = ~state;
                }
            }
        }
        return (int) Long.remainderUnsigned(state, VOCABULARY);
    }

    @Override
    public void close() {
        arena.close();
    }

    private static final class OneHot implements Logits {
        private static final long ROW_BYTES = 4L * VOCABULARY;

        // Made by a rank and read by the engine.
        private final Arena arena = Arena.ofShared();
        private final MemorySegment values;
        private final List<Integer> best;

        private OneHot(List<Integer> best, Set<Integer> unusable) {
            this.best = best;
            values = arena.allocate(ROW_BYTES * Math.max(1, best.size()));
            for (int row = 0; row < best.size(); row++) {
                row(row).setAtIndex(ValueLayout.JAVA_FLOAT, best.get(row), unusable.contains(row) ? Float.NaN : 10f);
            }
        }

        @Override
        public int rows() {
            return best.size();
        }

        @Override
        public int vocabularySize() {
            return VOCABULARY;
        }

        @Override
        public MemorySegment row(int row) {
            return values.asSlice(ROW_BYTES * row, ROW_BYTES);
        }

        @Override
        public int argmax(int row) {
            return best.get(row);
        }

        @Override
        public void close() {
            arena.close();
        }
    }
}
