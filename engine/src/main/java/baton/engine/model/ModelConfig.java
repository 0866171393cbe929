package baton.engine.model;

import baton.engine.model.Recipe.Everything;
import baton.engine.model.Recipe.Latent;
import baton.engine.model.Recipe.Rotation;
import baton.engine.model.Recipe.Window;
import baton.kv.DType;
import baton.kv.KvGroups;
import baton.kv.KvLayout;
import java.util.List;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.stream.IntStream;
import java.util.stream.Stream;

/**
 * The shape of a decoder, as a Hugging Face config.json gives it.
 *
 * @param name the model directory's name
 * @param vocabularySize tokens known to the embedding
 * @param hiddenSize width of the residual stream
 * @param intermediateSize width of the feed-forward layer
 * @param heads query heads
 * @param kvHeads key/value heads; 1 of latent attention
 * @param headDim elements of a head; of latent attention those of an entry of the cache
 * @param maxPositions positions the model was made for
 * @param rmsNormEps epsilon of the norms
 * @param tiedEmbeddings true: the output projection is the embedding
 * @param dtype type of the weights in the checkpoint
 * @param recipe the computation of its layers
 */
public record ModelConfig(
        String name,
        int vocabularySize,
        int hiddenSize,
        int intermediateSize,
        int heads,
        int kvHeads,
        int headDim,
        int maxPositions,
        double rmsNormEps,
        boolean tiedEmbeddings,
        DType dtype,
        Recipe recipe) {
    /** A Llama without biases. */
    public ModelConfig(
            String name,
            int vocabularySize,
            int hiddenSize,
            int intermediateSize,
            int layers,
            int heads,
            int kvHeads,
            int headDim,
            int maxPositions,
            double rmsNormEps,
            double ropeTheta,
            Optional<RopeScaling> ropeScaling,
            boolean tiedEmbeddings,
            DType dtype) {
        this(
                name,
                vocabularySize,
                hiddenSize,
                intermediateSize,
                heads,
                kvHeads,
                headDim,
                maxPositions,
                rmsNormEps,
                tiedEmbeddings,
                dtype,
                Recipe.llama(layers, new Rotation(ropeTheta, ropeScaling)));
    }

    /** How rotary frequencies are changed for contexts longer than a model was trained on at first. */
    public sealed interface RopeScaling {}

    /** Position interpolation ({@code rope_type: linear}): every wavelength is multiplied by {@code factor}. */
    public record LinearRopeScaling(double factor) implements RopeScaling {}

    /**
     * Llama 3.1's stretching ({@code rope_type: llama3}): wavelengths longer than {@code originalMaxPositions / lowFreqFactor}
     * are multiplied by {@code factor}, those shorter than {@code originalMaxPositions / highFreqFactor} stay, and between the
     * two the frequency is interpolated.
     */
    public record Llama3RopeScaling(
            double factor, double lowFreqFactor, double highFreqFactor, int originalMaxPositions)
            implements RopeScaling {}

    /**
     * YaRN ({@code rope_type: yarn}, arXiv 2309.00071): pairs of a head that turn more than {@code betaFast} times in
     * {@code originalMaxPositions} stay, the wavelengths of those that turn less than {@code betaSlow} times are multiplied by
     * {@code factor}, and between the two the frequency is interpolated by the pair's index.
     *
     * @param attentionFactor factor of rotated queries and of rotated keys
     * @param truncate the two limits are rounded to whole indices, outwards
     */
    public record YarnRopeScaling(
            double factor,
            int originalMaxPositions,
            double attentionFactor,
            double betaFast,
            double betaSlow,
            boolean truncate)
            implements RopeScaling {}

    /**
     * LongRoPE ({@code rope_type: longrope}, arXiv 2402.13753): each wavelength is multiplied by a factor of its own. Which factors are used is
     * decided once, by the positions that a sequence may have: keys of the two kinds do not go together, so a sequence never changes from one
     * to the other.
     *
     * @param shortFactors where no sequence is longer than {@code originalMaxPositions}
     * @param longFactors where one may be
     * @param attentionFactor factor of rotated queries and of rotated keys
     */
    public record LongRopeScaling(
            List<Double> shortFactors, List<Double> longFactors, int originalMaxPositions, double attentionFactor)
            implements RopeScaling {
        public LongRopeScaling {
            shortFactors = List.copyOf(shortFactors);
            longFactors = List.copyOf(longFactors);
        }

        /** @param maxPositions that a sequence may have */
        boolean isLong(int maxPositions) {
            return maxPositions > originalMaxPositions;
        }
    }

    /** Decoder layers. */
    public int layers() {
        return recipe.layers().size();
    }

    /** The positions that a sequence may have unless more are asked for: as many as short factors of LongRoPE are for, as in vLLM. */
    public int defaultPositions() {
        return longRope().map(LongRopeScaling::originalMaxPositions).orElse(maxPositions);
    }

    /** The rotations' LongRoPE, if there is one. */
    Optional<LongRopeScaling> longRope() {
        return recipe.rotations().stream()
                .flatMap(rotation -> rotation.scaling().stream())
                .flatMap(scaling -> scaling instanceof LongRopeScaling found ? Stream.of(found) : Stream.empty())
                .findFirst();
    }

    /** How many positions a token attends to in a layer, its own included: the latest ones; all, if fewer. */
    public int attendedPositions(int layer) {
        return switch (recipe.layers().get(layer).reach()) {
            case Everything _ -> Integer.MAX_VALUE;
            case Window window -> window.positions();
        };
    }

    /** Elements of a head's query as it is projected. */
    int queryDim() {
        return recipe.latent().map(Latent::query).orElse(headDim);
    }

    /** Elements of a head's value as it is projected back. */
    int valueDim() {
        return recipe.latent().map(Latent::values).orElse(headDim);
    }

    /** Elements of a head that are rotated. */
    int rotatedDim() {
        return recipe.latent().map(Latent::rotated).orElse(headDim);
    }

    /** Factor of the products of queries and keys. */
    public double scoreScale() {
        return recipe.scales().scores().orElse(1 / Math.sqrt(headDim));
    }

    /** This model with some of its layers, and each of a part of its heads and of its feed-forward layer. */
    ModelConfig share(Shard.Range someLayers, int someHeads, int someKvHeads, int someIntermediate) {
        return new ModelConfig(
                name,
                vocabularySize,
                hiddenSize,
                someIntermediate,
                someHeads,
                someKvHeads,
                headDim,
                maxPositions,
                rmsNormEps,
                tiedEmbeddings,
                dtype,
                recipe.ofLayers(someLayers));
    }

    /**
     * The groups of layers that share blocks.
     *
     * @param hybrid whether layers with a window have groups of their own
     */
    public KvGroups kvGroups(boolean hybrid) {
        return hybrid
                ? KvGroups.of(IntStream.range(0, layers())
                        .map(this::attendedPositions)
                        .mapToObj(most -> most >= maxPositions ? OptionalInt.empty() : OptionalInt.of(most))
                        .toList())
                : KvGroups.one(layers());
    }

    /** The layout of a cache of this model's heads with blocks of the layers of one group. */
    public KvLayout kvLayout(KvGroups groups, int blockSize, DType cacheType) {
        return new KvLayout(
                groups.layersOfBlock(),
                kvHeads,
                headDim,
                blockSize,
                cacheType,
                recipe.latent().isPresent());
    }

    /** The layout of a cache of all layers and heads of this model. */
    public KvLayout kvLayout(int blockSize, DType cacheType) {
        return kvLayout(KvGroups.one(layers()), blockSize, cacheType);
    }

    /** Weights of the model, the shared embedding counted once. */
    public long parameters() {
        return Checkpoint.tensorShapes(this).values().stream()
                .mapToLong(shape -> shape.stream().reduce(1L, Math::multiplyExact))
                .sum();
    }
}
