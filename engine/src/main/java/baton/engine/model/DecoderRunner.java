package baton.engine.model;

import baton.engine.model.Batch.Chunk;
import baton.engine.model.Batch.Group;
import baton.engine.model.RowMath.Heads;
import baton.engine.model.RowMath.NormWeights;
import baton.engine.model.Weights.HeadNorms;
import baton.engine.model.Weights.LayerWeights;
import baton.engine.model.Weights.Owned;
import baton.kv.DType;
import baton.kv.KvCache;
import baton.kv.KvLayout;
import baton.kv.ModelFingerprint;
import baton.kv.connector.HiddenState;
import baton.transfer.MappableMemory;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.stream.IntStream;
import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.InferenceMode;
import org.bytedeco.pytorch.LongOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptional;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

/*
 * Shapes. T rows (tokens) of a batch, H query heads, G key/value heads, R = H / G query heads that share one, D head dim.
 * The tokens of all sequences go through norms, projections and the feed-forward layer as one [T, hidden] matrix.
 *
 * The fused projection gives [T, H*D + G*2D]: all queries, then for each key/value head its key and its value side by side. So
 * the right part of a row is the entries of the KV cache, and a token's entry of one head is one run of bytes to copy.
 *
 * Attention never repeats keys for the R queries that share them. A sequence's first chunk attends, if it is long, with batch = G, heads = R
 * and the head stride of the keys being 0. Any other is cut into runs of rows, each with a mask, and the R queries of a row stand as rows of one
 * head: only with many rows does PyTorch's flash kernel for CPUs take large tiles, which are faster. Single tokens are taken together: batch = G,
 * heads = sequences, and the R queries stand where query positions would, so a sequence's keys are read once for all of them.
 * Fewer queries than the matrix unit takes attend in fp32, for which the kernel is much faster than for bf16 without that unit.
 *
 * Native memory. Every tensor made in a forward pass belongs to a PointerScope that ends within it; what lives longer is made at
 * load, listed in `owned`, and freed by close. Nothing waits for the garbage collector.
 */
final class DecoderRunner implements ModelRunner {
    /** Rows of a later chunk that share one mask. */
    private static final int MASKED_ROWS = 512;

    /**
     * Queries of a head that are taken together where rows are fewer, R of each: enough for the kernel's large tiles. Their mask is R
     * times as large, so more rows stay unstacked: with 512 it gains little.
     */
    private static final int STACKED_ROWS = 1024;

    /** Rows from which on the kernel takes large tiles by itself, and leaves out what is later than all queries of a tile. */
    private static final int LARGE_TILE_ROWS = 768;

    /**
     * Rows that go through everything but attention together: enough for full speed, and few enough that activations are memory
     * that the allocator keeps, not pages that the kernel has to clear each time.
     */
    private static final int PIECE_ROWS = 1024;

    /**
     * Queries from which on the bf16 kernel of attention uses the processor's matrix unit. With fewer fp32 is far faster; with half as
     * many it pays to fill up with zeros.
     */
    private static final int FLASH_ROWS = 64;

    private static final short BF16_MINUS_INFINITY = (short) 0xff80;

    /** Attention is computed over multiples of this many positions: it has kernels by length, which are kept, and a mask is cheaper. */
    private static final int CONTEXT_STEP = 64;

    /** Rows that a thread copies at once. */
    private static final int COPIED_ROWS = 32;

    /** Bytes that a thread copies at once: fewer are copied sooner than another thread has begun. */
    private static final int COPIED_BYTES = 64 << 10;

    private final Shard shard;
    /** The model as far as this rank has it. */
    private final ModelConfig config;

    private final Collective.Member ranks;
    private final ModelFingerprint fingerprint;
    private final KvLayout layout;
    private final KvCache cache;
    private final int maxPositions;
    private final int threads;
    private final DType dtype;
    private final ScalarType type;
    private final ScalarType cacheType;
    private final Team team;
    private final RowMath rowMath;
    private final Arena arena;
    private final Owned owned;
    private final Weights weights;
    private final int rowElements;
    private final int queryElements;

    /** By layer, how many positions a token attends to. */
    private final int[] reach;

    private boolean closed;
    private Arena logitsArena = Arena.ofShared();
    private MemorySegment logitsMemory = MemorySegment.NULL;
    private long threadConfigured = -1;

