package baton.engine.model;

import baton.engine.kernel.AttentionScores;
import baton.engine.kernel.ParallelFor;
import baton.engine.model.ModelKernels.Heads;
import baton.engine.model.ModelKernels.Norm;
import baton.engine.model.Recipe.Rotation;
import baton.engine.model.Weights.Gated;
import baton.engine.model.Weights.LayerWeights;
import baton.engine.model.Weights.Owned;
import baton.engine.model.Weights.Routed;
import baton.engine.model.Weights.Ungated;
import baton.kv.DType;
import baton.kv.KvCache;
import baton.kv.KvFence;
import baton.kv.KvGroups;
import baton.kv.KvLayout;
import baton.kv.KvMemory;
import baton.kv.ModelFingerprint;
import baton.kv.connector.HiddenState;
import baton.memory.MappableMemory;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.function.Consumer;
import java.util.stream.IntStream;

/*
 * Shapes. T rows (tokens) of a batch, H query heads, G key/value heads, R = H / G query heads that share one, D head dim.
 * The tokens of all sequences go through norms, projections and the feed-forward layer as one [T, hidden] matrix.
 *
 * The fused projection gives [T, H*D + G*2D]: all queries, then for each key/value head its key and its value side by side. So
 * the right part of a row is the entries of the KV cache, and a token's entry of one head is one run of bytes to copy. Of latent attention
 * G is 1 and D the elements of an entry, see LatentProjections.
 *
 * Native memory. Every matrix made in a forward pass belongs to a scope of the kernels that ends within it; memory that lives longer is made at
 * load, listed in `owned`, and freed by close. Nothing waits for the garbage collector.
 */
final class DecoderRunner implements ModelRunner {
    /**
     * Rows that go through everything but attention together: enough for full speed, and few enough that activations take little
     * memory.
     */
    private static final int PIECE_ROWS = 1024;

    private static final int LOGITS_AT_ONCE = 4096;

    private static final int ACTIVATED_AT_ONCE = 1024;

    private final Shard shard;
    /** The part of the model that this rank has. */
    private final ModelConfig config;

    private final Collective.Member ranks;
    private final ModelFingerprint fingerprint;
    private final KvCache cache;
    private final int maxPositions;
    private final LoadedKv.Bounds bounds;
    private final DType activations;

    private final ModelKernels kernels;
    private final KernelChoice choice;
    private final OperatorTimes times;
    private final Attention attention;
    private final ExpertLayers experts;
    private final Arena arena;
    private final Owned owned;
    private final Weights<Linear, Norm> weights;
    private final AttentionProjection inputs;

    private boolean closed;
    private Arena logitsArena = Arena.ofShared();
    private MemorySegment logitsMemory = MemorySegment.NULL;

    /** A rank's objects in native memory, and the kernels that compute with them. */
    private record Loaded(
            KvCache cache,
            ModelKernels kernels,
            OperatorTimes times,
            Weights<Linear, Norm> weights,
            Owned owned,
            Arena arena) {}

    private DecoderRunner(
            Shard shard,
            Collective.Member ranks,
            ModelFingerprint fingerprint,
            ModelOptions options,
            KernelChoice choice,
            Loaded loaded) {
        this.shard = shard;
        this.config = shard.config();
        this.ranks = ranks;
        this.fingerprint = fingerprint;
        this.cache = loaded.cache;
        this.maxPositions = options.maxPositions();
        this.bounds = LoadedKv.Bounds.of(options.cacheDtype(), options.dtype(), options.quantization());
        this.activations = loaded.kernels.activations();
        this.kernels = loaded.kernels;
        this.choice = choice;
        this.arena = loaded.arena;
        this.owned = loaded.owned;
        this.weights = loaded.weights;
        this.inputs = new AttentionProjection(shard, ranks, kernels);
        int[] reach = IntStream.range(0, config.layers())
                .map(config::attendedPositions)
                .toArray();
        AttentionScores scores = new AttentionScores(
                config.scoreScale(),
                config.recipe().caps().scores(),
                weights.layers().stream()
                        .flatMap(layer -> layer.sinks().stream())
                        .toList());
        this.experts = new ExpertLayers(kernels, config.hiddenSize());
        this.times = loaded.times;
        this.attention = times.timed(
                kernels.attention(config, scores, cache, reach),
                config,
                reach,
                cache.layout().layerBytes() / cache.layout().blockSize());
    }

