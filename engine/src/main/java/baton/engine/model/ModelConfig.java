package baton.engine.model;

import baton.kv.DType;

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
        boolean tiedEmbeddings,
        DType dtype) {}