    private DecoderRunner(
            Shard shard,
            Collective.Member ranks,
            ModelFingerprint fingerprint,
            KvCache cache,
            int maxPositions,
            int threads,
            DType dtype,
            Arena arena,
            Owned owned,
            Weights weights) {
        this.shard = shard;
        this.config = shard.config();
        this.ranks = ranks;
        this.fingerprint = fingerprint;
        this.cache = cache;
        this.layout = cache.layout();
        this.maxPositions = maxPositions;
        this.threads = threads;
        this.dtype = dtype;
        this.type = LibTorch.scalarType(dtype);
        this.cacheType = LibTorch.scalarType(layout.dtype());
        this.team = new Team(threads, arena);
        this.rowMath = new RowMath(dtype, team);
        this.arena = arena;
        this.owned = owned;
        this.weights = weights;
        this.queryElements = config.heads() * config.headDim();
        this.rowElements = queryElements + 2 * config.kvHeads() * config.headDim();
        this.reach = IntStream.range(0, config.layers())
                .map(layer -> shard.model().attendedPositions(shard.layers().first() + layer))
                .toArray();
    }

    /**
     * Loads a rank.
     *
     * @param layout of this rank's pool
     * @param mappable whether other processes shall be able to map the pool
     * @param first the first rank of the model, if this is another
     */
    static DecoderRunner load(
            Checkpoint checkpoint,
            ModelFingerprint fingerprint,
            DType dtype,
            Quantization quantization,
            Shard shard,
            Collective.Member ranks,
            KvLayout layout,
            int blocks,
            int threads,
            int maxPositions,
            boolean mappable,
            Optional<DecoderRunner> first)
            throws IOException {
        Arena arena = Arena.ofShared();
        Owned owned = new Owned();
        try {
            long bytes = Math.multiplyExact(layout.blockBytes(), (long) blocks);
            // Not always mappable: few kernels grant huge pages to memory that can be shared.
            Optional<MappableMemory> shared =
                    mappable ? Optional.of(MappableMemory.allocate(arena, bytes, "the KV cache")) : Optional.empty();
            MemorySegment pool =
                    shared.map(MappableMemory::memory).orElseGet(() -> Pages.allocate(arena, bytes, "the KV cache"));
            int firstLayer = shard.layers().first();
            List<String> names = IntStream.range(firstLayer, firstLayer + layout.layers())
                    .mapToObj("model.layers.%d.self_attn.attn"::formatted)
                    .toList();
            Weights weights = Weights.load(
                    checkpoint,
                    shard,
                    dtype,
                    quantization,
                    threads,
                    maxPositions,
                    arena,
                    owned,
                    first.map(each -> each.weights));
            return new DecoderRunner(
                    shard,
                    ranks,
                    fingerprint,
                    new KvCache(pool, layout, blocks, names, shared.map(MappableMemory::file)),
                    maxPositions,
                    threads,
                    dtype,
                    arena,
                    owned,
                    weights);
        } catch (IOException | RuntimeException | Error e) {
            owned.close();
            arena.close();
            throw e;
        }
    }

    /** Bytes of native memory that hold the weights. */
    long weightBytes() {
        return owned.bytes();
    }

    @Override
    public ModelConfig config() {
        return shard.model();
    }

    @Override
    public ModelFingerprint fingerprint() {
        return fingerprint;
    }

    @Override
    public KvCache cache() {
        return cache;
    }

    @Override
    public boolean takes(HiddenState state) {
        return state.dtype() == dtype && state.data().byteSize() == hiddenBytes();
    }

    @Override
    public Logits forward(List<SequenceSlice> slices, LayerHooks hooks) {
        if (closed) {
            throw new IllegalStateException("the model is closed");
        }
        ranks.enter();
        try {
            return compute(new Batch(slices, config, layout, cache.blocks(), maxPositions), hooks);
        } catch (RuntimeException | Error e) {
            ranks.fail(e);
            throw e;
        }
    }

