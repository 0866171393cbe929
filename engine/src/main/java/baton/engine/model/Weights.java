package baton.engine.model;

import baton.engine.kernel.Activation;
import baton.engine.model.Recipe.Dense;
import baton.engine.model.Recipe.Experts;
import baton.engine.model.Recipe.FeedForward;
import baton.engine.model.Recipe.Latent;
import baton.engine.model.Recipe.Part;
import baton.engine.model.Recipe.Plain;
import baton.engine.model.Recipe.Rotation;
import baton.kv.DType;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.ValueLayout;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/**
 * A model's weights as the forward pass uses them: in the type of computation, and fused where one input goes through several.
 *
 * @param <L> a matrix as {@link WeightPacking} keeps it
 * @param <N> a norm
 * @param head the output projection to this rank's part of the vocabulary, [tokens, hidden]; only the last stage has it
 * @param rotations by rotation and position: the cosines of the pairs that a head has, then their sines, [positions, D], or less if less is
 *     turned
 */
public record Weights<L, N>(
        Matrix embedding,
        List<LayerWeights<L, N>> layers,
        N finalNorm,
        Optional<L> head,
        Map<Rotation, Matrix> rotations) {
    /** @param shared another rank's weights; this rank uses their embedding and rotation too */
    static <L, N> Weights<L, N> load(
            Checkpoint checkpoint,
            Shard shard,
            DType dtype,
            int maxPositions,
            WeightPacking<L, N> packing,
            Arena arena,
            Owned owned,
            Optional<Weights<L, N>> shared)
            throws IOException {
        Loader<L, N> loader = new Loader<>(checkpoint, shard, shard.config(), dtype, packing, arena, owned, arena);
        Matrix embedding;
        try (Arena unpacked = Arena.ofShared()) {
            embedding = shared.isPresent()
                    ? shared.get().embedding
                    : loader.with(unpacked).embedding();
        }
        List<LayerWeights<L, N>> layers = new ArrayList<>();
        for (int i = 0; i < loader.config.layers(); i++) {
            try (Arena unpacked = Arena.ofShared()) {
                layers.add(loader.with(unpacked).layer(loader.shard.layers().first() + i));
            }
        }
        N finalNorm;
        Optional<L> head;
        try (Arena unpacked = Arena.ofShared()) {
            Loader<L, N> last = loader.with(unpacked);
            finalNorm = last.norm("model.norm.weight");
            head = loader.shard.isLastStage() ? Optional.of(last.head(embedding)) : Optional.empty();
        }
        Map<Rotation, Matrix> rotations = new HashMap<>();
        for (Rotation rotation : loader.config.recipe().rotations()) {
            Optional<Matrix> known = shared.map(weights -> weights.rotations.get(rotation));
            rotations.put(rotation, known.isPresent() ? known.get() : loader.rope(rotation, maxPositions));
        }
        return new Weights<>(embedding, layers, finalNorm, head, rotations);
    }

    /**
     * Loads a whole model.
     *
     * @param arena of the embedding and the rotations, which are in host memory
     */
    public static <L, N> Weights<L, N> load(
            Checkpoint checkpoint, ModelOptions options, WeightPacking<L, N> packing, Arena arena) throws IOException {
        Shard whole = Shard.of(checkpoint.config(), 1, 1).getFirst();
        return load(
                checkpoint,
                whole,
                options.dtype(),
                options.maxPositions(),
                packing,
                arena,
                new Owned(),
                Optional.empty());
    }

    /**
     * @param projection queries of all heads, then key and value of each key/value head in turn; of latent attention the queries, or the
     *     latent that they are made of, then the entry
     * @param rotatedNorms of queries and keys before they are rotated
     */
    public record LayerWeights<L, N>(
            Optional<N> attentionNorm,
            L projection,
            Optional<LatentWeights<L, N>> latent,
            Optional<RotatedNorms<N>> rotatedNorms,
            Optional<float[]> sinks,
            L output,
            Optional<N> afterAttentionNorm,
            Optional<N> feedForwardNorm,
            FeedForwardWeights<L> feedForward,
            Optional<N> afterFeedForwardNorm) {}

    /**
     * Of latent attention.
     *
     * @param queriesNorm of the latent that queries are made of
     * @param queries from that latent to the queries; empty if they are a product with the hidden state
     * @param norm of the latent that is cached
     * @param keys by head, from the query's part that is not rotated to a vector that is multiplied with latents
     * @param values by head, from latent to value
     */
    public record LatentWeights<L, N>(
            Latent latent, Optional<N> queriesNorm, Optional<L> queries, N norm, List<L> keys, List<L> values) {}

    public sealed interface FeedForwardWeights<L> {}

    /** The weights of {@link Recipe.Plain}. */
    public record Ungated<L>(Plain.Function function, L up, L down) implements FeedForwardWeights<L> {}

    /** The weights of {@link Recipe.Dense}, or of one expert. */
    public record Gated<L>(Activation activation, L gate, L up, L down) implements FeedForwardWeights<L> {}

    /**
     * Of {@link Recipe.Experts}. The shared expert is the last one, if there is one.
     *
     * @param router one output for each expert that a token may have or not, and one for the shared expert if a product decides how much of
     *     it is added
     * @param correction a number added to each expert's share where experts are chosen
     */
    public record Routed<L>(Experts kind, L router, Optional<float[]> correction, List<Gated<L>> experts)
            implements FeedForwardWeights<L> {}

    /** @param ofAllHeads of all heads together, [H*D] and [G*D]; else of each head, [D] */
    public record RotatedNorms<N>(N queries, N keys, boolean ofAllHeads) {}

    /** Native objects to free together. */
    static final class Owned implements AutoCloseable {
        private final Deque<Runnable> frees = new ArrayDeque<>();
        private long bytes;

        /** Counts memory that is held as long as these objects. */
        void count(long more) {
            bytes += more;
        }

        /** Bytes counted. */
        long bytes() {
            return bytes;
        }

        /** @param free of an object, called when all are freed, that of the last one first */
        void add(Runnable free) {
            frees.push(free);
        }

        @Override
        public void close() {
            while (!frees.isEmpty()) {
                frees.pop().run();
            }
        }
    }

    /** @param unpacked memory for unpacked tensors, until they are laid out */
    private record Loader<L, N>(
            Checkpoint checkpoint,
            Shard shard,
            ModelConfig config,
            DType dtype,
            WeightPacking<L, N> packing,
            Arena arena,
            Owned owned,
            Arena unpacked) {
        private static final String HEAD = "lm_head";

        Loader<L, N> with(Arena unpacked) {
            return new Loader<>(checkpoint, shard, config, dtype, packing, arena, owned, unpacked);
        }

        LayerWeights<L, N> layer(int number) throws IOException {
            String prefix = "model.layers." + number + ".";
            return new LayerWeights<>(
                    optionalNorm(prefix, Part.ATTENTION_NORM),
                    config.recipe().latent().isPresent() ? latentProjection(prefix) : projection(prefix),
                    latentWeights(prefix),
                    rotatedNorms(prefix),
                    config.recipe().has(Part.SINKS)
                            ? Optional.of(floats(List.of(weight(prefix, Part.SINKS, 0))))
                            : Optional.empty(),
                    linear(prefix, Part.OUTPUT, 0, "o_proj"),
                    optionalNorm(prefix, Part.AFTER_ATTENTION_NORM),
                    optionalNorm(prefix, Part.FEED_FORWARD_NORM),
                    feedForward(prefix, shard.model().recipe().feedForward().get(number)),
                    optionalNorm(prefix, Part.AFTER_FEED_FORWARD_NORM));
        }

        private FeedForwardWeights<L> feedForward(String prefix, FeedForward kind) throws IOException {
            return switch (kind) {
                case Dense dense -> gated(prefix, dense.activation(), 0, "", Part.GATE, Part.UP, Part.DOWN);
                case Plain plain ->
                    new Ungated<>(
                            plain.function(),
                            linear(prefix, Part.UP, 0, "up_proj"),
                            linear(prefix, Part.DOWN, 0, "down_proj"));
                case Experts experts -> {
                    Recipe recipe = config.recipe();
                    List<Matrix> router = new ArrayList<>(List.of(weight(prefix, Part.ROUTER, 0)));
                    List<Gated<L>> all = new ArrayList<>();
                    for (int i = 0; i < experts.count(); i++) {
                        try (Arena own = Arena.ofShared()) {
                            all.add(with(own)
                                    .gated(
                                            prefix,
                                            experts.activation(),
                                            i,
                                            "expert_",
                                            Part.EXPERT_GATE,
                                            Part.EXPERT_UP,
                                            Part.EXPERT_DOWN));
                        }
                    }
                    if (experts.sharedWidth() > 0) {
                        if (recipe.has(Part.SHARED_ROUTER)) {
                            router.add(weight(prefix, Part.SHARED_ROUTER, 0));
                        }
                        all.add(gated(
                                prefix,
                                experts.activation(),
                                0,
                                "shared_",
                                Part.SHARED_GATE,
                                Part.SHARED_UP,
                                Part.SHARED_DOWN));
                    }
                    Optional<float[]> correction = recipe.has(Part.ROUTER_CORRECTION)
                            ? Optional.of(floats(List.of(weight(prefix, Part.ROUTER_CORRECTION, 0)), DType.F32))
                            : Optional.empty();
                    Optional<float[]> bias = optionalBias(prefix, Part.ROUTER, 0);
                    yield new Routed<>(experts, packing.unquantised("router", router, bias), correction, all);
                }
            };
        }

        /**
         * @param expert its number; 0 if the parts are not those of an expert
         * @param operators prefix of the products' names
         */
        private Gated<L> gated(
                String prefix, Activation activation, int expert, String operators, Part gate, Part up, Part down)
                throws IOException {
            return new Gated<>(
                    activation,
                    linear(prefix, gate, expert, operators + "gate_proj"),
                    linear(prefix, up, expert, operators + "up_proj"),
                    linear(prefix, down, expert, operators + "down_proj"));
        }

        private Optional<RotatedNorms<N>> rotatedNorms(String prefix) throws IOException {
            boolean all = config.recipe().has(Part.QUERIES_NORM);
            Part queries = all ? Part.QUERIES_NORM : Part.QUERY_NORM;
            Part keys = all ? Part.KEYS_NORM : Part.KEY_NORM;
            return config.recipe().has(queries)
                    ? Optional.of(new RotatedNorms<>(norm(prefix, queries), norm(prefix, keys), all))
                    : Optional.empty();
        }

        private Optional<N> optionalNorm(String prefix, Part part) throws IOException {
            return config.recipe().has(part) ? Optional.of(norm(prefix, part)) : Optional.empty();
        }

        private N norm(String prefix, Part part) throws IOException {
            return norm(prefix + config.recipe().weight(part, 0));
        }

        /** @param operator name of the product among the operators that are timed */
        private L linear(String prefix, Part part, int expert, String operator) throws IOException {
            Optional<float[]> bias = optionalBias(prefix, part, expert);
            return packing.linear(operator, List.of(weight(prefix, part, expert)), bias);
        }

        private Optional<float[]> optionalBias(String prefix, Part part, int expert) throws IOException {
            // Where the products of all ranks are summed up, the first rank's has the bias.
            boolean biased = config.recipe().biased().contains(part) && shard.addsBias(part);
            return biased ? Optional.of(floats(List.of(bias(prefix, part, expert)))) : Optional.empty();
        }

        Matrix embedding() throws IOException {
            Matrix source = source("model.embed_tokens.weight");
            Matrix own = allocate(source.rows(), source.columns(), dtype);
            source.convert(own, packing.threads());
            return own;
        }

        L head(Matrix embedding) throws IOException {
            Shard.Range tokens = shard.vocabulary();
            if (!config.tiedEmbeddings()) {
                Matrix matrix = source(HEAD + ".weight").part(tokens.first(), tokens.count());
                return packing.linear(HEAD, List.of(matrix), Optional.empty());
            }
            return packing.shared(HEAD, embedding.part(tokens.first(), tokens.count()));
        }

        N norm(String name) throws IOException {
            float[] weights = floats(List.of(source(name)));
            for (int i = 0; config.recipe().onePlusNorms() && i < weights.length; i++) {
                weights[i] += 1;
            }
            Optional<float[]> bias = config.recipe().centersNorms()
                    ? Optional.of(floats(List.of(source(name.replace(".weight", ".bias")))))
                    : Optional.empty();
            return packing.norm(weights, bias, config.rmsNormEps());
        }

        /** Vectors one behind the other, rounded to the type that the model computes in, as in a checkpoint of that type. */
        private float[] floats(List<Matrix> vectors) {
            return floats(vectors, dtype);
        }

        private static float[] floats(List<Matrix> vectors, DType rounded) {
            float[] all = new float[vectors.stream().mapToInt(Matrix::rows).sum()];
            RowBuffer element = new RowBuffer(1);
            int count = 0;
            for (Matrix vector : vectors) {
                for (int row = 0; row < vector.rows(); row++) {
                    element.load(vector, row, 0, 1);
                    element.round(rounded, 1);
                    all[count++] = element.values()[0];
                }
            }
            return all;
        }

        private L projection(String prefix) throws IOException {
            List<Matrix> rows = fused(
                    weight(prefix, Part.QUERIES, 0), weight(prefix, Part.KEYS, 0), weight(prefix, Part.VALUES, 0));
            Optional<float[]> bias = config.recipe().biased().contains(Part.QUERIES)
                    ? Optional.of(floats(fused(
                            bias(prefix, Part.QUERIES, 0), bias(prefix, Part.KEYS, 0), bias(prefix, Part.VALUES, 0))))
                    : Optional.empty();
            return packing.linear("qkv_proj", rows, bias);
        }

        private L latentProjection(String prefix) throws IOException {
            Part queries = config.recipe().has(Part.QUERY_LATENT) ? Part.QUERY_LATENT : Part.QUERIES;
            return packing.linear(
                    "qkv_proj", List.of(weight(prefix, queries, 0), weight(prefix, Part.ENTRY, 0)), Optional.empty());
        }

        private Optional<LatentWeights<L, N>> latentWeights(String prefix) throws IOException {
            if (config.recipe().latent().isEmpty()) {
                return Optional.empty();
            }
            Latent latent = config.recipe().latent().get();
            boolean fromLatent = config.recipe().has(Part.QUERY_LATENT);
            Matrix expansion = weight(prefix, Part.EXPANSION, 0);
            List<L> keys = new ArrayList<>();
            List<L> values = new ArrayList<>();
            for (int row = 0; row < expansion.rows(); row += latent.expanded()) {
                List<Matrix> key = List.of(transposed(expansion.part(row, latent.plain())));
                keys.add(packing.unquantised("k_up_proj", key, Optional.empty()));
                List<Matrix> value = List.of(expansion.part(row + latent.plain(), latent.values()));
                values.add(packing.unquantised("v_up_proj", value, Optional.empty()));
            }
            return Optional.of(new LatentWeights<>(
                    latent,
                    optionalNorm(prefix, Part.QUERY_LATENT_NORM),
                    fromLatent ? Optional.of(linear(prefix, Part.QUERIES, 0, "q_up_proj")) : Optional.empty(),
                    norm(prefix, Part.LATENT_NORM),
                    keys,
                    values));
        }

        private Matrix transposed(Matrix matrix) {
            Matrix transposed = Matrix.dense(
                    unpacked.allocate((long) matrix.rows() * matrix.columns() * Float.BYTES, Float.BYTES),
                    matrix.columns(),
                    matrix.rows(),
                    DType.F32);
            RowBuffer row = new RowBuffer(matrix.columns());
            for (int i = 0; i < matrix.rows(); i++) {
                row.load(matrix, i, 0, matrix.columns());
                for (int j = 0; j < matrix.columns(); j++) {
                    transposed
                            .memory()
                            .setAtIndex(ValueLayout.JAVA_FLOAT, (long) j * matrix.rows() + i, row.values()[j]);
                }
            }
            return transposed;
        }

        /** The rows of the fused projection: queries of all heads, then for each key/value head its key and its value. */
        private List<Matrix> fused(Matrix queries, Matrix keys, Matrix values) {
            List<Matrix> parts = new ArrayList<>(List.of(queries));
            for (int row = 0; row < keys.rows(); row += config.headDim()) {
                parts.add(keys.part(row, config.headDim()));
                parts.add(values.part(row, config.headDim()));
            }
            return parts;
        }

        Matrix rope(Rotation rotation, int positions) {
            int turned = rotation.elements(config.rotatedDim());
            int half = turned / 2;
            double[] frequencies = Rope.frequencies(rotation, config.rotatedDim(), positions);
            double amplitude = Rope.amplitude(rotation);
            Matrix table = allocate(positions, turned, packing.rotations());
            RowBuffer row = new RowBuffer(turned);
            for (int position = 0; position < positions; position++) {
                for (int i = 0; i < half; i++) {
                    // The angle is rounded to fp32 as the model's makers' code does it.
                    float angle = position * (float) frequencies[i];
                    row.values()[i] = (float) (amplitude * Math.cos(angle));
                    row.values()[half + i] = (float) (amplitude * Math.sin(angle));
                }
                row.store(table, position, 0, turned);
            }
            return table;
        }

        /** This rank's part of a weight. */
        private Matrix weight(String prefix, Part part, int expert) throws IOException {
            return share(part, source(prefix + config.recipe().weight(part, expert)));
        }

        private Matrix bias(String prefix, Part part, int expert) throws IOException {
            return share(part, source(prefix + config.recipe().bias(part, expert)));
        }

        private Matrix share(Part part, Matrix matrix) {
            ModelConfig model = shard.model();
            return shard.part(
                    part,
                    matrix.part(
                            model.recipe().firstRow(part, model),
                            part.shape(model).getFirst()));
        }

        private Matrix source(String name) throws IOException {
            return checkpoint.matrix(name, dtype, packing.threads(), unpacked);
        }

        private Matrix allocate(long rows, long columns, DType type) {
            long bytes = rows * columns * type.bytes();
            owned.count(bytes);
            return Matrix.dense(HugePages.allocate(arena, bytes, "weights"), rows, columns, type);
        }
    }
}
