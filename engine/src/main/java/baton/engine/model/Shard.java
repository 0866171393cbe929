package baton.engine.model;

import baton.engine.model.Recipe.Part;
import baton.kv.ConfigException;
import baton.kv.KvGroups;
import baton.kv.connector.Rank;
import java.util.ArrayList;
import java.util.List;

/**
 * One rank's part of a model. The tensor ranks of a stage share its matrices as in Megatron-LM (arXiv 1909.08053): the rows of
 * the projections to queries, keys, values, gates and logits, and the columns of the projections back to the hidden size, which have
 * their products summed over ranks. Each rank has its part of every expert, and the whole router. The stages share the layers.
 *
 * @param model the whole model
 * @param tensorSize ranks in each stage
 * @param pipelineSize stages
 */
record Shard(ModelConfig model, Rank rank, int tensorSize, int pipelineSize) {
    /**
     * The shares of all ranks, stage after stage.
     *
     * @throws ConfigException if the model cannot be shared like this
     */
    static List<Shard> of(ModelConfig model, int tensorSize, int pipelineSize) {
        if (model.heads() % tensorSize != 0
                || (model.kvHeads() % tensorSize != 0 && tensorSize % model.kvHeads() != 0)) {
            throw new ConfigException(
                    "tensor_parallel_size",
                    "is %d; it must divide the model's %d attention heads, and divide its %d key/value heads or be a multiple of them"
                            .formatted(tensorSize, model.heads(), model.kvHeads()));
        }
        if (pipelineSize > model.layers()) {
            throw new ConfigException(
                    "pipeline_parallel_size",
                    "is %d, must be at most the model's number of layers, which is %d"
                            .formatted(pipelineSize, model.layers()));
        }
        List<Shard> shards = new ArrayList<>();
        for (int stage = 0; stage < pipelineSize; stage++) {
            for (int tensor = 0; tensor < tensorSize; tensor++) {
                shards.add(new Shard(model, new Rank(stage, tensor), tensorSize, pipelineSize));
            }
        }
        return shards;
    }

    /** A run of heads, layers, rows and so on. */
    record Range(int first, int count) {
        /** The share of {@code index} when {@code size} divide {@code total} as evenly as can be. */
        static Range of(int total, int index, int size) {
            int first = (int) ((long) total * index / size);
            int end = (int) ((long) total * (index + 1) / size);
            return new Range(first, end - first);
        }
    }

    Range layers() {
        return Range.of(model.layers(), rank.pipeline(), pipelineSize);
    }

    /** The groups of this rank's layers; {@code hybrid} as in {@link ModelOptions}. */
    KvGroups groups(boolean hybrid) {
        return model.kvGroups(hybrid).ofLayers(layers().first(), layers().count());
    }

    Range heads() {
        return Range.of(model.heads(), rank.tensor(), tensorSize);
    }

    /** Another rank of the same stage. */
    Shard beside(int tensor) {
        return new Shard(model, new Rank(rank.pipeline(), tensor), tensorSize, pipelineSize);
    }

    /** The key/value heads of the rank. With more ranks than heads, several ranks have the same one. */
    Range kvHeads() {
        int first = (int) ((long) model.kvHeads() * rank.tensor() / tensorSize);
        return new Range(first, Math.max(1, model.kvHeads() / tensorSize));
    }

    /** The part of the vocabulary for which this rank computes logits, if it is in the last stage. */
    Range vocabulary() {
        return share(model.vocabularySize());
    }

    private Range share(int total) {
        return Range.of(total, rank.tensor(), tensorSize);
    }

    boolean isFirstStage() {
        return rank.pipeline() == 0;
    }

    boolean isLastStage() {
        return rank.pipeline() == pipelineSize - 1;
    }

    /** The model as far as this rank computes it: its layers, and of each its heads and its part of the feed-forward layer. */
    ModelConfig config() {
        return model.share(
                layers(),
                heads().count(),
                kvHeads().count(),
                share(model.intermediateSize()).count());
    }

    /** This rank's rows or columns of {@code whole}, the weight or bias of a layer's part. */
    Matrix part(Part part, Matrix whole) {
        if (tensorSize == 1) {
            return whole;
        }
        return switch (part) {
            case QUERIES -> rows(whole, heads(), model.queryDim());
            case EXPANSION ->
                rows(whole, heads(), model.recipe().latent().orElseThrow().expanded());
            case SINKS -> rows(whole, heads(), 1);
            case KEYS, VALUES -> rows(whole, kvHeads(), model.headDim());
            case GATE, UP, EXPERT_GATE, EXPERT_UP, SHARED_GATE, SHARED_UP -> rows(whole, share(whole.rows()), 1);
            case OUTPUT -> columns(whole, heads(), model.valueDim());
            case DOWN, EXPERT_DOWN, SHARED_DOWN -> columns(whole, share(whole.columns()), 1);
            case ATTENTION_NORM,
                    QUERY_LATENT,
                    QUERY_LATENT_NORM,
                    ENTRY,
                    LATENT_NORM,
                    ROUTER_CORRECTION,
                    QUERY_NORM,
                    KEY_NORM,
                    QUERIES_NORM,
                    KEYS_NORM,
                    ROUTER,
                    SHARED_ROUTER,
                    AFTER_ATTENTION_NORM,
                    FEED_FORWARD_NORM,
                    AFTER_FEED_FORWARD_NORM -> whole;
        };
    }

    /** Whether this rank adds the bias of a part: where the products of all ranks are summed up, the first does. */
    boolean addsBias(Part part) {
        return rank.tensor() == 0 || part != Part.OUTPUT && part != Part.DOWN && part != Part.EXPERT_DOWN;
    }

    private static Matrix rows(Matrix whole, Range range, int unit) {
        return whole.part((long) range.first() * unit, (long) range.count() * unit);
    }

    /** Columns of a weight; the bias of its product stays whole. */
    private static Matrix columns(Matrix whole, Range range, int unit) {
        return whole.columns() == 1 ? whole : whole.columns((long) range.first() * unit, (long) range.count() * unit);
    }
}