    private Logits compute(Batch batch, LayerHooks hooks) {
        if (threadConfigured != Thread.currentThread().threadId()) {
            // OpenMP keeps the number by calling thread.
            torch.set_num_threads(threads);
            threadConfigured = Thread.currentThread().threadId();
        }
        try (InferenceMode _ = new InferenceMode(true);
                PointerScope _ = new PointerScope();
                Arena scratch = Arena.ofConfined()) {
            if (batch.tokens() == 0) {
                hooks.begin();
                return logits(LibTorch.empty(type, 0, config.hiddenSize()), batch, scratch);
            }
            Step step = new Step(batch, lastRows(batch, hooks), scratch);
            hooks.begin();
            Tensor rotation = rotation(batch, scratch);
            Tensor x = shard.isFirstStage()
                    ? torch.embedding(weights.embedding, longs(scratch, batch.ids()))
                    : ranks.handedOn(type, batch.rows());
            for (int layer = 0; layer < config.layers(); layer++) {
                hooks.beforeLayer(layer);
                try (PointerScope _ = new PointerScope()) {
                    layer(layer, x, step, rotation);
                }
                hooks.afterLayer(layer);
            }
            ranks.handOn(x);
            if (shard.isLastStage()) {
                for (int slice : hooks.hiddenWanted()) {
                    Tensor row = x.narrow(0, batch.lastRow(slice), 1);
                    hooks.hidden(slice, new HiddenState(dtype, LibTorch.memory(row, hiddenBytes())));
                }
            }
            return logits(x, batch, scratch);
        }
    }

    /** The rows that anything is wanted of behind the last layer, in ascending order, some perhaps repeated. */
    private long[] lastRows(Batch batch, LayerHooks hooks) {
        long[] rows = new long[batch.logitRows().length + hooks.hiddenWanted().size()];
        int count = 0;
        for (int i = 0; i < batch.logitRows().length; i++) {
            if (!batch.given().containsKey(i)) {
                rows[count++] = batch.logitRows()[i];
            }
        }
        for (int slice : hooks.hiddenWanted()) {
            rows[count++] = batch.lastRow(slice);
        }
        long[] wanted = Arrays.copyOf(rows, count);
        Arrays.sort(wanted);
        return wanted;
    }

    @Override
    public void close() {
        if (closed) {
            return;
        }
        closed = true;
        owned.close();
        logitsArena.close();
        arena.close();
        ranks.close();
        Pages.giveBack();
    }

    /** The cosines and sines of rows' positions, [T, D]. */
    private Tensor rotation(Batch batch, Arena scratch) {
        long[] positions = new long[batch.rows()];
        for (int row = 0; row < positions.length; row++) {
            positions[row] = batch.position(row);
        }
        return weights.rope.index_select(0, longs(scratch, positions));
    }

    /** What the attention of all layers of one forward pass shares. */
    private final class Step {
        final Batch batch;
        /** Of one layer after the other: [T, H*D] each. */
        final Tensor queries;

        final Tensor attended;
        private final int longest;
        private final Map<Integer, Attention> attentions = new HashMap<>();

        /** What the last layer's attention works on if its output is wanted of few rows only, and which these are. */
        private final Optional<Tail> tail;

        /** @param lastRows the rows that anything is wanted of behind the last layer, in ascending order */
        Step(Batch batch, long[] lastRows, Arena scratch) {
            this.batch = batch;
            queries = LibTorch.empty(type, batch.rows(), queryElements);
            attended = LibTorch.empty(type, batch.rows(), queryElements);
            // Plain loops here and below: after a forward pass nothing of a stream's machinery is in the caches any
            // more.
            int most = 0;
            for (Group group : batch.groups()) {
                most = Math.max(most, group.longest());
            }
            for (Chunk chunk : batch.chunks()) {
                most = Math.max(most, chunk.context());
            }
            longest = most;
            for (int each : reach) {
                int window = Math.min(each, longest);
                if (!attentions.containsKey(window)) {
                    attentions.put(window, attention(window, scratch));
                }
            }
            boolean few = shard.isLastStage() && 2 * lastRows.length < batch.rows();
            tail = few ? Optional.of(tail(lastRows, scratch)) : Optional.empty();
        }

        Attention attention(int layer) {
            return Objects.requireNonNull(attentions.get(Math.min(reach[layer], longest)));
        }

        private Attention attention(int window, Arena scratch) {
            List<GroupStep> groups = new ArrayList<>(batch.groups().size());
            for (Group group : batch.groups()) {
                groups.add(groupStep(group, window, scratch));
            }
            List<ChunkStep> chunks = new ArrayList<>(batch.chunks().size());
            for (Chunk chunk : batch.chunks()) {
                chunks.add(chunkStep(chunk, 0, window));
            }
            return new Attention(groups, chunks);
        }

