package baton.bench;

import baton.engine.model.ModelConfig;
import baton.engine.model.Recipe.Dense;
import baton.engine.model.Recipe.Experts;
import baton.engine.model.Recipe.FeedForward;
import baton.engine.model.Recipe.Latent;
import baton.engine.model.Recipe.Plain;

/** The least work of a forward pass, in operations and bytes; shares of the machine's limits are computed from it. */
public final class LeastWork {
    /** A report's text about the counted work. */
    static final String COUNTED = """
            Counted for prefill: 2 operations for each token and weight of the linear layers, and 2 for each element of queries times
            keys and of weights times values, keys after the query left out. For the last token only: the output projection, and what
            the last layer does beside making keys and values.
            Counted for decode: the weights of the linear layers and of the output projection once a step, and the keys and values
            of each sequence's context; of experts, as many as the batch's tokens have on average if all are chosen alike. Norms, rotary embedding, activations and what else is done are not counted.
            Shares and the speed-up compare best runs with best runs: other programs slow medians, and the limits' medians as well.
            Of GEMM: of products in the faster of bf16 and fp32; of linear: of those among them by LibTorch's linear. Beside: of the
            products that were done right before and after each prefill for as long as it takes, the median. The read rate is that
            of the fastest way to read; small models may pass 100 %, as their weights stay in caches.""";

    private LeastWork() {}

    public static double prefillFlops(ModelConfig config, int tokens) {
        double layer = layerWeights(config, 1) / config.layers();
        double keysAndValues = (double) config.hiddenSize() * keys(config);
        double before = layer * tokens * (config.layers() - 1);
        double last = keysAndValues * tokens + (layer - keysAndValues) + outputWeights(config);
        double pairs = tokens * (tokens + 1.0) / 2 * (config.layers() - 1) + tokens;
        double elements = config.recipe()
                .latent()
                .map(each -> each.plain() + each.rotated() + each.values())
                .orElse(2 * config.headDim());
        return 2 * (before + last) + 2 * pairs * config.heads() * elements;
    }

    /**
     * @param weightBytes of a weight
     * @param cacheBytes of an element of the KV cache
     */
    public static double decodeBytes(ModelConfig config, int batch, int context, int weightBytes, int cacheBytes) {
        double cached = (double) config.layers() * keys(config) * context * batch;
        return weightBytes * (layerWeights(config, batch) + outputWeights(config)) + cacheBytes * cached;
    }

    /** Elements that are cached of a token in a layer. */
    private static double keys(ModelConfig config) {
        return config.recipe().latent().map(Latent::entry).orElse(2 * config.kvHeads() * config.headDim());
    }

    /** Weights of all layers that as many tokens use, each at least once. */
    private static double layerWeights(ModelConfig config, int tokens) {
        double attention = config.recipe()
                .latent()
                .map(latent -> attentionWeights(latent, config))
                .orElse(2.0 * config.hiddenSize() * config.headDim() * (config.heads() + config.kvHeads()));
        return config.recipe().feedForward().stream()
                .mapToDouble(each -> attention + config.hiddenSize() * outputs(each, config, tokens))
                .sum();
    }

    private static double attentionWeights(Latent latent, ModelConfig config) {
        double hidden = config.hiddenSize();
        double queries = (double) config.heads() * (latent.plain() + latent.rotated());
        double ofQueries = latent.queryRank() == 0 ? hidden * queries : latent.queryRank() * (hidden + queries);
        double expanded = (double) config.heads() * (latent.plain() + latent.values());
        return ofQueries
                + hidden * latent.entry()
                + latent.rank() * expanded
                + hidden * config.heads() * latent.values();
    }

    /** The outputs of the matrices of a feed-forward part, as if all had {@code hidden_size} inputs. */
    private static double outputs(FeedForward kind, ModelConfig config, int tokens) {
        return switch (kind) {
            case Dense _ -> 3.0 * config.intermediateSize();
            case Plain _ -> 2.0 * config.intermediateSize();
            case Experts experts -> {
                double unused = Math.pow(1 - (double) experts.chosen() / experts.count(), tokens);
                yield 3 * (experts.count() * (1 - unused) * experts.width() + experts.sharedWidth()) + experts.count();
            }
        };
    }

    private static double outputWeights(ModelConfig config) {
        return (double) config.vocabularySize() * config.hiddenSize();
    }
}