    /**
     * Loads a rank.
     *
     * @param threads to compute with
     * @param first the first rank of the model, if this is another
     */
    static DecoderRunner load(
            Checkpoint checkpoint,
            ModelFingerprint fingerprint,
            ModelOptions options,
            int threads,
            KernelChoice choice,
            Shard shard,
            Collective.Member ranks,
            Optional<DecoderRunner> first)
            throws IOException {
        KvGroups groups = shard.groups(options.hybrid());
        KvLayout layout = shard.config().kvLayout(groups, options.blockSize(), options.cacheDtype());
        Arena arena = Arena.ofShared();
        Owned owned = new Owned();
        try {
            long bytes = Math.multiplyExact(layout.blockBytes(), (long) options.blocks());
            // Not always mappable: few kernels grant huge pages to memory that can be shared.
            Optional<MappableMemory> shared = options.mappable()
                    ? Optional.of(MappableMemory.allocate(arena, bytes, "the KV cache"))
                    : Optional.empty();
            MemorySegment pool = shared.map(MappableMemory::memory)
                    .orElseGet(() -> HugePages.allocateAhead(arena, bytes, "the KV cache"));
            int firstLayer = shard.layers().first();
            List<String> names = IntStream.range(firstLayer, firstLayer + groups.layers())
                    .mapToObj("model.layers.%d.self_attn.attn"::formatted)
                    .toList();
            ModelKernels kernels = choice.make(options.dtype(), options.quantization(), threads, arena, owned);
            OperatorTimes times = new OperatorTimes(threads);
            Weights<Linear, Norm> weights = Weights.load(
                    checkpoint,
                    shard,
                    options.dtype(),
                    options.maxPositions(),
                    new CpuPacking(options.dtype(), kernels, times, owned),
                    arena,
                    owned,
                    first.map(each -> each.weights));
            return new DecoderRunner(
                    shard,
                    ranks,
                    fingerprint,
                    options,
                    choice,
                    new Loaded(
                            new KvCache(
                                    new KvMemory.Host(pool, shared.map(MappableMemory::file)),
                                    layout,
                                    options.blocks(),
                                    names,
                                    groups),
                            kernels,
                            times,
                            weights,
                            owned,
                            arena));
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
    public List<String> kernels() {
        return choice.reasons();
    }

    @Override
    public List<OperatorRate> operatorRates() {
        return times.rates();
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
    public ParallelFor threads() {
        return kernels.threads();
    }

    @Override
    public boolean takes(HiddenState state) {
        // Activations of another processor's kernels may have another type.
        boolean known = state.dtype() == DType.F32 || state.dtype() == DType.BF16;
        return known && state.data().byteSize() == hiddenBytes(state.dtype());
    }

    @Override
    public boolean comparesLoaded() {
        return true;
    }

    @Override
    public Logits forward(List<SequenceSlice> slices, LayerHooks hooks) {
        if (closed) {
            throw new IllegalStateException("the model is closed");
        }
        ranks.enter();
        try {
            LoadedKv loaded =
                    new LoadedKv(hooks.loaded(), slices, cache, shard.layers().first(), bounds, kernels.threads());
            return compute(new Batch(loaded.slices(), config, cache, maxPositions, kernels::padded), loaded, hooks);
        } catch (RuntimeException | Error e) {
            ranks.fail(e);
            throw e;
        }
    }

    private Logits compute(Batch batch, LoadedKv loaded, LayerHooks hooks) {
        try (RowMemory.Scope _ = kernels.pass();
                Arena scratch = Arena.ofConfined()) {
            if (batch.tokens() == 0) {
                hooks.begin();
                return logits(Matrix.dense(MemorySegment.NULL, 0, config.hiddenSize(), activations), batch);
            }
            Step step = new Step(batch, lastRows(batch, hooks), loaded, scratch);
            hooks.begin();
            Matrix x = shard.isFirstStage() ? embedded(batch.ids()) : ranks.handedOn(batch.rows(), kernels);
            for (int layer = 0; layer < config.layers(); layer++) {
                hooks.beforeLayer(layer).await();
                if (layer == 0 && shard.isFirstStage()) {
                    compareFirstLayer(hooks.loaded(), loaded);
                }
                try (RowMemory.Scope _ = kernels.scope()) {
                    layer(layer, x, step);
                }
                hooks.afterLayer(layer, KvFence.PASSED);
            }
            hooks.compared(loaded.comparison());
            ranks.handOn(x, kernels);
            if (shard.isLastStage()) {
                for (int slice : hooks.hiddenWanted()) {
                    Matrix row = x.part(batch.lastRow(slice), 1);
                    hooks.hidden(slice, new HiddenState(activations, row.memory()));
                }
            }
            return logits(x, batch);
        }
    }

    /** The rows that are used after the last layer, in ascending order, some perhaps repeated. */
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
        attention.close();
        kernels.close();
        owned.close();
        logitsArena.close();
        arena.close();
        ranks.close();
    }

    /** For each rotation, the cosines and sines of positions, [T, D]. */
    private Map<Rotation, Matrix> rotations(long[] positions, Arena scratch) {
        Map<Rotation, Matrix> ofRows = new HashMap<>();
        weights.rotations()
                .forEach((rotation, table) -> ofRows.put(
                        rotation,
                        table.copyRows(positions, dense(positions.length, table.columns(), table.type(), scratch))));
        return ofRows;
    }

    private Matrix embedded(long[] ids) {
        Matrix x = kernels.rows(ids.length, config.hiddenSize());
        float factor = (float) config.recipe().scales().embedding();
        if (factor == 1 && weights.embedding().type() == x.type()) {
            return weights.embedding().copyRows(ids, x);
        }
        RowBuffer buffer = new RowBuffer(x.columns());
        factor = RowBuffer.rounded(weights.embedding().type(), factor);
        for (int row = 0; row < ids.length; row++) {
            buffer.load(weights.embedding(), (int) ids[row], 0, x.columns());
            buffer.multiply(factor, x.columns());
            buffer.store(x, row, 0, x.columns());
        }
        return x;
    }

    /** A matrix with undefined content. */
    private static Matrix dense(long rows, long columns, DType type, Arena scratch) {
        MemorySegment memory = scratch.allocate(rows * columns * type.bytes(), Long.BYTES);
        // Open to all threads, valid as long as the arena.
        return Matrix.dense(
                MemorySegment.ofAddress(memory.address()).reinterpret(memory.byteSize()), rows, columns, type);
    }

    /** The state that all layers of one forward pass share. */
    private final class Step {
        final Batch batch;
        /** The queries of one layer after the other: [T, H*D] each. */
        final Matrix queries;

        final Matrix attended;
        final Attention.Pass attention;

        final Map<Rotation, Matrix> rotations;
        final LoadedKv loaded;

        /** The rows that the last layer computes, some repeated, if they are few; an empty array if none. */
        final Optional<long[]> tail;

        /** @param lastRows the rows that are used after the last layer, in ascending order */
        Step(Batch batch, long[] lastRows, LoadedKv loaded, Arena scratch) {
            this.batch = batch;
            queries = kernels.rows(batch.rows(), inputs.queryElements());
            attended = kernels.inputs(batch.rows(), inputs.queryElements());
            long[] positions = new long[batch.rows()];
            Arrays.setAll(positions, batch::position);
            rotations = rotations(positions, scratch);
            this.loaded = loaded;
            boolean few = shard.isLastStage() && 2 * lastRows.length < batch.rows();
            Optional<long[]> tailRows = few ? Optional.of(lastRows) : Optional.empty();
            attention = DecoderRunner.this.attention.begin(batch, tailRows, queries, attended, scratch);
            tail = tailRows.map(rows -> {
                long[] padded = Arrays.copyOf(rows, rows.length == 0 ? 0 : kernels.padded(rows.length));
                Arrays.fill(padded, rows.length, padded.length, rows.length == 0 ? 0 : rows[0]);
                return padded;
            });
        }
    }

    /** Adds a layer to {@code x}. After the last layer only the rows of the tail are valid, if there is a tail. */
    private void layer(int layer, Matrix x, Step step) {
        LayerWeights<Linear, Norm> layerWeights = weights.layers().get(layer);
        Optional<Rotation> rotation = config.recipe().layers().get(layer).rotation();
        Optional<Matrix> table = rotation.map(each -> Objects.requireNonNull(step.rotations.get(each)));
        forPieces(x, (first, piece) -> {
            Matrix entries = inputs.entries(
                    layerWeights,
                    rotation,
                    norm(piece, layerWeights.attentionNorm()),
                    table.map(all -> all.part(first, piece.rows())),
                    step.queries.part(first, piece.rows()));
            step.loaded.compareReplaced(layer, entries, step.batch, (int) first);
            save(layer, entries, step.batch, (int) first);
        });
        if (layer == config.layers() - 1 && step.tail.isPresent()) {
            step.attention.attendTail(layer);
            long[] rows = step.tail.get();
            if (rows.length > 0) {
                Matrix few = x.copyRows(rows, kernels.rows(rows.length, x.columns()));
                Matrix attended = step.attended.copyRows(rows, kernels.inputs(rows.length, step.attended.columns()));
                addAttended(few, layerWeights, attended);
                feedForward(layerWeights, few);
                for (int i = 0; i < rows.length; i++) {
                    few.copyRow(i, x, rows[i]);
                }
            }
            return;
        }
        step.attention.attend(layer);
        forPieces(x, (first, piece) -> addAttended(piece, layerWeights, step.attended.part(first, piece.rows())));
        forPieces(x, (_, piece) -> feedForward(layerWeights, piece));
    }

    /** The first layer's keys and values depend on tokens and their positions only. */
    private void compareFirstLayer(Map<Integer, LoadedTokens> wanted, LoadedKv loaded) {
        Optional<Rotation> rotation = config.recipe().layers().getFirst().rotation();
        LayerWeights<Linear, Norm> layer = weights.layers().getFirst();
        wanted.forEach((slice, tokens) -> {
            int count = tokens.verify().comparesFirstLayer() ? tokens.tokens().length : 0;
            for (int first = 0; first < count; first += PIECE_ROWS) {
                int start = first;
                int rows = Math.min(PIECE_ROWS, count - start);
                long[] ids = new long[kernels.padded(rows)];
                long[] positions = new long[ids.length];
                for (int row = 0; row < rows; row++) {
                    ids[row] = tokens.tokens()[start + row];
                    positions[row] = (long) tokens.from() + start + row;
                }
                try (RowMemory.Scope _ = kernels.scope();
                        Arena scratch = Arena.ofConfined()) {
                    Map<Rotation, Matrix> angles = rotations(positions, scratch);
                    Matrix entries = inputs.entries(
                            layer,
                            rotation,
                            norm(embedded(ids), layer.attentionNorm()),
                            rotation.map(each -> Objects.requireNonNull(angles.get(each))),
                            Matrix.dense(MemorySegment.NULL, ids.length, 0, activations));
                    loaded.compare(slice, 0, entries.part(0, rows), tokens.from() + start);
                }
            }
        });
    }

    /** Takes a matrix's rows in pieces: the first row of each and the piece itself, which is a part of the matrix. */
    private void forPieces(Matrix x, PieceWork work) {
        for (long first = 0; first < x.rows(); first += PIECE_ROWS) {
            try (RowMemory.Scope _ = kernels.scope()) {
                work.accept(first, x.part(first, Math.min(PIECE_ROWS, x.rows() - first)));
            }
        }
    }

    /** Work on a piece. */
    @FunctionalInterface
    private interface PieceWork {
        void accept(long first, Matrix piece);
    }

    private void addAttended(Matrix x, LayerWeights<Linear, Norm> layerWeights, Matrix attended) {
        Matrix values = layerWeights
                .latent()
                .map(latent -> new LatentProjections(latent, kernels).values(attended))
                .orElse(attended);
        add(x, layerWeights.output(), values, layerWeights.afterAttentionNorm());
    }

    private void feedForward(LayerWeights<Linear, Norm> layerWeights, Matrix x) {
        Matrix normed = norm(x, layerWeights.feedForwardNorm());
        switch (layerWeights.feedForward()) {
            case Gated<Linear> gated ->
                add(
                        x,
                        gated.down(),
                        kernels.asInputs(gated.up().applyGated(gated.gate(), gated.activation(), normed)),
                        layerWeights.afterFeedForwardNorm());
            case Ungated<Linear> plain ->
                add(x, plain.down(), activated(plain, normed), layerWeights.afterFeedForwardNorm());
            case Routed<Linear> routed -> {
                Matrix own = experts.results(routed, normed);
                add(x, sum -> ranks.addTo(sum, own, kernels), layerWeights.afterFeedForwardNorm());
            }
        }
    }

    /** The rows that {@code down} multiplies. */
    private Matrix activated(Ungated<Linear> plain, Matrix rows) {
        Matrix product = plain.up().apply(rows);
        Matrix activated = kernels.inputs(product.rows(), product.columns());
        int pieces = Math.ceilDiv(product.columns(), ACTIVATED_AT_ONCE);
        kernels.threads().parallelFor(product.rows() * pieces, 1, (_, first, end) -> {
            RowBuffer buffer = new RowBuffer(ACTIVATED_AT_ONCE);
            for (int piece = first; piece < end; piece++) {
                int column = piece % pieces * ACTIVATED_AT_ONCE;
                int count = Math.min(ACTIVATED_AT_ONCE, product.columns() - column);
                buffer.load(product, piece / pieces, column, count);
                for (int i = 0; i < count; i++) {
                    buffer.values()[i] = plain.function().of(buffer.values()[i]);
                }
                buffer.store(activated, piece / pieces, column, count);
            }
        });
        return activated;
    }

    private void add(Matrix x, Linear matrix, Matrix rows, Optional<Norm> norm) {
        add(x, sum -> ranks.addTo(sum, matrix, rows, kernels), norm);
    }

    /**
     * Adds the result of all ranks to the residual stream {@code x}: normed, if there is a norm, and times the recipe's factor.
     *
     * @param result adds it to a matrix
     */
    private void add(Matrix x, Consumer<Matrix> result, Optional<Norm> norm) {
        float factor = (float) config.recipe().scales().residual();
        if (norm.isEmpty() && factor == 1) {
            result.accept(x);
            return;
        }
        Matrix sum = kernels.rows(x.rows(), x.columns());
        sum.memory().fill((byte) 0);
        result.accept(sum);
        norm.ifPresent(each -> each.apply(Heads.ofRows(sum), Heads.ofRows(sum)));
        sum.addTo(x, factor, kernels.threads());
    }

    private Matrix norm(Matrix x, Optional<Norm> norm) {
        return norm.map(each -> norm(x, each)).orElseGet(() -> kernels.asInputs(x));
    }

    private Matrix norm(Matrix x, Norm norm) {
        Matrix normed = kernels.inputs(x.rows(), x.columns());
        norm.apply(Heads.ofRows(x), Heads.ofRows(normed));
        return normed;
    }

    /**
     * Copies the entries of projected rows into their slots, from where attention reads them: so it does not matter which tokens are
     * computed in the same step.
     *
     * @param first of the batch's rows, the first among {@code entries}
     */
    private void save(int layer, Matrix entries, Batch batch, int first) {
        int count = Math.min(entries.rows(), batch.tokens() - first);
        if (count > 0) {
            kernels.save(layer, entries, cache, batch, first, count);
        }
    }

    private Logits logits(Matrix x, Batch batch) {
        int rows = batch.logitRows().length;
        if (rows == 0 || weights.head().isEmpty()) {
            return noLogits();
        }
        MemorySegment memory = ranks.fromFirst(() -> logitsMemory((long) rows * config.vocabularySize() * Float.BYTES));
        Shard.Range tokens = shard.vocabulary();
        Matrix part =
                Matrix.dense(memory, rows, config.vocabularySize(), DType.F32).columns(tokens.first(), tokens.count());
        weights.head().get().applyTo(part, norm(wanted(x, batch), weights.finalNorm()));
        ranks.await();
        if (shard.rank().tensor() != 0) {
            return noLogits();
        }
        scaleAndCap(Matrix.dense(memory, rows, config.vocabularySize(), DType.F32));
        long[] ids = kernels.largest(memory, rows, config.vocabularySize());
        return new RowLogits(rows, config.vocabularySize(), memory, ids);
    }

    private void scaleAndCap(Matrix logits) {
        float factor = (float) config.recipe().scales().logits();
        Optional<Double> cap = config.recipe().caps().logits();
        if (factor == 1 && cap.isEmpty()) {
            return;
        }
        int chunks = Math.ceilDiv(logits.columns(), LOGITS_AT_ONCE);
        kernels.threads().parallelFor(logits.rows() * chunks, 1, (_, first, end) -> {
            RowBuffer buffer = new RowBuffer(LOGITS_AT_ONCE);
            for (int chunk = first; chunk < end; chunk++) {
                int column = chunk % chunks * LOGITS_AT_ONCE;
                int count = Math.min(LOGITS_AT_ONCE, logits.columns() - column);
                buffer.load(logits, chunk / chunks, column, count);
                buffer.multiply(factor, count);
                for (int i = 0; cap.isPresent() && i < count; i++) {
                    buffer.values()[i] = (float) (cap.get() * Math.tanh(buffer.values()[i] / cap.get()));
                }
                buffer.store(logits, chunk / chunks, column, count);
            }
        });
    }

    /** The hidden states to compute logits of, padded with unused rows. */
    private Matrix wanted(Matrix x, Batch batch) {
        int rows = batch.logitRows().length;
        Matrix wanted = kernels.rows(kernels.padded(rows), config.hiddenSize());
        for (int i = 0; i < wanted.rows(); i++) {
            HiddenState state = batch.given().get(i);
            if (state != null) {
                Matrix.dense(state.data(), 1, config.hiddenSize(), state.dtype())
                        .convert(wanted.part(i, 1), ParallelFor.alone());
            } else if (i < rows && x.rows() > 0) {
                x.copyRow(batch.logitRows()[i], wanted, i);
            } else {
                wanted.part(i, 1).memory().fill((byte) 0);
            }
        }
        return wanted;
    }

    private long hiddenBytes(DType dtype) {
        return (long) config.hiddenSize() * dtype.bytes();
    }

    private Logits noLogits() {
        return new RowLogits(0, config.vocabularySize(), MemorySegment.NULL, new long[0]);
    }

    private MemorySegment logitsMemory(long bytes) {
        if (logitsMemory.byteSize() < bytes) {
            logitsArena.close();
            logitsArena = Arena.ofShared();
            logitsMemory = HugePages.allocate(logitsArena, bytes, "logits");
        }
        return logitsMemory.asSlice(0, bytes);
    }

    private record RowLogits(int rows, int vocabularySize, MemorySegment memory, long[] best) implements Logits {
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