        private Tail tail(long[] rows, Arena scratch) {
            int layer = config.layers() - 1;
            if (rows.length == 0) {
                return new Tail(Optional.empty(), new Attention(List.of(), List.of()));
            }
            List<ChunkStep> chunks = new ArrayList<>();
            for (Chunk chunk : batch.chunks()) {
                int next = 0;
                while (next < rows.length && rows[next] < chunk.offset()) {
                    next++;
                }
                if (next < rows.length && rows[next] < chunk.offset() + chunk.length()) {
                    chunks.add(chunkStep(chunk, (int) rows[next] - chunk.offset(), Math.min(reach[layer], longest)));
                }
            }
            long[] padded = Arrays.copyOf(rows, Batch.padded(rows.length));
            Arrays.fill(padded, rows.length, padded.length, rows[0]);
            return new Tail(Optional.of(longs(scratch, padded)), new Attention(attention(layer).groups, chunks));
        }

        private GroupStep groupStep(Group group, int window, Arena scratch) {
            long[] shape = {config.kvHeads(), group.size(), padded(group.longest()), 2L * config.headDim()};
            Tensor gathered = LibTorch.empty(cacheType, shape);
            Tensor floats = cacheType == ScalarType.Float ? gathered : LibTorch.empty(ScalarType.Float, shape);
            return new GroupStep(group, mask(group, window, scratch), gathered, floats);
        }

        /** @param first the first row that attends, from the chunk's beginning */
        private ChunkStep chunkStep(Chunk chunk, int first, int window) {
            // A run begins anywhere and its positions are padded from there.
            int positions = padded(chunk.context()) + CONTEXT_STEP;
            return new ChunkStep(
                    chunk,
                    runs(chunk, first, window),
                    LibTorch.empty(cacheType, config.kvHeads(), positions, 2L * config.headDim()));
        }

        /** Zero for the last positions of a sequence, minus infinity elsewhere, as [1, sequences, 1, padded context]. */
        private TensorOptional mask(Group group, int window, Arena scratch) {
            int padded = padded(group.longest());
            boolean needed = false;
            for (int context : group.contexts()) {
                needed |= context < padded || context > window;
            }
            if (!needed) {
                return new TensorOptional();
            }
            // Comes as zeros.
            MemorySegment memory = scratch.allocate(ValueLayout.JAVA_FLOAT, (long) group.size() * padded);
            for (int i = 0; i < group.size(); i++) {
                long start = (long) i * padded;
                int context = group.contexts()[i];
                for (int position = 0; position < context - window; position++) {
                    memory.setAtIndex(ValueLayout.JAVA_FLOAT, start + position, Float.NEGATIVE_INFINITY);
                }
                for (int position = context; position < padded; position++) {
                    memory.setAtIndex(ValueLayout.JAVA_FLOAT, start + position, Float.NEGATIVE_INFINITY);
                }
            }
            return new TensorOptional(LibTorch.over(memory, ScalarType.Float, 1, group.size(), 1, padded));
        }

        private List<Run> runs(Chunk chunk, int begin, int window) {
            int shared = config.heads() / config.kvHeads();
            boolean whole = begin == 0 && chunk.start() == 0 && chunk.length() <= window;
            if (whole && chunk.length() >= (shared == 1 ? FLASH_ROWS : LARGE_TILE_ROWS)) {
                int height = Batch.padded(chunk.length());
                return List.of(run(0, chunk.length(), height, 0, chunk.length(), false, type, weights.none));
            }
            int most = Math.clamp(STACKED_ROWS / shared, FLASH_ROWS, MASKED_ROWS);
            List<Run> runs = new ArrayList<>();
            int rows;
            for (int first = begin; first < chunk.length(); first += rows) {
                int left = chunk.length() - first;
                boolean many = !whole && left >= MASKED_ROWS;
                rows = Math.min(many ? MASKED_ROWS : most, left);
                int start = chunk.start() + first;
                int from = Math.max(0, start + 1 - window);
                int positions = start + rows - from;
                int height = Batch.padded(rows);
                boolean stacked = !many && 2 * shared * height >= FLASH_ROWS;
                height = stacked ? Math.max(height, Math.ceilDiv(FLASH_ROWS, shared)) : height;
                ScalarType as = stacked || many ? type : ScalarType.Float;
                Tensor mask = mask(as, stacked ? shared : 1, rows, height, start - from, padded(positions), window);
                runs.add(run(first, rows, height, from, positions, stacked, as, new TensorOptional(mask)));
            }
            return runs;
        }

        private Run run(
                int first,
                int rows,
                int height,
                int from,
                int positions,
                boolean stacked,
                ScalarType type,
                TensorOptional mask) {
            long shared = config.heads() / config.kvHeads();
            Tensor own = LibTorch.empty(type, config.kvHeads(), shared, height, config.headDim());
            // What stands behind the rows is computed too, and must not be slow to compute with.
            own.narrow(2, rows, own.size(2) - rows).zero_();
            return new Run(first, rows, from, padded(positions), stacked, mask, own);
        }

