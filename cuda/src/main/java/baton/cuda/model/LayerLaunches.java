package baton.cuda.model;

import baton.cuda.driver.Gpu;
import baton.cuda.kernel.DeviceRows;
import baton.cuda.kernel.GpuKernels;
import baton.cuda.kernel.Weight;
import baton.cuda.model.DeviceWeights.Experts;
import baton.cuda.model.DeviceWeights.Layer;
import baton.cuda.model.StepInputs.Step;
import baton.engine.model.ModelConfig;
import baton.engine.model.Recipe;
import baton.engine.model.Recipe.Latent;
import baton.engine.model.Recipe.Rotation;
import baton.engine.model.Weights.Gated;
import baton.engine.model.Weights.LatentWeights;
import baton.engine.model.Weights.LayerWeights;
import baton.engine.model.Weights.RotatedNorms;
import baton.engine.model.Weights.Routed;
import baton.engine.model.Weights.Ungated;
import baton.kv.DType;
import baton.kv.KvCache;
import java.lang.foreign.MemorySegment;
import java.util.Objects;
import java.util.Optional;
import java.util.function.IntConsumer;

/*
 * T rows, H query heads, G key/value heads, D head dim, as in DecoderRunner: the fused projection gives [T, H*D + G*2D]; the right part of it is the entries
 * of the cache. The residual stream and the results of products are fp32, their inputs are of the type of computation.
 */

/** Enqueues the launches of steps: the layers of a recipe, and the logits. Used by one thread. */
final class LayerLaunches {
    private final ModelConfig config;
    private final DType dtype;
    private final KvCache cache;
    private final DeviceWeights weights;
    private final GpuKernels kernels;
    private final Gpu.Stream stream;
    private final StepInputs inputs;
    private final int queryColumns;
    /** Whether the rows that are computed are those of sequences with many. */
    private boolean ofLong;

    LayerLaunches(
            ModelConfig config,
            DType dtype,
            KvCache cache,
            DeviceWeights weights,
            GpuKernels kernels,
            Gpu.Stream stream,
            StepInputs inputs) {
        this.config = config;
        this.dtype = dtype;
        this.cache = cache;
        this.weights = weights;
        this.kernels = kernels;
        this.stream = stream;
        this.inputs = inputs;
        this.queryColumns = config.heads() * config.headDim();
    }

    /**
     * Enqueues the layers.
     *
     * @param before called before the launches of each layer
     * @param after called behind them
     */
    void layers(Step step, Activations memory, IntConsumer before, IntConsumer after) {
        kernels.rows()
                .embed(stream, inputs.ids(), weights.embedding(), embeddingFactor(), memory.x.rows(0, step.rows()));
        for (int layer = 0; layer < config.layers(); layer++) {
            before.accept(layer);
            layer(layer, step, memory);
            after.accept(layer);
        }
    }

    /** Rounded to the type of computation, as the model's makers' code does it. */
    private float embeddingFactor() {
        MemorySegment number = MemorySegment.ofArray(new byte[Float.BYTES]);
        dtype.set(number, 0, (float) config.recipe().scales().embedding());
        return dtype.get(number, 0);
    }

    private void layer(int index, Step step, Activations memory) {
        Layer layer = weights.layers().get(index);
        LayerWeights<Weight, DeviceNorm> own = layer.weights();
        Optional<Rotation> rotation = config.recipe().layers().get(index).rotation();
        forRows(step, (first, count) -> {
            DeviceRows projected =
                    shaped(memory.projected, count, own.projection().outputs());
            product(own.projection(), norm(own.attentionNorm(), memory.x.rows(first, count), memory), projected);
            long positions = inputs.positions() + (long) first * Integer.BYTES;
            DeviceRows to = memory.queries.rows(first, count).heads(config.heads(), config.headDim());
            long slots = inputs.slots(index, step) + (long) first * Long.BYTES;
            if (own.latent().isPresent()) {
                DeviceRows entries = projectLatent(layer, projected, rotation.orElseThrow(), positions, to, memory);
                kernels.cache().save(stream, entries, slots, cache, index);
                return;
            }
            DeviceRows queries = projected.columns(0, queryColumns);
            DeviceRows entries = projected
                    .columns(queryColumns, 2 * config.kvHeads() * config.headDim())
                    .heads(config.kvHeads(), 2 * config.headDim());
            own.rotatedNorms().ifPresent(norms -> normHeads(norms, queries, keys(entries), memory));
            rotate(rotation, positions, queries.heads(config.heads(), config.headDim()), keys(entries), to);
            kernels.cache().save(stream, entries, slots, cache, index);
        });
        if (index == config.layers() - 1) {
            lastLayer(index, layer, step, memory);
            return;
        }
        attend(index, layer, memory, step, inputs.sequences(index, step), step.sequences());
        forRows(step, (first, count) -> {
            DeviceRows x = memory.x.rows(first, count);
            addProduct(
                    x,
                    own.output(),
                    values(layer, memory.attended.rows(first, count), memory),
                    own.afterAttentionNorm(),
                    memory);
            feedForward(layer, x, memory);
        });
    }

