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
    /** Rows that a thread takes at once. */
    private static final int PIECE = 16;

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
        float[] shares = shares(layer.kind(), layer.router().apply(rows));
        int experts = layer.experts().size();
        for (int i = 0; i < experts; i++) {
            int expert = i;
            // A share that is not a number is one, so that it becomes the row's result.
            int[] own = IntStream.range(0, rows.rows())
                    .filter(row -> shares[row * experts + expert] != 0)
                    .toArray();
            if (own.length > 0) {
                try (RowMemory.Scope _ = kernels.scope()) {
                    Matrix ofExpert = ofExpert(layer.experts().get(expert), rows, own);
                    threads.parallelFor(own.length, PIECE, (member, first, end) -> {
                        for (int j = first; j < end; j++) {
                            add(ofExpert, j, shares[own[j] * experts + expert], results, own[j], member);
                        }
                    });
                }
            }
        }
        return results;
    }

    private Matrix ofExpert(Gated expert, Matrix rows, int[] own) {
        Matrix inputs = kernels.inputs(kernels.padded(own.length), rows.columns());
        threads.parallelFor(inputs.rows(), PIECE, (_, first, end) -> {
            for (int i = first; i < end; i++) {
                rows.copyRow(own[i < own.length ? i : 0], inputs, i);
            }
        });
        return expert.down().apply(expert.gated(inputs, kernels));
    }

    private void add(Matrix from, int row, float share, Matrix to, int toRow, int member) {
        RowBuffer addend = addends[member];
        RowBuffer sum = sums[member];
        addend.load(from, row, 0, from.columns());
        addend.multiply(share, from.columns());
        sum.load(to, toRow, 0, from.columns());
        sum.add(addend, from.columns());
        sum.store(to, toRow, 0, from.columns());
    }

    /** By row, each expert's share; 0 for an expert that the row does not have. */
    private float[] shares(Experts kind, Matrix logits) {
        int experts = logits.columns();
        float[] shares = new float[logits.rows() * experts];
        threads.parallelFor(logits.rows(), PIECE, (_, first, end) -> {
            RowBuffer row = new RowBuffer(experts);
            for (int i = first; i < end; i++) {
                row.load(logits, i, 0, experts);
                share(kind, row.values(), shares, i * experts);
            }
        });
        return shares;
    }

    private static void share(Experts kind, float[] logits, float[] shares, int start) {
        float[] powers = Arrays.copyOf(logits, kind.count());
        float largest = powers[0];
        for (float logit : powers) {
            largest = Math.max(largest, logit);
        }
        float total = 0;
        for (int i = 0; i < powers.length; i++) {
            powers[i] = (float) Math.exp(powers[i] - largest);
            total += powers[i];
        }
        float ofChosen = 0;
        for (int chosen = 0; chosen < kind.chosen(); chosen++) {
            int next = largest(logits, shares, start, kind.count());
            shares[start + next] = powers[next];
            ofChosen += powers[next];
        }
        for (int i = 0; i < kind.count(); i++) {
            shares[start + i] /= kind.normalised() ? ofChosen : total;
        }
        if (kind.sharedWidth() > 0) {
            shares[start + kind.count()] = (float) (1 / (1 + Math.exp(-logits[kind.count()])));
        }
    }

    /** The expert with the largest logit of those that have no share yet, the first one of several. */
    private static int largest(float[] logits, float[] shares, int start, int count) {
        int largest = -1;
        for (int i = 0; i < count; i++) {
            if (shares[start + i] == 0 && (largest < 0 || logits[i] > logits[largest])) {
                largest = i;
            }
        }
        return largest;
    }
}