        /**
         * Minus infinity where a position is later than a row's or not within its window, zero elsewhere and for what stands behind the
         * rows: [copies * height, positions].
         *
         * @param copies of all rows, one after the other
         * @param own the first row's position
         */
        private Tensor mask(ScalarType as, int copies, int rows, int height, int own, int positions, int window) {
            Tensor mask = LibTorch.empty(as, (long) copies * height, positions).zero_();
            long width = (long) positions * mask.element_size();
            MemorySegment memory = LibTorch.memory(mask, width * copies * height);
            for (int row = 0; row < rows; row++) {
                MemorySegment of = memory.asSlice(row * width, width);
                minusInfinity(of, as, 0, own + row + 1 - window);
                minusInfinity(of, as, own + row + 1, positions);
                for (int copy = 1; copy < copies; copy++) {
                    MemorySegment.copy(of, 0, memory, ((long) copy * height + row) * width, width);
                }
            }
            return mask;
        }

        private static void minusInfinity(MemorySegment row, ScalarType as, int first, int end) {
            if (as == ScalarType.Float) {
                for (int i = first; i < end; i++) {
                    row.setAtIndex(ValueLayout.JAVA_FLOAT, i, Float.NEGATIVE_INFINITY);
                }
            } else {
                for (int i = first; i < end; i++) {
                    row.setAtIndex(ValueLayout.JAVA_SHORT, i, BF16_MINUS_INFINITY);
                }
            }
        }
    }

    /** What the attention of the layers that reach equally far works on. */
    private record Attention(List<GroupStep> groups, List<ChunkStep> chunks) {}

    /**
     * What is left to do in the last layer when its keys and values are saved.
     *
     * @param rows numbers of the rows that it goes on for, some repeated; none if for no row
     * @param attention of these rows, and perhaps of some more
     */
    private record Tail(Optional<Tensor> rows, Attention attention) {}

    /**
     * @param gathered place for a layer's entries of the group
     * @param floats place for them in fp32; unused if they are
     */
    private record GroupStep(Group group, TensorOptional mask, Tensor gathered, Tensor floats) {}

    /** @param gathered place for a layer's entries up to the chunk's last, by head: [G, context, 2D] */
    private record ChunkStep(Chunk chunk, List<Run> runs, Tensor gathered) {}

    /**
     * Rows of a chunk that attend together.
     *
     * @param first the first of them, from the chunk's beginning
     * @param from first position that any of them attends to
     * @param positions how many from there, padded
     * @param stacked the R queries of a row stand as rows of one head: together they are many enough for the fast kernel
     * @param mask minus infinity where a position is later than the row's or behind its window: [padded rows, positions], R times if
     *     stacked; none: the rows are a sequence's first and attend to all before them
     * @param own place for their queries by head, in the type to attend in: [G, R, padded rows, D]
     */
    private record Run(
            int first, int rows, int from, long positions, boolean stacked, TensorOptional mask, Tensor own) {}

    /** Adds a layer to {@code x}. Behind the last one only the rows that are wanted are right, the others are of no use to anybody. */
    private void layer(int layer, Tensor x, Step step, Tensor rotation) {
        LayerWeights layerWeights = weights.layers.get(layer);
        forPieces(x, (first, piece) -> {
            Tensor projected = layerWeights.projection().apply(norm(piece, layerWeights.attentionNorm()));
            Tensor queries = step.queries.narrow(0, first, piece.size(0));
            rotate(projected, layerWeights.headNorms(), rotation.narrow(0, first, piece.size(0)), queries);
            save(layer, projected, step.batch, (int) first);
        });
        if (layer == config.layers() - 1 && step.tail.isPresent()) {
            Tail tail = step.tail.get();
            attend(layer, tail.attention, step);
            tail.rows.ifPresent(rows -> {
                Tensor few = x.index_select(0, rows);
                ranks.addTo(few, layerWeights.output(), step.attended.index_select(0, rows));
                feedForward(layerWeights, few);
                x.index_copy_(0, rows, few);
            });
            return;
        }
        attend(layer, step.attention(layer), step);
        forPieces(
                x,
                (first, piece) ->
                        ranks.addTo(piece, layerWeights.output(), step.attended.narrow(0, first, piece.size(0))));
        forPieces(x, (_, piece) -> feedForward(layerWeights, piece));
    }

