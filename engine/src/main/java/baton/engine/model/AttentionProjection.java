package baton.engine.model;

import baton.engine.model.ModelKernels.Heads;
import baton.engine.model.ModelKernels.Norm;
import baton.engine.model.Recipe.Rotation;
import baton.engine.model.Weights.LayerWeights;
import baton.engine.model.Weights.RotatedNorms;
import java.util.Optional;
import java.util.function.Function;
import java.util.function.IntFunction;

/** Makes queries and the KV cache's entries of normed rows: projection, norms of heads and rotation of a rank's layers. */
final class AttentionProjection {
    private final Shard shard;
    private final ModelConfig config;
    private final Collective.Member ranks;
    private final ModelKernels kernels;
    private final int queryElements;
    private final int entryElements;

    AttentionProjection(Shard shard, Collective.Member ranks, ModelKernels kernels) {
        this.shard = shard;
        this.config = shard.config();
        this.ranks = ranks;
        this.kernels = kernels;
        this.queryElements = config.heads() * config.headDim();
        int vectors = config.recipe().latent().isPresent() ? 1 : 2;
        this.entryElements = vectors * config.kvHeads() * config.headDim();
    }

    /** Columns of queries. */
    int queryElements() {
        return queryElements;
    }

    /**
     * The entries of rows, a part of the projection's result.
     *
     * @param angles cosines and sines of the rows' positions, if the layer turns its keys
     * @param queries where the queries are written to; without columns if they are not wanted
     */
    Matrix entries(
            LayerWeights<Linear, Norm> layer,
            Optional<Rotation> rotation,
            Matrix normed,
            Optional<Matrix> angles,
            Matrix queries) {
        Matrix projected = queries.columns() == 0
                ? layer.projection().applyLast(entryElements, normed)
                : layer.projection().apply(normed);
        return layer.latent()
                .map(latent -> new LatentProjections(latent, kernels).project(projected, angles.orElseThrow(), queries))
                .orElseGet(() -> turn(
                        projected,
                        layer.rotatedNorms(),
                        rotation.filter(Rotation::ofNeighbours).isPresent(),
                        angles,
                        queries));
    }

    /**
     * Turns queries and keys by their positions, if they have any: the keys in place, the queries into {@code queries}.
     *
     * @return keys and values, a part of {@code projected}
     */
    private Matrix turn(
            Matrix projected,
            Optional<RotatedNorms<Norm>> norms,
            boolean neighbours,
            Optional<Matrix> rotation,
            Matrix queries) {
        int head = config.headDim();
        int heads = queries.columns() / head;
        Matrix unturned = projected.columns(0, queries.columns());
        Matrix pairs = projected.columns(queries.columns(), entryElements);
        Heads ownHeads = Heads.of(unturned, 0, heads, head);
        Heads keyHeads = Heads.of(pairs, 0, config.kvHeads(), 2L * head);
        norms.ifPresent(norm -> {
            if (norm.ofAllHeads()) {
                if (heads > 0) {
                    normAll(unturned, norm.queries(), heads, Shard::heads);
                }
                normAllKeys(pairs, norm.keys());
            } else {
                norm.queries().apply(ownHeads, ownHeads);
                norm.keys().apply(keyHeads, keyHeads);
            }
        });
        if (rotation.map(Matrix::columns).orElse(0) < head) {
            unturned.convert(queries, kernels.threads());
        }
        rotation.ifPresent(table -> {
            if (neighbours) {
                Rope.turnNeighbours(unturned, head, queries, head, heads, table, kernels.threads());
                Rope.turnNeighbours(pairs, 2 * head, pairs, 2 * head, config.kvHeads(), table, kernels.threads());
            } else {
                kernels.rotate(ownHeads, Heads.of(queries, 0, heads, head), keyHeads, table.columns(), table.memory());
            }
        });
        return pairs;
    }

    /**
     * Norms heads of all ranks together, in place.
     *
     * @param own this rank's heads, beside each other
     * @param count of this rank's heads
     * @param heads of a rank
     */
    private void normAll(Matrix own, Norm norm, int count, Function<Shard, Shard.Range> heads) {
        int head = config.headDim();
        IntFunction<Shard.Range> columns = rank -> {
            Shard.Range range = heads.apply(shard.beside(rank));
            return new Shard.Range(range.first() * head, range.count() * head);
        };
        int all = columns.apply(ranks.tensorSize() - 1).first() + count * head;
        Matrix gathered = ranks.gathered(own, columns, all, kernels);
        norm.apply(Heads.ofRows(gathered), Heads.ofRows(gathered));
        if (ranks.tensorSize() > 1) {
            int first = heads.apply(shard).first() * head;
            gathered.columns(first, own.columns()).convert(own, kernels.threads());
        }
    }

    /** Between the keys of two heads are values, so they are copied beside each other and back. */
    private void normAllKeys(Matrix pairs, Norm norm) {
        long head = config.headDim();
        Matrix keys = kernels.rows(pairs.rows(), config.kvHeads() * head);
        for (int i = 0; i < config.kvHeads(); i++) {
            pairs.columns(2L * i * head, head).convert(keys.columns(i * head, head), kernels.threads());
        }
        normAll(keys, norm, config.kvHeads(), Shard::kvHeads);
        for (int i = 0; i < config.kvHeads(); i++) {
            keys.columns(i * head, head).convert(pairs.columns(2L * i * head, head), kernels.threads());
        }
    }
}
