package baton.engine.model;

import baton.engine.kernel.ParallelFor;
import baton.engine.model.Linear.Gate;
import baton.engine.model.Linear.Product;
import baton.engine.model.Recipe.Experts;
import baton.engine.model.Recipe.Routing;
import baton.engine.model.Weights.Gated;
import baton.engine.model.Weights.Routed;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.stream.IntStream;

/**
 * Computes mixtures of experts: the rows that have the same expert go through it together, and the products of several experts are computed together.
 * A row's result is the sum of its experts' results in the order of the experts, so it does not depend on the other rows. Used by one thread.
 */
final class ExpertLayers {
    /** Added to the sum of shares that others are divided by, which may be 0 where they are independent. */
    private static final float LEAST_SUM = 1e-20f;

    /** Rows of experts that are computed together: enough for full speed, and few enough that activations take little memory. */
    private static final int ROWS_TOGETHER = 512;

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

    /** The rows that have an expert. */
    private record Share(int expert, int[] rows) {}

    /** This rank's part of the results, in the caller's scope. */
    Matrix results(Routed<Linear> layer, Matrix rows) {
        Matrix results = kernels.rows(rows.rows(), rows.columns());
        results.memory().fill((byte) 0);
        float[] routingWeights = routingWeights(layer, layer.router().apply(rows));
        List<Share> together = new ArrayList<>();
        int count = 0;
        for (Share share : shares(routingWeights, rows.rows(), layer.experts().size())) {
            if (!together.isEmpty() && count + share.rows.length > ROWS_TOGETHER) {
                add(layer, rows, together, routingWeights, results);
                together.clear();
                count = 0;
            }
            together.add(share);
            count += share.rows.length;
        }
        if (!together.isEmpty()) {
            add(layer, rows, together, routingWeights, results);
        }
        return results;
    }

    private static List<Share> shares(float[] routingWeights, int rows, int experts) {
        List<Share> shares = new ArrayList<>();
        for (int expert = 0; expert < experts; expert++) {
            int[] own = new int[rows];
            int count = 0;
            for (int row = 0; row < rows; row++) {
                // A weight that is not a number counts, so that it becomes the row's result.
                if (routingWeights[row * experts + expert] != 0) {
                    own[count++] = row;
                }
            }
            if (count > 0) {
                shares.add(new Share(expert, Arrays.copyOf(own, count)));
            }
        }
        return shares;
    }

    /** Adds the results of some experts, times their routing weights. */
    private void add(Routed<Linear> layer, Matrix rows, List<Share> shares, float[] routingWeights, Matrix results) {
        try (RowMemory.Scope _ = kernels.scope()) {
            List<Product> gated = new ArrayList<>();
            for (Share share : shares) {
                Gated<Linear> expert = layer.experts().get(share.expert);
                gated.add(new Product(
                        expert.up(),
                        Optional.of(new Gate(expert.gate(), expert.activation())),
                        kernels.inputs(kernels.padded(share.rows.length), rows.columns())));
            }
            forRowsOf(shares, rows.rows(), (_, row, share, place) -> {
                Matrix own = gated.get(share).rows();
                rows.copyRow(row, own, place);
                for (int padding = shares.get(share).rows.length; place == 0 && padding < own.rows(); padding++) {
                    rows.copyRow(row, own, padding);
                }
            });
            List<Matrix> activated = gated.getFirst().matrix().applyAll(gated);
            List<Product> down = new ArrayList<>();
            for (int i = 0; i < shares.size(); i++) {
                Linear matrix = layer.experts().get(shares.get(i).expert).down();
                down.add(new Product(matrix, Optional.empty(), kernels.asInputs(activated.get(i))));
            }
            List<Matrix> products = down.getFirst().matrix().applyAll(down);
            forRowsOf(shares, rows.rows(), (member, row, share, place) -> {
                float weight = routingWeights[row * layer.experts().size() + shares.get(share).expert];
                products.get(share).addRow(place, weight, results, row, addends[member], sums[member]);
            });
        }
    }

    /** Calls {@code work} for each row of each share, for one row in the order of the shares. */
    private void forRowsOf(List<Share> shares, int rows, RowWork work) {
        threads.parallelFor(rows, 1, (member, first, end) -> {
            for (int row = first; row < end; row++) {
                for (int share = 0; share < shares.size(); share++) {
                    int place = Arrays.binarySearch(shares.get(share).rows, row);
                    if (place >= 0) {
                        work.accept(member, row, share, place);
                    }
                }
            }
        });
    }