    private void attend(int layer, Attention attention, Step step) {
        for (GroupStep group : attention.groups) {
            attend(layer, group, step);
        }
        for (ChunkStep chunk : attention.chunks) {
            attend(layer, chunk, step);
        }
    }

    /** Takes a matrix's rows in pieces: the first row of each and the piece itself, which is a part of the matrix. */
    private static void forPieces(Tensor x, PieceWork work) {
        for (long first = 0; first < x.size(0); first += PIECE_ROWS) {
            try (PointerScope _ = new PointerScope()) {
                boolean whole = x.size(0) <= PIECE_ROWS;
                work.accept(first, whole ? x : x.narrow(0, first, Math.min(PIECE_ROWS, x.size(0) - first)));
            }
        }
    }

    /** What is done with a piece. */
    @FunctionalInterface
    private interface PieceWork {
        void accept(long first, Tensor piece);
    }

    private void feedForward(LayerWeights layerWeights, Tensor x) {
        Tensor normed = norm(x, layerWeights.feedForwardNorm());
        Tensor gated = layerWeights.up().applyTimes(normed, layerWeights.gate().applySilu(normed));
        ranks.addTo(x, layerWeights.down(), gated);
    }

    private Tensor norm(Tensor x, NormWeights weights) {
        Tensor normed = LibTorch.empty(type, x.size(0), x.size(1));
        rowMath.norm(heads(x), heads(normed), weights, config.rmsNormEps());
        return normed;
    }

    /** Turns queries and keys by their positions: the keys in place, the queries into {@code queries}. */
    private void rotate(Tensor projected, Optional<HeadNorms> norms, Tensor rotation, Tensor queries) {
        int rows = (int) projected.size(0);
        int head = config.headDim();
        MemorySegment memory = LibTorch.memory(projected, (long) rows * rowElements * dtype.bytes());
        Heads ownHeads = new Heads(memory, rows, 0, rowElements, config.heads(), head);
        Heads keyHeads = new Heads(memory, rows, queryElements, rowElements, config.kvHeads(), 2L * head);
        norms.ifPresent(norm -> {
            rowMath.norm(ownHeads, ownHeads, norm.queries(), config.rmsNormEps());
            rowMath.norm(keyHeads, keyHeads, norm.keys(), config.rmsNormEps());
        });
        MemorySegment table = LibTorch.memory(rotation, (long) rows * head * dtype.bytes());
        MemorySegment turned = LibTorch.memory(queries, (long) rows * queryElements * dtype.bytes());
        Heads turnedHeads = new Heads(turned, rows, 0, queryElements, config.heads(), head);
        rowMath.rotate(ownHeads, turnedHeads, keyHeads, head, table);
    }

    /** The rows of a dense matrix, each as one head. */
    private Heads heads(Tensor x) {
        long width = x.size(1);
        MemorySegment memory = LibTorch.memory(x, x.numel() * dtype.bytes());
        return new Heads(memory, (int) x.size(0), 0, width, 1, width);
    }

    /**
     * Copies the keys and values of projected rows into their slots, from where attention reads them: so it does not matter which
     * tokens are computed in the same step.
     *
     * @param first of the batch's rows, the first among {@code projected}
     */
    private void save(int layer, Tensor projected, Batch batch, int first) {
        int count = Math.min((int) projected.size(0), batch.tokens() - first);
        if (count <= 0) {
            return;
        }
        Tensor stored =
                projected.narrow(1, queryElements, rowElements - queryElements).to(cacheType);
        long entry = layout.entryBytes();
        long rowBytes = stored.stride(0) * layout.dtype().bytes();
        MemorySegment rows = LibTorch.memory(stored, (count - 1) * rowBytes + config.kvHeads() * entry);
        team.share(count, COPIED_ROWS, (_, begin, end) -> {
            for (int i = begin; i < end; i++) {
                long from = i * rowBytes;
                long to = cache.layerStart(batch.block(first + i), layer) + batch.slot(first + i) * entry;
                for (int head = 0; head < config.kvHeads(); head++) {
                    MemorySegment.copy(
                            rows, from + head * entry, cache.memory(), to + head * layout.headBytes(), entry);
                }
            }
        });
    }

