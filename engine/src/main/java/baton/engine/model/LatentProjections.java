package baton.engine.model;

import baton.engine.model.ModelKernels.Heads;
import baton.engine.model.ModelKernels.Norm;
import baton.engine.model.Recipe.Latent;
import java.util.List;
import java.util.Optional;

/**
 * The products around latent attention, of a layer. A head's key is the product of the latent with its matrix, so a query is multiplied by
 * the transposed matrix in place of the key: then it is multiplied with the cache's entries as they are. Of the sum of the entries that it
 * attends to, the latent becomes the sum of the head's values. So all heads attend to one key/value head, whose entries are keys and values.
 *
 * @param queriesNorm of the latent that queries are made of
 * @param queries from that latent to the queries; empty if they are a product with the hidden state
 * @param norm of the latent that is cached
 * @param keys by head, from the query's part that is not rotated to a vector that is multiplied with latents
 * @param values by head, from latent to value
 */
record LatentProjections(
        Latent latent,
        Optional<Norm> queriesNorm,
        Optional<Linear> queries,
        Norm norm,
        List<Linear> keys,
        List<Linear> values,
        ModelKernels kernels) {
    /**
     * Makes queries and entries.
     *
     * @param projected the queries, or the latent that they are made of, then the entry
     * @param rotation by row, the cosines and sines of its position
     * @param to the queries of all heads, as wide as an entry each
     * @return the entries, a part of {@code projected}
     */
    Matrix project(Matrix projected, Matrix rotation, Matrix to) {
        int width = projected.columns() - latent.entry();
        Heads latents = Heads.of(projected, width, 1, latent.rank());
        norm.apply(latents, latents);
        Matrix entries = projected.columns(width, latent.entry());
        Matrix turned = entries.columns(latent.rank(), latent.rotated());
        Rope.turnNeighbours(turned, latent.rotated(), turned, latent.rotated(), 1, rotation, kernels.threads());
        Matrix projectedQueries = queries.map(matrix -> matrix.apply(normed(projected, width)))
                .orElseGet(() -> projected.columns(0, width));
        for (int head = 0; head < keys.size(); head++) {
            Matrix plain = projectedQueries.columns((long) head * latent.query(), latent.plain());
            keys.get(head).applyTo(to.columns((long) head * latent.entry(), latent.rank()), kernels.asInputs(plain));
        }
        Rope.turnNeighbours(
                projectedQueries.columns(latent.plain(), projectedQueries.columns() - latent.plain()),
                latent.query(),
                to.columns(latent.rank(), to.columns() - latent.rank()),
                latent.entry(),
                keys.size(),
                rotation,
                kernels.threads());
        return entries;
    }

    private Matrix normed(Matrix projected, long width) {
        Matrix normed = kernels.inputs(projected.rows(), width);
        queriesNorm.orElseThrow().apply(Heads.of(projected, 0, 1, width), Heads.ofRows(normed));
        return normed;
    }

    /** The values of all heads, of what these attended to. */
    Matrix values(Matrix attended) {
        Matrix all = kernels.rows(attended.rows(), (long) values.size() * latent.values());
        for (int head = 0; head < values.size(); head++) {
            Matrix latents = attended.columns((long) head * latent.entry(), latent.rank());
            values.get(head)
                    .applyTo(all.columns((long) head * latent.values(), latent.values()), kernels.asInputs(latents));
        }
        return kernels.asInputs(all);
    }
}
