package baton.engine.model;

import baton.engine.model.Batch.Chunk;
import baton.engine.model.Batch.Group;
import baton.engine.model.Weights.LayerWeights;
import baton.engine.model.Weights.Owned;
import baton.kv.KvCache;
import baton.kv.KvLayout;
import baton.kv.ModelFingerprint;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.stream.IntStream;
import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.InferenceMode;
import org.bytedeco.pytorch.LongOptional;
import org.bytedeco.pytorch.Scalar;
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
 * Attention never repeats keys for the R queries that share them. A first chunk attends to the projection's own output with
 * batch = G, heads = R and the head stride of the keys being 0. A later chunk does the same over its gathered blocks, with a
 * mask. Single tokens are taken together: batch = G, heads = sequences, and the R queries stand where query positions would, so
 * a sequence's keys are read once for all of them. These are the shapes that PyTorch's flash kernel for CPUs takes.
 *
 * Native memory. Every tensor made in a forward pass belongs to a PointerScope that ends within it; what lives longer is made at
 * load, listed in `owned`, and freed by close. Nothing waits for the garbage collector.
 */
final class DecoderRunner implements ModelRunner {
    /** Queries of a later chunk that share one mask, so that masks stay small whatever the context. */
    private static final int MASKED_ROWS = 512;

    /**
     * Rows that go through a feed-forward layer together: enough for full speed, and few enough that the widest activations are
     * memory that the allocator keeps, not pages that the kernel has to clear each time.
     */
    private static final int FEED_FORWARD_ROWS = 512;

    /** Elements that are normed together. */
    private static final int NORM_ELEMENTS = 1 << 17;

    /** Contexts of single tokens are computed as multiples of this many positions. */
    private static final int CONTEXT_STEP = 64;

    private final Shard shard;
    /** The model as far as this rank has it. */
    private final ModelConfig config;