    private void attend(int layer, GroupStep groupStep, Step step) {
        Group group = groupStep.group;
        long head = config.headDim();
        long shared = config.heads() / config.kvHeads();
        long padded = padded(group.longest());
        gather(layer, group.blockTables(), group.contexts(), padded, groupStep.gathered);
        Tensor floats = cacheType == ScalarType.Float ? groupStep.gathered : groupStep.floats.copy_(groupStep.gathered);
        long[] shape = {config.kvHeads(), group.size(), padded, head};
        long[] strides = {group.size() * padded * 2 * head, padded * 2 * head, 2 * head, 1};
        Tensor keys = floats.as_strided(shape, strides, new LongOptional(0));
        Tensor values = floats.as_strided(shape, strides, new LongOptional(head));
        long[] rowsShape = {config.kvHeads(), group.size(), shared, head};
        long[] rowsStrides = {shared * head, queryElements, head, 1};
        LongOptional offset = new LongOptional((long) group.offset() * queryElements);
        Tensor own = step.queries.as_strided(rowsShape, rowsStrides, offset).to(ScalarType.Float);
        Tensor result = attention(own, keys, values, groupStep.mask, false);
        step.attended.as_strided(rowsShape, rowsStrides, offset).copy_(result);
    }

    /**
     * The sequences' cached entries of a layer, [G, sequences, padded, 2D]. What is beyond a sequence's context is zero: such slots
     * may hold anything, NaN too, which no mask stops. Copied here and not by index_select, which first makes the whole layer of
     * the pool contiguous.
     */
    private void gather(int layer, List<int[]> blockTables, int[] contexts, long padded, Tensor gathered) {
        int sequences = contexts.length;
        long entry = layout.entryBytes();
        MemorySegment memory = LibTorch.memory(gathered, (long) config.kvHeads() * sequences * padded * entry);
        int together = (int) Math.max(1, COPIED_BYTES / (padded * entry));
        team.share(sequences * config.kvHeads(), together, (_, first, end) -> {
            for (int each = first; each < end; each++) {
                int sequence = each % sequences;
                int head = each / sequences;
                long used = contexts[sequence] * entry;
                long to = each * padded * entry;
                int block = 0;
                for (long at = 0; at < used; at += layout.headBytes()) {
                    long from = cache.layerStart(blockTables.get(sequence)[block++], layer) + head * layout.headBytes();
                    MemorySegment.copy(cache.memory(), from, memory, to + at, Math.min(layout.headBytes(), used - at));
                }
                memory.asSlice(to + used, padded * entry - used).fill((byte) 0);
            }
        });
    }

    private void attend(int layer, ChunkStep chunkStep, Step step) {
        Chunk chunk = chunkStep.chunk;
        long head = config.headDim();
        long shared = config.heads() / config.kvHeads();
        long positions = chunkStep.gathered.size(1);
        gather(layer, List.of(chunk.blockTable()), new int[] {chunk.context()}, positions, chunkStep.gathered);
        long[] rowsStrides = {shared * head, head, queryElements, 1};
        long[] strides = {2 * head * positions, 0, 2 * head, 1};
        for (Run run : chunkStep.runs) {
            Tensor source = chunkStep.gathered.to(run.own.scalar_type());
            long[] shape = {config.kvHeads(), run.stacked ? 1 : shared, run.positions, head};
            long start = 2 * head * run.from;
            Tensor keys = source.as_strided(shape, strides, new LongOptional(start));
            Tensor values = source.as_strided(shape, strides, new LongOptional(start + head));
            long[] rowsShape = {config.kvHeads(), shared, run.rows, head};
            LongOptional rows = new LongOptional((long) (chunk.offset() + run.first) * queryElements);
            copyRows(step.queries.as_strided(rowsShape, rowsStrides, rows), run.own);
            boolean causal = !run.mask.has_value();
            Tensor own = run.stacked ? run.own.view(config.kvHeads(), 1, -1, head) : run.own;
            Tensor result = attention(own, keys, values, run.mask, causal).reshape(run.own.sizes());
            copyRows(result.narrow(2, 0, run.rows), step.attended.as_strided(rowsShape, rowsStrides, rows));
        }
    }

    /** Copies rows by head, [G, R, rows, D]; {@code to} may have more. */
    private void copyRows(Tensor from, Tensor to) {
        long rows = from.size(2);
        if (from.scalar_type() != to.scalar_type() || from.stride(3) != 1 || to.stride(3) != 1) {
            to.narrow(2, 0, rows).copy_(from);
            return;
        }
        long element = from.element_size();
        long bytes = from.size(3) * element;
        long groups = from.size(0);
        long shared = from.size(1);
        MemorySegment source = memory(from);
        MemorySegment target = memory(to);
        long[] there = {from.stride(0) * element, from.stride(1) * element, from.stride(2) * element};
        long[] here = {to.stride(0) * element, to.stride(1) * element, to.stride(2) * element};
        team.share((int) rows, COPIED_ROWS, (_, first, end) -> {
            for (long row = first; row < end; row++) {
                for (long group = 0; group < groups; group++) {
                    for (long each = 0; each < shared; each++) {
                        long at = group * there[0] + each * there[1] + row * there[2];
                        long into = group * here[0] + each * here[1] + row * here[2];
                        MemorySegment.copy(source, at, target, into, bytes);
                    }
                }
            }
        });
    }

