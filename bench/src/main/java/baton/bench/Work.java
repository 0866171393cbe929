package baton.bench;

import baton.engine.model.ModelConfig;

/** The work that a forward pass cannot do without: what shares of the machine's limits are counted by. */
final class Work {
    /** What is counted, for readers of a report. */
    static final String COUNTED = """
            Counted for prefill: 2 operations for each token and weight of the linear layers, the output projection for the last
            token only, and 2 for each element of queries times keys and of weights times values, keys after the query left out.
            Counted for decode: the weights of the linear layers and of the output projection once a step, and the keys and values
            of each sequence's context. Norms, rotary embedding, activations and what else is done are not counted.
            Shares and the speed-up compare best runs with best runs: other programs slow medians, and the limits' medians as well. The
            read rate is that of the faster of the two ways to read; small models, whose weights stay in caches, may pass 100 %.""";

    private Work() {}

    static double prefillFlops(ModelConfig config, int tokens) {
        double linear = 2.0 * layerWeights(config) * tokens + 2.0 * outputWeights(config);
        double pairs = tokens * (tokens + 1.0) / 2;
        return linear + 4.0 * pairs * config.layers() * config.heads() * config.headDim();
    }

    /**
     * @param weightBytes of a weight
     * @param cacheBytes of an element of the KV cache
     */
    static double decodeBytes(ModelConfig config, int batch, int context, int weightBytes, int cacheBytes) {
        double cached = 2.0 * config.layers() * config.kvHeads() * config.headDim() * context * batch;
        return weightBytes * (layerWeights(config) + outputWeights(config)) + cacheBytes * cached;
    }

    private static double layerWeights(ModelConfig config) {
        double attention =
                (double) config.hiddenSize() * config.headDim() * (2L * config.heads() + 2L * config.kvHeads());
        double feedForward = 3.0 * config.hiddenSize() * config.intermediateSize();
        return config.layers() * (attention + feedForward);
    }

    private static double outputWeights(ModelConfig config) {
        return (double) config.vocabularySize() * config.hiddenSize();
    }
}
