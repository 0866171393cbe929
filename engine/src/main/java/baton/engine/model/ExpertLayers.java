package baton.engine.model;

import baton.engine.kernel.ParallelFor;
import baton.engine.model.Recipe.Experts;
import baton.engine.model.Weights.Gated;
import baton.engine.model.Weights.Routed;
import java.util.Arrays;
import java.util.stream.IntStream;

/**
 * Computes mixtures of experts: the rows that have the same expert go through it together. A row's result is the sum of its experts' results in
 * the order of the experts, so it does not depend on the other rows. Used by one thread.
 */
final class ExpertLayers {
    private final ModelKernels kernels;
    private final ParallelFor threads;
    private final RowBuffer[] addends;
    private final RowBuffer[] sums;

    ExpertLayers(ModelKernels kernels, int hiddenSize) {
        this.kernels = kernels;
        this.threads = kernels.threads();
        this.addends = buffers(hiddenSize);
        this.sums = buffers(hiddenSize);
    }

    /** One for each thread. */
    private RowBuffer[] buffers(int size) {
        return IntStream.range(0, threads.size())
                .mapToObj(_ -> new RowBuffer(size))
                .toArray(RowBuffer[]::new);
    }

    /** This rank's part of the results, in the caller's scope. */
    Matrix results(Routed layer, Matrix rows) {
        Matrix results = kernels.rows(rows.rows(), rows.columns());
        results.memory().fill((byte) 0);
        float[] routingWeights = routingWeights(layer.kind(), layer.router().apply(rows));
        int experts = layer.experts().size();
        int[] chosen = new int[rows.rows()];
        for (int i = 0; i < experts; i++) {
            int expert = i;
            int count = 0;
            for (int row = 0; row < rows.rows(); row++) {
                // A weight that is not a number counts, so that it becomes the row's result.
                if (routingWeights[row * experts + expert] != 0) {
                    chosen[count++] = row;
                }
            }
            if (count > 0) {
                int[] own = Arrays.copyOf(chosen, count);
                try (RowMemory.Scope _ = kernels.scope()) {
                    Matrix ofExpert = ofExpert(layer.experts().get(expert), rows, own);
                    threads.parallelFor(own.length, Matrix.PIECE, (member, first, end) -> {
                        for (int j = first; j < end; j++) {
                            ofExpert.addRow(
                                    j,
                                    routingWeights[own[j] * experts + expert],
                                    results,
                                    own[j],
                                    addends[member],
                                    sums[member]);
                        }
                    });
                }
            }
        }
        return results;
    }

    private Matrix ofExpert(Gated expert, Matrix rows, int[] own) {
        Matrix inputs = kernels.inputs(kernels.padded(own.length), rows.columns());
        threads.parallelFor(inputs.rows(), Matrix.PIECE, (_, first, end) -> {
            for (int i = first; i < end; i++) {
                rows.copyRow(own[i < own.length ? i : 0], inputs, i);
            }
        });
        return expert.down().apply(expert.gated(inputs, kernels));
    }

    /** By row, each expert's routing weight; 0 for an expert that the row does not have. */
    private float[] routingWeights(Experts kind, Matrix logits) {
        int experts = logits.columns();
        float[] routingWeights = new float[logits.rows() * experts];
        threads.parallelFor(logits.rows(), Matrix.PIECE, (_, first, end) -> {
            RowBuffer row = new RowBuffer(experts);
            for (int i = first; i < end; i++) {
                row.load(logits, i, 0, experts);
                route(kind, row.values(), routingWeights, i * experts);
            }
        });
        return routingWeights;
    }

    private static void route(Experts kind, float[] logits, float[] routingWeights, int start) {
        float[] exponentials = Arrays.copyOf(logits, kind.count());
        float largest = exponentials[0];
        for (float logit : exponentials) {
            largest = Math.max(largest, logit);
        }
        float total = 0;
        for (int i = 0; i < exponentials.length; i++) {
            exponentials[i] = (float) Math.exp(exponentials[i] - largest);
            total += exponentials[i];
        }
        float ofChosen = 0;
        for (int chosen = 0; chosen < kind.chosen(); chosen++) {
            int next = largest(logits, routingWeights, start, kind.count());
            routingWeights[start + next] = exponentials[next];
            ofChosen += exponentials[next];
        }
        for (int i = 0; i < kind.count(); i++) {
            routingWeights[start + i] /= kind.normalised() ? ofChosen : total;
        }
        if (kind.sharedWidth() > 0) {
            routingWeights[start + kind.count()] = (float) (1 / (1 + Math.exp(-logits[kind.count()])));
        }
    }

    /** The expert with the largest logit of those that have no routing weight yet, the first one of several. */
    private static int largest(float[] logits, float[] routingWeights, int start, int count) {
        int largest = -1;
        for (int i = 0; i < count; i++) {
            if (routingWeights[start + i] == 0 && (largest < 0 || logits[i] > logits[largest])) {
                largest = i;
            }
        }
        return largest;
    }
}
