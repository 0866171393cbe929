package baton.engine.model;

import baton.kv.DType;
import baton.kv.KvLayout;
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
        Optional<Llama3RopeScaling> ropeScaling,
        boolean tiedEmbeddings,
        DType dtype) {
    /**
     * Llama 3.1's stretching ({@code rope_type: llama3}): wavelengths longer than {@code originalMaxPositions / lowFreqFactor}
     * are multiplied by {@code factor}, those shorter than {@code originalMaxPositions / highFreqFactor} stay, and between the
     * two the frequency is interpolated.
     */
    public record Llama3RopeScaling(
            double factor, double lowFreqFactor, double highFreqFactor, int originalMaxPositions) {}

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
                dtype);
    }

    /** The layout of a cache of all layers and heads of this model. */
    public KvLayout kvLayout(int blockSize, DType cacheType) {
        return new KvLayout(layers, kvHeads, headDim, blockSize, cacheType);
    }

    /** Weights of the model, the shared embedding counted once. */
    public long parameters() {
        long attention = (long) hiddenSize * headDim * (2L * heads + 2L * kvHeads);
        long feedForward = 3L * hiddenSize * intermediateSize;
        long embeddings = (tiedEmbeddings ? 1L : 2L) * vocabularySize * hiddenSize;
        return embeddings + layers * (attention + feedForward + 2L * hiddenSize) + hiddenSize;
    }
}
