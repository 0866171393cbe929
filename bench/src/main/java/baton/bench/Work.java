package baton.bench;

import baton.engine.model.ModelConfig;

/** The least work of a forward pass, in operations and bytes; shares of the machine's limits are computed from it. */
final class Work {
    /** Text of a report: what is counted. */
    static final String COUNTED = """
            Counted for prefill: 2 operations for each token and weight of the linear layers, and 2 for each element of queries times
            keys and of weights times values, keys after the query left out. For the last token only: the output projection, and what
            the last layer does beside making keys and values.
            Counted for decode: the weights of the linear layers and of the output projection once a step, and the keys and values
            of each sequence's context. Norms, rotary embedding, activations and what else is done are not counted.
            Shares and the speed-up compare best runs with best runs: other programs slow medians, and the limits' medians as well.
            Of GEMM: of products in the faster of bf16 and fp32; of linear: of those among them by LibTorch's linear. Beside: of the
            products that were done right before and after each prefill for as long as it takes, the median. The read rate is that
            of the fastest way to read; small models, whose weights stay in caches, may pass 100 %.""";

    private Work() {}

    static double prefillFlops(ModelConfig config, int tokens) {
        double layer = layerWeights(config) / config.layers();
        double keysAndValues = 2.0 * config.hiddenSize() * config.kvHeads() * config.headDim();
        double before = layer * tokens * (config.layers() - 1);
        double last = keysAndValues * tokens + (layer - keysAndValues) + outputWeights(config);
        double pairs = tokens * (tokens + 1.0) / 2 * (config.layers() - 1) + tokens;
        return 2 * (before + last) + 4 * pairs * config.heads() * config.headDim();
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