    /** Only the rows that are wanted are computed to the end, into {@code memory.last}. */
    private void lastLayer(int index, Layer layer, Step step, Activations memory) {
        if (step.tail() == 0) {
            return;
        }
        attend(index, layer, memory, step, inputs.tail(), step.tail());
        forPieces(0, step.wanted(), (first, count) -> {
            long indices = inputs.wanted() + (long) first * Integer.BYTES;
            DeviceRows x = memory.last.rows(first, count);
            DeviceRows attended = memory.lastAttended.rows(0, count);
            kernels.rows().gather(stream, memory.x, indices, x);
            kernels.rows().gather(stream, memory.attended, indices, attended);
            addProduct(
                    x,
                    layer.weights().output(),
                    values(layer, attended, memory),
                    layer.weights().afterAttentionNorm(),
                    memory);
            feedForward(layer, x, memory);
        });
    }

    /** Enqueues the logits of the first rows of {@code memory.last}, and the ids of the largest. */
    void logits(int rows, Activations memory) {
        forPieces(
                0,
                rows,
                (first, count) -> product(
                        weights.head(),
                        norm(Optional.of(weights.finalNorm()), memory.last.rows(first, count), memory),
                        memory.logits.rows(first, count)));
        DeviceRows logits = memory.logits.rows(0, rows);
        float factor = (float) config.recipe().scales().logits();
        float cap = config.recipe().caps().logits().map(Double::floatValue).orElse(0f);
        if (factor != 1 || cap != 0) {
            kernels.rows().scaleAndCap(stream, logits, factor, cap);
        }
        kernels.sampling().argmax(stream, logits, memory.best, memory.bestValues);
    }

    private void attend(int index, Layer layer, Activations memory, Step step, long sequences, int count) {
        kernels.attention()
                .attend(
                        stream,
                        memory.queries.rows(0, step.rows()).heads(config.heads(), config.headDim()),
                        memory.attended.rows(0, step.rows()).heads(config.heads(), config.headDim()),
                        cache,
                        index,
                        sequences,
                        count,
                        inputs.tables(),
                        step.longest(),
                        step.context(),
                        config.attendedPositions(index),
                        (float) config.scoreScale(),
                        config.recipe().caps().scores().map(Double::floatValue).orElse(0f),
                        layer.sinks());
    }

    /** The keys of entries. */
    private DeviceRows keys(DeviceRows entries) {
        return entries.columns(0, config.headDim());
    }

    /**
     * Makes queries and entries of latent attention, with each head's key matrix in its query: all heads attend to the entries as they are.
     *
     * @param projected the queries, or the latent that they are made of, then the entry
     * @param to queries, as wide as an entry each
     * @return the entries
     */
    private DeviceRows projectLatent(
            Layer layer, DeviceRows projected, Rotation rotation, long positions, DeviceRows to, Activations memory) {
        LatentWeights<Weight, DeviceNorm> own = layer.weights().latent().orElseThrow();
        Latent latent = own.latent();
        int rows = projected.rows();
        int width = projected.columns() - latent.entry();
        DeviceRows entries = projected.columns(width, latent.entry()).heads(1, latent.entry());
        DeviceRows latents = entries.columns(0, latent.rank());
        apply(own.norm(), latents, latents);
        DeviceRows rotated = entries.columns(latent.rank(), latent.rotated());
        turn(rotation, positions, rotated, rotated);
        DeviceRows queries = projected.columns(0, width);
        if (own.queries().isPresent()) {
            DeviceRows normed = shaped(memory.headInputs, rows, width);
            apply(own.queriesNorm().orElseThrow(), queries, normed);
            queries = shaped(memory.latentQueries, rows, own.queries().get().outputs());
            product(own.queries().get(), normed, queries);
        }
        DeviceRows ofHeads = queries.heads(config.heads(), latent.query());
        DeviceRows plain =
                shaped(memory.headInputs, rows, config.heads() * latent.plain()).heads(config.heads(), latent.plain());
        kernels.rows().convert(stream, ofHeads.columns(0, latent.plain()), plain);
        DeviceRows absorbed =
                shaped(memory.ofHeads, rows, config.heads() * latent.rank()).heads(config.heads(), latent.rank());
        kernels.products()
                .productOfHeads(stream, layer.latentHeads().orElseThrow().keys(), plain, absorbed);
        kernels.rows().convert(stream, absorbed, to.columns(0, latent.rank()));
        turn(
                rotation,
                positions,
                ofHeads.columns(latent.plain(), latent.rotated()),
                to.columns(latent.rank(), latent.rotated()));
        return entries;
    }