    private final Collective.Member ranks;
    private final ModelFingerprint fingerprint;
    private final KvLayout layout;
    private final KvCache cache;
    private final int maxPositions;
    private final int threads;
    private final ScalarType type;
    private final Arena arena;
    private final Owned owned;
    private final Weights weights;
    private final int rowElements;
    private final int queryElements;
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
        this.type = LibTorch.scalarType(layout.dtype());
        this.arena = arena;
        this.owned = owned;
        this.weights = weights;
        this.queryElements = config.heads() * config.headDim();
        this.rowElements = queryElements + 2 * config.kvHeads() * config.headDim();
    }

    /**
     * Loads a rank.
     *
     * @param layout of this rank's pool
     * @param first the first rank of the model, if this is another
     */
    static DecoderRunner load(
            Checkpoint checkpoint,
            ModelFingerprint fingerprint,
            Shard shard,
            Collective.Member ranks,
            KvLayout layout,
            int blocks,
            int threads,
            int maxPositions,
            Optional<DecoderRunner> first)
            throws IOException {
        Arena arena = Arena.ofShared();
        Owned owned = new Owned();
        try {
            MemorySegment pool =
                    Pages.allocate(arena, Math.multiplyExact(layout.blockBytes(), (long) blocks), "the KV cache");
            int firstLayer = shard.layers().first();
            List<String> names = IntStream.range(firstLayer, firstLayer + layout.layers())
                    .mapToObj("model.layers.%d.self_attn.attn"::formatted)
                    .toList();
            Weights weights = Weights.load(
                    checkpoint, shard, layout.dtype(), maxPositions, arena, owned, first.map(each -> each.weights));
            return new DecoderRunner(
                    shard,
                    ranks,
                    fingerprint,
                    new KvCache(pool, layout, blocks, names),
                    maxPositions,
                    threads,
                    arena,
                    owned,
                    weights);
        } catch (IOException | RuntimeException | Error e) {
            owned.close();
            arena.close();
            throw e;
        }
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
            Step step = new Step(batch, scratch);
            Tensor x = shard.isFirstStage()
                    ? torch.embedding(weights.embedding, longs(scratch, batch.ids()))
                    : ranks.handedOn(type, batch.rows());
            for (int layer = 0; layer < config.layers(); layer++) {
                hooks.beforeLayer(layer);
                try (PointerScope _ = new PointerScope()) {
                    attention(layer, x, step);
                }
                for (long first = 0; first < batch.rows(); first += FEED_FORWARD_ROWS) {
                    try (PointerScope _ = new PointerScope()) {
                        long rows = Math.min(FEED_FORWARD_ROWS, batch.rows() - first);
                        feedForward(weights.layers.get(layer), x.narrow(0, first, rows));
                    }
                }
                hooks.afterLayer(layer);
            }
            ranks.handOn(x);
            return logits(x, batch, scratch);
        }
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
    }

    /** What all layers of one forward pass share. */
    private final class Step {
        final Batch batch;
        final Tensor cos;
        final Tensor sin;
        final Tensor minusSin;
        final List<GroupStep> groups;
        final List<ChunkStep> chunks;

        Step(Batch batch, Arena scratch) {
            this.batch = batch;
            long[] positions = new long[batch.rows()];
            Arrays.setAll(positions, batch::position);
            Tensor rows = longs(scratch, positions);
            int half = config.headDim() / 2;
            Tensor table = weights.rope.index_select(0, rows).unsqueeze(1);
            cos = table.narrow(2, 0, config.headDim());
            sin = table.narrow(2, config.headDim(), half);
            minusSin = table.narrow(2, config.headDim() + half, half);
            groups = batch.groups().stream()
                    .map(group -> new GroupStep(group, mask(group, scratch)))
                    .toList();
            chunks = batch.chunks().stream()
                    .map(chunk -> new ChunkStep(chunk, chunk.start() == 0 ? List.of() : masks(chunk)))
                    .toList();
        }

        /** Zero where a sequence has a position, minus infinity beyond, as [1, sequences, 1, padded context]. */
        private TensorOptional mask(Group group, Arena scratch) {
            int padded = paddedContext(group);
            if (Arrays.stream(group.contexts()).allMatch(context -> context == padded)) {
                return new TensorOptional();
            }
            float[] values = new float[group.size() * padded];
            for (int i = 0; i < group.size(); i++) {
                Arrays.fill(values, i * padded + group.contexts()[i], (i + 1) * padded, Float.NEGATIVE_INFINITY);
            }
            MemorySegment memory = scratch.allocateFrom(ValueLayout.JAVA_FLOAT, values);
            Tensor floats = LibTorch.over(memory, ScalarType.Float, 1, group.size(), 1, padded);
            return new TensorOptional(floats.to(type));
        }

        /** For each run of rows, minus infinity where a position is later than the row's: [rows, positions up to the last]. */
        private List<TensorOptional> masks(Chunk chunk) {
            List<TensorOptional> masks = new ArrayList<>();
            for (int first = 0; first < chunk.length(); first += MASKED_ROWS) {
                int rows = Math.min(MASKED_ROWS, chunk.length() - first);
                int context = chunk.start() + first + rows;
                Tensor mask = LibTorch.empty(type, rows, context);
                mask.fill_(new Scalar(Double.NEGATIVE_INFINITY));
                masks.add(new TensorOptional(mask.triu_(chunk.start() + first + 1)));
            }
            return masks;
        }
    }

    private record GroupStep(Group group, TensorOptional mask) {}

    /** @param masks of each run of rows; none if the chunk is the sequence's first */
    private record ChunkStep(Chunk chunk, List<TensorOptional> masks) {}

    private void attention(int layer, Tensor x, Step step) {
        LayerWeights layerWeights = weights.layers.get(layer);
        Tensor projected = layerWeights.projection().apply(norm(x, layerWeights.attentionNorm()));
        Tensor queries = rotate(projected, step, 0, config.heads(), config.headDim());
        Tensor keys = rotate(projected, step, queryElements, config.kvHeads(), 2L * config.headDim());
        int rows = step.batch.rows();
        long head = config.headDim();
        view(projected, queryElements, rows, rowElements, config.kvHeads(), 2 * head, head)
                .copy_(keys);
        save(layer, projected, step.batch);
        Tensor attended = LibTorch.empty(type, rows, queryElements);
        for (GroupStep group : step.groups) {
            attend(layer, group, queries, attended);
        }
        for (ChunkStep chunk : step.chunks) {
            if (chunk.chunk.start() == 0) {
                attendFirst(chunk.chunk, queries, projected, attended);
            } else {
                attendLater(layer, chunk, queries, attended);
            }
        }
        ranks.addTo(x, layerWeights.output(), attended);
    }

    private void feedForward(LayerWeights layerWeights, Tensor x) {
        Tensor gateUp = layerWeights.gateUp().apply(norm(x, layerWeights.feedForwardNorm()));
        Tensor gated = torch.silu(gateUp.narrow(1, 0, config.intermediateSize()));
        gated.mul_(gateUp.narrow(1, config.intermediateSize(), config.intermediateSize()));
        ranks.addTo(x, layerWeights.down(), gated);
    }

    /** LibTorch's norm of bf16 makes several fp32 copies, so rows are taken in pieces whose copies stay in cache. */
    private Tensor norm(Tensor x, TensorOptional weight) {
        long[] width = {config.hiddenSize()};
        long rows = x.size(0);
        long piece = Math.max(1, NORM_ELEMENTS / config.hiddenSize());
        if (rows <= piece) {
            return torch.rms_norm(x, width, weight, weights.eps);
        }
        Tensor normed = LibTorch.empty(type, rows, config.hiddenSize());
        for (long first = 0; first < rows; first += piece) {
            try (PointerScope _ = new PointerScope()) {
                long length = Math.min(piece, rows - first);
                Tensor part = torch.rms_norm(x.narrow(0, first, length), width, weight, weights.eps);
                normed.narrow(0, first, length).copy_(part);
            }
        }
        return normed;
    }

    /** Heads of a row turned by their position: [T, heads, D], the halves of a head being the pairs. */
    private Tensor rotate(Tensor projected, Step step, long offset, long heads, long headStride) {
        long rows = step.batch.rows();
        long half = config.headDim() / 2;
        Tensor all = view(projected, offset, rows, rowElements, heads, headStride, 2 * half);
        Tensor first = all.narrow(2, 0, half);
        Tensor second = all.narrow(2, half, half);
        Tensor turned = all.mul(step.cos);
        turned.narrow(2, 0, half).addcmul_(second, step.minusSin);
        turned.narrow(2, half, half).addcmul_(first, step.sin);
        return turned;
    }

    /** Copies the rows' keys and values into their slots. */
    private void save(int layer, Tensor projected, Batch batch) {
        long entry = layout.entryBytes();
        long rowBytes = (long) rowElements * layout.dtype().bytes();
        long queryBytes = (long) queryElements * layout.dtype().bytes();
        MemorySegment rows = LibTorch.memory(projected, batch.tokens() * rowBytes);
        for (int row = 0; row < batch.tokens(); row++) {
            long from = row * rowBytes + queryBytes;
            long to = cache.layerStart(batch.block(row), layer) + batch.slot(row) * entry;
            for (int head = 0; head < config.kvHeads(); head++) {
                MemorySegment.copy(rows, from + head * entry, cache.memory(), to + head * layout.headBytes(), entry);
            }
        }
    }

    private void attend(int layer, GroupStep step, Tensor queries, Tensor attended) {
        Group group = step.group;
        long head = config.headDim();
        long shared = config.heads() / config.kvHeads();
        long padded = paddedContext(group);
        Tensor gathered = gather(layer, group.blockTables(), group.contexts(), padded);
        long[] shape = {config.kvHeads(), group.size(), padded, head};
        long[] strides = {group.size() * padded * 2 * head, padded * 2 * head, 2 * head, 1};
        Tensor keys = gathered.as_strided(shape, strides, new LongOptional(0));
        Tensor values = gathered.as_strided(shape, strides, new LongOptional(head));
        long[] rowsShape = {config.kvHeads(), group.size(), shared, head};
        long[] rowsStrides = {shared * head, queryElements, head, 1};
        LongOptional offset = new LongOptional((long) group.offset() * queryElements);
        Tensor result = attention(queries.as_strided(rowsShape, rowsStrides, offset), keys, values, step.mask, false);
        attended.as_strided(rowsShape, rowsStrides, offset).copy_(result);
    }

    /**
     * The sequences' cached entries of a layer, [G, sequences, padded, 2D]. What is beyond a sequence's context is zero: such slots
     * may hold anything, NaN too, which no mask stops. Copied here and not by index_select, which first makes the whole layer of
     * the pool contiguous.
     */
    private Tensor gather(int layer, List<int[]> blockTables, int[] contexts, long padded) {
        int sequences = contexts.length;
        long entry = layout.entryBytes();
        Tensor gathered = LibTorch.empty(type, config.kvHeads(), sequences, padded, 2L * config.headDim());
        MemorySegment memory = LibTorch.memory(gathered, (long) config.kvHeads() * sequences * padded * entry);
        for (int i = 0; i < sequences; i++) {
            long used = contexts[i] * entry;
            for (int head = 0; head < config.kvHeads(); head++) {
                long to = ((long) head * sequences + i) * padded * entry;
                int block = 0;
                for (long at = 0; at < used; at += layout.headBytes()) {
                    long from = cache.layerStart(blockTables.get(i)[block++], layer) + head * layout.headBytes();
                    MemorySegment.copy(cache.memory(), from, memory, to + at, Math.min(layout.headBytes(), used - at));
                }
                memory.asSlice(to + used, padded * entry - used).fill((byte) 0);
            }
        }
        return gathered;
    }

    private void attendFirst(Chunk chunk, Tensor queries, Tensor projected, Tensor attended) {
        long head = config.headDim();
        long shared = config.heads() / config.kvHeads();
        long[] shape = {config.kvHeads(), shared, chunk.length(), head};
        long[] strides = {2 * head, 0, rowElements, 1};
        long keyOffset = (long) chunk.offset() * rowElements + queryElements;
        Tensor keys = projected.as_strided(shape, strides, new LongOptional(keyOffset));
        Tensor values = projected.as_strided(shape, strides, new LongOptional(keyOffset + head));
        long[] rowsStrides = {shared * head, head, queryElements, 1};
        LongOptional offset = new LongOptional((long) chunk.offset() * queryElements);
        Tensor result = attention(queries.as_strided(shape, rowsStrides, offset), keys, values, weights.none, true);
        attended.as_strided(shape, rowsStrides, offset).copy_(result);
    }

    private void attendLater(int layer, ChunkStep step, Tensor queries, Tensor attended) {
        Chunk chunk = step.chunk;
        long head = config.headDim();
        long shared = config.heads() / config.kvHeads();
        Tensor gathered = gather(layer, List.of(chunk.blockTable()), new int[] {chunk.context()}, chunk.context());
        long[] strides = {chunk.context() * 2L * head, 0, 2 * head, 1};
        long[] rowsStrides = {shared * head, head, queryElements, 1};
        for (int i = 0; i < step.masks.size(); i++) {
            int first = i * MASKED_ROWS;
            int rows = Math.min(MASKED_ROWS, chunk.length() - first);
            long[] shape = {config.kvHeads(), shared, chunk.start() + first + rows, head};
            long[] rowsShape = {config.kvHeads(), shared, rows, head};
            Tensor keys = gathered.as_strided(shape, strides, new LongOptional(0));
            Tensor values = gathered.as_strided(shape, strides, new LongOptional(head));
            LongOptional offset = new LongOptional((long) (chunk.offset() + first) * queryElements);
            Tensor result = attention(
                    queries.as_strided(rowsShape, rowsStrides, offset), keys, values, step.masks.get(i), false);
            attended.as_strided(rowsShape, rowsStrides, offset).copy_(result);
        }
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
        Tensor wanted = x.index_select(0, longs(scratch, batch.logitRows()));
        Tensor computed = weights.head.get().apply(norm(wanted, weights.finalNorm));
        MemorySegment memory = ranks.fromFirst(() -> logitsMemory((long) rows * config.vocabularySize() * Float.BYTES));
        Tensor floats = LibTorch.over(memory, ScalarType.Float, rows, config.vocabularySize());
        Shard.Range tokens = shard.vocabulary();
        floats.narrow(1, tokens.first(), tokens.count()).copy_(computed);
        ranks.await();
        if (shard.rank().tensor() != 0) {
            return noLogits();
        }
        Tensor best = floats.argmax(new LongOptional(1), false);
        long[] ids = LibTorch.memory(best, (long) rows * Long.BYTES).toArray(ValueLayout.JAVA_LONG);
        return new TorchLogits(rows, config.vocabularySize(), memory, ids);
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

    /** The group's longest context, rounded up: attention too has kernels by length, and a mask is cheaper. */
    private int paddedContext(Group group) {
        int unit = Math.max(1, CONTEXT_STEP / layout.blockSize()) * layout.blockSize();
        return Math.ceilDiv(group.longest(), unit) * unit;
    }

    private static Tensor view(
            Tensor tensor, long offset, long rows, long rowStride, long heads, long headStride, long elements) {
        return tensor.as_strided(
                new long[] {rows, heads, elements}, new long[] {rowStride, headStride, 1}, new LongOptional(offset));
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
