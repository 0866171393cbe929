package baton.engine.model;

import baton.engine.model.ModelKernels.Heads;
import baton.engine.model.ModelKernels.Norm;
import baton.engine.model.Recipe.Latent;
import baton.engine.model.Weights.LatentWeights;
import java.util.List;

/**
 * The products around latent attention, of a layer. A head's key is the product of the latent with its matrix, so a query is multiplied by
 * the transposed matrix in place of the key: then it is multiplied with the cache's entries as they are. Of the sum of the entries that it
 * attends to, the latent becomes the sum of the head's values. So all heads attend to one key/value head; its entries are both keys and
 * values.
 */
record LatentProjections(LatentWeights<Linear, Norm> weights, ModelKernels kernels) {
    /**
     * Makes queries and entries.
     *
     * @param projected the queries, or the latent that they are made of, then the entry
     * @param rotation by row, the cosines and sines of its position
     * @param to the queries of all heads, as wide as an entry each; without columns if they are not wanted
     * @return the entries, a part of {@code projected}
     */
    Matrix project(Matrix projected, Matrix rotation, Matrix to) {
        Latent latent = weights.latent();
        List<Linear> keys = weights.keys();
        int width = projected.columns() - latent.entry();
        Heads latents = Heads.of(projected, width, 1, latent.rank());
        weights.norm().apply(latents, latents);
        Matrix entries = projected.columns(width, latent.entry());
        Matrix turned = entries.columns(latent.rank(), latent.rotated());
        Rope.turnNeighbours(turned, latent.rotated(), turned, latent.rotated(), 1, rotation, kernels.threads());
        if (to.columns() == 0) {
            return entries;
        }
        Matrix projectedQueries = weights.queries()
                .map(matrix -> matrix.apply(normed(projected, width)))
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
        weights.queriesNorm().orElseThrow().apply(Heads.of(projected, 0, 1, width), Heads.ofRows(normed));
        return normed;
    }

    /** The values of all heads, from the sums that attention has computed. */
    Matrix values(Matrix attended) {
        Latent latent = weights.latent();
        List<Linear> values = weights.values();
        Matrix all = kernels.rows(attended.rows(), (long) values.size() * latent.values());
        for (int head = 0; head < values.size(); head++) {
            Matrix latents = attended.columns((long) head * latent.entry(), latent.rank());
            values.get(head)
                    .applyTo(all.columns((long) head * latent.values(), latent.values()), kernels.asInputs(latents));
        }
        return kernels.asInputs(all);
    }
}