    @FunctionalInterface
    private interface RowWork {
        /** @param place of the row among those of the share */
        void accept(int member, int row, int share, int place);
    }

    /** For each row, each expert's routing weight; 0 for an expert that the row does not have. */
    private float[] routingWeights(Routed<Linear> layer, Matrix logits) {
        int experts = layer.experts().size();
        float[] routingWeights = new float[logits.rows() * experts];
        threads.parallelFor(logits.rows(), Matrix.PIECE, (_, first, end) -> {
            RowBuffer row = new RowBuffer(logits.columns());
            for (int i = first; i < end; i++) {
                row.load(logits, i, 0, logits.columns());
                route(layer, row.values(), routingWeights, i * experts);
            }
        });
        return routingWeights;
    }

    private static void route(Routed<Linear> layer, float[] logits, float[] routingWeights, int start) {
        Experts kind = layer.kind();
        Routing routing = kind.routing();
        float[] shares = Arrays.copyOf(logits, kind.count());
        float total = routing.independent() ? sigmoids(shares) : exponentials(shares);
        // The logits of a softmax are in the order of its shares, of which several may be rounded to the same number.
        float[] preferences = Arrays.copyOf(routing.independent() ? shares : logits, kind.count());
        layer.correction().ifPresent(correction -> {
            for (int i = 0; i < preferences.length; i++) {
                preferences[i] += correction[i];
            }
        });
        if (routing.chosenGroups() < routing.groups()) {
            excludeGroups(routing, preferences);
        }
        float ofChosen = 0;
        for (int chosen = 0; chosen < kind.chosen(); chosen++) {
            int next = takeLargest(preferences, 0, preferences.length);
            routingWeights[start + next] = shares[next];
            ofChosen += shares[next];
        }
        for (int i = 0; i < kind.count(); i++) {
            routingWeights[start + i] /= kind.normalised() ? ofChosen + LEAST_SUM : total;
            routingWeights[start + i] *= (float) routing.factor();
        }
        if (logits.length > kind.count()) {
            routingWeights[start + kind.count()] = (float) (1 / (1 + Math.exp(-logits[kind.count()])));
        } else if (kind.sharedWidth() > 0) {
            routingWeights[start + kind.count()] = 1;
        }
    }

    /** The exponentials of logits, less the largest one, in place; returns their sum. */
    private static float exponentials(float[] logits) {
        float largest = logits[0];
        for (float logit : logits) {
            largest = Math.max(largest, logit);
        }
        float total = 0;
        for (int i = 0; i < logits.length; i++) {
            logits[i] = (float) Math.exp(logits[i] - largest);
            total += logits[i];
        }
        return total;
    }

    /** The sigmoids of logits, in place; returns 1: they are shares as they are. */
    private static float sigmoids(float[] logits) {
        for (int i = 0; i < logits.length; i++) {
            logits[i] = (float) (1 / (1 + Math.exp(-logits[i])));
        }
        return 1;
    }

    /** No expert of a group that is not chosen is preferred to any other expert. */
    private static void excludeGroups(Routing routing, float[] preferences) {
        int size = preferences.length / routing.groups();
        float[] sums = new float[routing.groups()];
        float[] left = preferences.clone();
        for (int group = 0; group < sums.length; group++) {
            for (int i = 0; i < routing.summed(); i++) {
                sums[group] += preferences[takeLargest(left, group * size, (group + 1) * size)];
            }
        }
        float[] all = preferences.clone();
        Arrays.fill(preferences, Float.NEGATIVE_INFINITY);
        for (int i = 0; i < routing.chosenGroups(); i++) {
            int first = takeLargest(sums, 0, sums.length) * size;
            System.arraycopy(all, first, preferences, first, size);
        }
    }

    /** The index of the largest number of a range, the first one of several, which becomes negative infinity. */
    private static int takeLargest(float[] numbers, int first, int end) {
        int largest = first;
        for (int i = first + 1; i < end; i++) {
            if (numbers[i] > numbers[largest]) {
                largest = i;
            }
        }
        numbers[largest] = Float.NEGATIVE_INFINITY;
        return largest;
    }
}