    /** The values of all heads: the results of attention, of which latent attention multiplies each head's latent. */
    private DeviceRows values(Layer layer, DeviceRows attended, Activations memory) {
        if (layer.latentHeads().isEmpty()) {
            return attended;
        }
        Latent latent = config.recipe().latent().orElseThrow();
        DeviceRows latents = attended.heads(config.heads(), latent.entry()).columns(0, latent.rank());
        DeviceRows products = shaped(memory.ofHeads, attended.rows(), config.heads() * latent.values());
        DeviceRows ofHeads = products.heads(config.heads(), latent.values());
        kernels.products().productOfHeads(stream, layer.latentHeads().get().values(), latents, ofHeads);
        DeviceRows values = shaped(memory.headInputs, attended.rows(), products.columns());
        kernels.rows().convert(stream, products, values);
        return values;
    }

    private void turn(Rotation rotation, long positions, DeviceRows from, DeviceRows to) {
        DeviceRows table = Objects.requireNonNull(weights.rotations().get(rotation));
        kernels.rows().rotate(stream, from, positions, table.address(), table.columns(), rotation.ofNeighbours(), to);
    }

    private void normHeads(RotatedNorms<DeviceNorm> norms, DeviceRows queries, DeviceRows keys, Activations memory) {
        if (!norms.ofAllHeads()) {
            DeviceRows heads = queries.heads(config.heads(), config.headDim());
            apply(norms.queries(), heads, heads);
            apply(norms.keys(), keys, keys);
            return;
        }
        apply(norms.queries(), queries, queries);
        // Between the keys of two heads are values, so they are copied beside each other and back.
        DeviceRows together = memory.keys.rows(0, keys.rows());
        DeviceRows heads = together.heads(config.kvHeads(), config.headDim());
        kernels.rows().convert(stream, keys, heads);
        apply(norms.keys(), together, together);
        kernels.rows().convert(stream, heads, keys);
    }

    /** Turns keys in place and queries into {@code to}. */
    private void rotate(
            Optional<Rotation> rotation, long positions, DeviceRows queries, DeviceRows keys, DeviceRows to) {
        if (rotation.isEmpty()) {
            kernels.rows().convert(stream, queries, to);
            return;
        }
        turn(rotation.get(), positions, queries, to);
        turn(rotation.get(), positions, keys, keys);
    }

    private void feedForward(Layer layer, DeviceRows x, Activations memory) {
        LayerWeights<Weight, DeviceNorm> own = layer.weights();
        DeviceRows normed = norm(own.feedForwardNorm(), x, memory);
        Optional<DeviceNorm> after = own.afterFeedForwardNorm();
        switch (own.feedForward()) {
            case Gated<Weight> gated -> addProduct(x, gated.down(), gated(gated, normed, memory), after, memory);
            case Ungated<Weight> plain -> {
                DeviceRows up = shaped(memory.up, normed.rows(), plain.up().outputs());
                DeviceRows activated =
                        shaped(memory.activated, normed.rows(), plain.up().outputs());
                product(plain.up(), normed, up);
                kernels.rows().function(stream, up, plain.function(), activated);
                addProduct(x, plain.down(), activated, after, memory);
            }
            case Routed<Weight> routed -> {
                if (after.isEmpty() && isPlainlyAdded()) {
                    addExperts(routed, layer.experts().orElseThrow(), normed, x, memory);
                } else {
                    DeviceRows sum = memory.sum.rows(0, x.rows());
                    stream.fill(sum.address(), 0, (long) sum.rows() * sum.columns() * Float.BYTES);
                    addExperts(routed, layer.experts().orElseThrow(), normed, sum, memory);
                    addSum(x, sum, after);
                }
            }
        }
    }

    /** The rows that {@code down} multiplies. */
    private DeviceRows gated(Gated<Weight> gated, DeviceRows normed, Activations memory) {
        int width = gated.up().outputs();
        DeviceRows gate = shaped(memory.gate, normed.rows(), width);
        DeviceRows up = shaped(memory.up, normed.rows(), width);
        DeviceRows activated = shaped(memory.activated, normed.rows(), width);
        product(gated.gate(), normed, gate);
        product(gated.up(), normed, up);
        kernels.rows().activate(stream, gate, up, gated.activation(), activated);
        return activated;
    }

