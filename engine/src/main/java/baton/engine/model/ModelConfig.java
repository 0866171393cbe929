package baton.engine.model;

import baton.kv.DType;
import baton.kv.KvLayout;
import java.util.List;
import java.util.Optional;

/**
 * The shape of a decoder, as a Hugging Face config.json gives it.
 *
 * @param name the model directory's name
 * @param vocabularySize tokens known to the embedding
 * @param hiddenSize width of the residual stream
 * @param intermediateSize width of the feed-forward layer
 * @param layers decoder layers
 * @param heads query heads
 * @param kvHeads key/value heads
 * @param headDim elements of a head
 * @param maxPositions positions the model was made for
 * @param rmsNormEps epsilon of the norms
 * @param ropeTheta base of the rotary embedding
 * @param ropeScaling how the rotary frequencies are stretched for long contexts; empty: not at all
 * @param tiedEmbeddings true: the output projection is the embedding
 * @param dtype type of the weights in the checkpoint
 * @param variant what the model's family does otherwise than Llama
 */
public record ModelConfig(
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
        DType dtype,
        Variant variant) {
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
                layers,
                heads,
                kvHeads,
                headDim,
                maxPositions,
                rmsNormEps,
                ropeTheta,
                ropeScaling,
                tiedEmbeddings,
                dtype,
                Variant.LLAMA);
    }

    /**
     * Where families of decoders differ.
     *
     * @param architecture the family's name in config.json
     * @param projectionBias the projections to queries, keys and values have biases
     * @param outputBias attention's output projection has a bias
     * @param feedForwardBias the matrices of the feed-forward layer have biases
     * @param headNorms each head of the queries and keys is normed before it is rotated
     * @param slidingWindow empty: every layer attends to all positions
     */
    public record Variant(
            String architecture,
            boolean projectionBias,
            boolean outputBias,
            boolean feedForwardBias,
            boolean headNorms,
            Optional<SlidingWindow> slidingWindow) {
        /** Llama as its checkpoints usually are. */
        public static final Variant LLAMA =
                new Variant("LlamaForCausalLM", false, false, false, false, Optional.empty());
    }

    /**
     * @param positions how many a token attends to in the layers of the window: the latest ones, its own included
     * @param layers the layers of the window
     */
    public record SlidingWindow(int positions, List<Integer> layers) {
        public SlidingWindow {
            layers = List.copyOf(layers);
        }
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

    /** How many positions a token attends to in a layer, its own included: the latest ones; all, if fewer. */
    public int attendedPositions(int layer) {
        return variant.slidingWindow()
                .filter(window -> window.layers().contains(layer))
                .map(SlidingWindow::positions)
                .orElse(Integer.MAX_VALUE);
    }

    /** This model with fewer layers, and each of a part of its heads and of its feed-forward layer. */
    ModelConfig share(int someLayers, int someHeads, int someKvHeads, int someIntermediate) {
        return new ModelConfig(
                name,
                vocabularySize,
                hiddenSize,
                someIntermediate,
                someLayers,
                someHeads,
                someKvHeads,
                headDim,
                maxPositions,
                rmsNormEps,
                ropeTheta,
                ropeScaling,
                tiedEmbeddings,
                dtype,
                variant);
    }

    /** The layout of a cache of all layers and heads of this model. */
    public KvLayout kvLayout(int blockSize, DType cacheType) {
        return new KvLayout(layers, kvHeads, headDim, blockSize, cacheType);
    }

    /** Weights of the model, the shared embedding counted once. */
    public long parameters() {
        return Checkpoint.tensorShapes(this).values().stream()
                .mapToLong(shape -> shape.stream().reduce(1L, Math::multiplyExact))
                .sum();
    }
}