    /** From the first to the last element of a tensor with gaps. */
    private static MemorySegment memory(Tensor tensor) {
        long elements = 1;
        for (int i = 0; i < tensor.dim(); i++) {
            elements += (tensor.size(i) - 1) * tensor.stride(i);
        }
        return LibTorch.memory(tensor, elements * tensor.element_size());
    }

    private Tensor attention(Tensor queries, Tensor keys, Tensor values, TensorOptional mask, boolean causal) {
        return torch.scaled_dot_product_attention(
                queries, keys, values, mask, 0.0, causal, weights.defaultScale, false);
    }

    private Logits logits(Tensor x, Batch batch, Arena scratch) {
        int rows = batch.logitRows().length;
        if (rows == 0 || weights.head.isEmpty()) {
            return noLogits();
        }
        Tensor computed = weights.head.get().apply(norm(wanted(x, batch, scratch), weights.finalNorm));
        MemorySegment memory = ranks.fromFirst(() -> logitsMemory((long) rows * config.vocabularySize() * Float.BYTES));
        Tensor floats = LibTorch.over(memory, ScalarType.Float, rows, config.vocabularySize());
        Shard.Range tokens = shard.vocabulary();
        floats.narrow(1, tokens.first(), tokens.count()).copy_(computed.narrow(0, 0, rows));
        ranks.await();
        if (shard.rank().tensor() != 0) {
            return noLogits();
        }
        Tensor best = floats.argmax(new LongOptional(1), false);
        long[] ids = LibTorch.memory(best, (long) rows * Long.BYTES).toArray(ValueLayout.JAVA_LONG);
        return new TorchLogits(rows, config.vocabularySize(), memory, ids);
    }

    /** The hidden states that logits are wanted of, and some for nothing behind them. */
    private Tensor wanted(Tensor x, Batch batch, Arena scratch) {
        int rows = batch.logitRows().length;
        if (batch.given().isEmpty()) {
            // Padded with the first row.
            return x.index_select(0, longs(scratch, Arrays.copyOf(batch.logitRows(), Batch.padded(rows))));
        }
        Tensor wanted =
                LibTorch.empty(type, Batch.padded(rows), config.hiddenSize()).zero_();
        MemorySegment memory = LibTorch.memory(wanted, rows * hiddenBytes());
        for (int i = 0; i < rows; i++) {
            HiddenState state = batch.given().get(i);
            MemorySegment from =
                    state == null ? LibTorch.memory(x.narrow(0, batch.logitRows()[i], 1), hiddenBytes()) : state.data();
            MemorySegment.copy(from, 0, memory, i * hiddenBytes(), hiddenBytes());
        }
        return wanted;
    }

    private long hiddenBytes() {
        return (long) config.hiddenSize() * dtype.bytes();
    }

    private Logits noLogits() {
        return new TorchLogits(0, config.vocabularySize(), MemorySegment.NULL, new long[0]);
    }

    private MemorySegment logitsMemory(long bytes) {
        if (logitsMemory.byteSize() < bytes) {
            logitsArena.close();
            logitsArena = Arena.ofShared();
            logitsMemory = Pages.allocate(logitsArena, bytes, "logits");
        }
        return logitsMemory.asSlice(0, bytes);
    }

    private static int padded(int positions) {
        return Math.ceilDiv(positions, CONTEXT_STEP) * CONTEXT_STEP;
    }

    private static Tensor longs(Arena scratch, long[] values) {
        return LibTorch.over(scratch.allocateFrom(ValueLayout.JAVA_LONG, values), ScalarType.Long, values.length);
    }

    private record TorchLogits(int rows, int vocabularySize, MemorySegment memory, long[] best) implements Logits {
        @Override
        public MemorySegment row(int row) {
            long bytes = (long) vocabularySize * Float.BYTES;
            return memory.asSlice(row * bytes, bytes);
        }

        @Override
        public int argmax(int row) {
            return (int) best[row];
        }

        @Override
        public void close() {}
    }
}