    /** Adds the results of the experts that the router chooses, and of the one of all tokens, to {@code sum}. */
    private void addExperts(
            Routed<Weight> routed, Experts experts, DeviceRows normed, DeviceRows sum, Activations memory) {
        Recipe.Experts kind = routed.kind();
        DeviceRows router = shaped(memory.router, normed.rows(), routed.router().outputs());
        product(routed.router(), normed, router);
        kernels.experts()
                .route(
                        stream,
                        router,
                        experts.correction(),
                        kind,
                        memory.chosen,
                        memory.shares,
                        kind.sharedWidth() > 0 ? memory.sharedShares : 0);
        kernels.experts().group(stream, memory.chosen, normed.rows(), kind.chosen(), kind.count(), memory.lists);
        int choices = normed.rows() * kind.chosen();
        DeviceRows gate = memory.expertGate.rows(0, choices);
        DeviceRows up = memory.expertUp.rows(0, choices);
        DeviceRows activated = memory.expertActivated.rows(0, choices);
        DeviceRows results = memory.expertResults.rows(0, choices);
        products(experts.gate(), kind, normed, gate, false, memory);
        products(experts.up(), kind, normed, up, false, memory);
        kernels.rows().activate(stream, gate, up, kind.activation(), activated);
        products(experts.down(), kind, activated, results, true, memory);
        if (kind.sharedWidth() > 0) {
            Gated<Weight> shared = routed.experts().getLast();
            product(shared.down(), gated(shared, normed, memory), memory.shared.rows(0, normed.rows()));
        }
        kernels.experts()
                .combine(
                        stream,
                        results,
                        memory.shares,
                        kind.sharedWidth() > 0 ? memory.shared.address() : 0,
                        memory.sharedShares,
                        sum);
    }

    /** @param ofChoices the rows are those of choices; else each is the row of all its choices */
    private void products(
            Weight matrices,
            Recipe.Experts kind,
            DeviceRows rows,
            DeviceRows out,
            boolean ofChoices,
            Activations memory) {
        kernels.experts().products(stream, matrices, kind.count(), memory.lists, rows, out, kind.chosen(), ofChoices);
    }

    /** Adds a product to the residual stream: normed, if there is a norm, and times the recipe's factor. */
    private void addProduct(
            DeviceRows x, Weight matrix, DeviceRows rows, Optional<DeviceNorm> norm, Activations memory) {
        if (norm.isEmpty() && isPlainlyAdded()) {
            multiply(matrix, rows, x, true);
            return;
        }
        DeviceRows sum = memory.sum.rows(0, x.rows());
        product(matrix, rows, sum);
        addSum(x, sum, norm);
    }

    private boolean isPlainlyAdded() {
        return config.recipe().scales().residual() == 1;
    }

    private void addSum(DeviceRows x, DeviceRows sum, Optional<DeviceNorm> norm) {
        norm.ifPresent(each -> apply(each, sum, sum));
        kernels.rows().add(stream, sum, (float) config.recipe().scales().residual(), x);
    }

    private void product(Weight matrix, DeviceRows rows, DeviceRows out) {
        multiply(matrix, rows, out, false);
    }

    private void multiply(Weight matrix, DeviceRows rows, DeviceRows out, boolean add) {
        if (ofLong) {
            kernels.products().productOfLong(stream, matrix, rows, out, add);
        } else {
            kernels.products().product(stream, matrix, rows, out, add);
        }
    }

    /** Normalises rows to inputs of products. */
    private DeviceRows norm(Optional<DeviceNorm> norm, DeviceRows x, Activations memory) {
        DeviceRows normed = memory.normed.rows(0, x.rows());
        norm.ifPresentOrElse(
                each -> apply(each, x, normed), () -> kernels.rows().convert(stream, x, normed));
        return normed;
    }

    private void apply(DeviceNorm norm, DeviceRows from, DeviceRows to) {
        kernels.rows().norm(stream, from, norm.weights(), norm.bias(), norm.eps(), norm.bias() != 0, to);
    }

    /** DeviceRows of as many columns in the memory of wider ones. */
    private static DeviceRows shaped(DeviceRows memory, int rows, int columns) {
        return DeviceRows.matrix(memory.address(), memory.type(), rows, columns);
    }

    /** All rows of a step: first those of sequences with few, so that a row's products depend on its own sequence. */
    private void forRows(Step step, PieceWork work) {
        forPieces(0, step.few(), work);
        ofLong = true;
        try {
            forPieces(step.few(), step.rows(), work);
        } finally {
            ofLong = false;
        }
    }

    private static void forPieces(int from, int end, PieceWork work) {
        for (int first = from; first < end; first += Activations.PIECE_ROWS) {
            work.accept(first, Math.min(Activations.PIECE_ROWS, end - first));
        }
    }

    /** Work on some rows. */
    @FunctionalInterface
    private interface PieceWork {
        void accept(int first, int count);
    }
}
