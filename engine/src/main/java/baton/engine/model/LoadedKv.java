package baton.engine.model;

import baton.engine.kernel.ParallelFor;
import baton.engine.model.ModelRunner.Comparison;
import baton.engine.model.ModelRunner.Deviation;
import baton.engine.model.ModelRunner.LoadedTokens;
import baton.engine.model.ModelRunner.SequenceSlice;
import baton.kv.DType;
import baton.kv.KvCache;
import baton.kv.KvLayout;
import baton.kv.VerifyKv;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.stream.IntStream;

/**
 * Compares keys and values that came from elsewhere with those that this model computes, in one forward pass of one rank. The measure is
 * the distance of a token's keys, of all heads together, or of its values, in parts of the longer vector.
 */
final class LoadedKv {
    /** Tokens that a thread compares at once; fewer than two pieces are judged together. */
    private static final int PIECE = 16;

    private final Map<Integer, LoadedTokens> loaded;
    private final List<SequenceSlice> slices;
    private final KvCache cache;
    private final int firstLayer;
    private final Bounds bounds;
    private final ParallelFor threads;
    private final Map<Integer, Deviation> deviations = new HashMap<>();
    /**
     * For each slice with one token that is computed only to be compared, the slice that loaded it. By index; they are behind all others.
     */
    private final Map<Integer, Integer> sampled = new HashMap<>();
    /** For each slice, the greatest distance in the first layer of the model, and in all others. */
    private final Map<Integer, double[]> greatest = new HashMap<>();

    /**
     * @param loaded by the index of a slice
     * @param firstLayer of this rank, in the whole model
     */
    LoadedKv(
            Map<Integer, LoadedTokens> loaded,
            List<SequenceSlice> slices,
            KvCache cache,
            int firstLayer,
            Bounds bounds,
            ParallelFor threads) {
        this.loaded = loaded;
        this.slices = new ArrayList<>(slices);
        this.cache = cache;
        this.firstLayer = firstLayer;
        this.bounds = bounds;
        this.threads = threads;
        loaded.forEach((slice, tokens) -> {
            greatest.put(slice, new double[2]);
            if (tokens.verify() == VerifyKv.EACH_BLOCK) {
                sample(slice, tokens);
            }
        });
    }

    /** The last token of each block that the slice does not compute. */
    private void sample(int slice, LoadedTokens tokens) {
        SequenceSlice computed = slices.get(slice);
        int size = cache.layout().blockSize();
        int end = Math.min(computed.start(), tokens.from() + tokens.tokens().length);
        for (int at = tokens.from() / size * size + size - 1; at < end; at += size) {
            sampled.put(slices.size(), slice);
            int[] token = {tokens.tokens()[at - tokens.from()]};
            slices.add(new SequenceSlice(token, at, computed.blockTables(), 0, Optional.empty()));
        }
    }

    /** The slices to compute. */
    List<SequenceSlice> slices() {
        return slices;
    }

    /**
     * The greatest distances between right keys and values: more than those of vLLM's and Baton's on CPUs, see docs/connectors.md.
     *
     * @param upperLayers where roundings of the layers below add up
     * @param ofMost of seven tenths of neighbouring tokens there: roundings can make a single token attend to other positions
     */
    record Bounds(double firstLayer, double upperLayers, double ofMost) {
        /** @param computed of products and activations */
        static Bounds of(DType cached, DType computed, Quantization quantization) {
            if (cached == DType.F8_E4M3 || quantization != Quantization.NONE) {
                return new Bounds(0.3, 0.5, 0.5);
            }
            boolean exact = cached == DType.F32 && computed == DType.F32;
            return exact ? new Bounds(1e-3, 1e-3, 1e-3) : new Bounds(0.03, 0.5, 0.15);
        }

        /** Whether roundings of the layers below add up. */
        boolean areOfRounded() {
            return upperLayers > firstLayer;
        }
    }

    /** Compares loaded tokens that a part of a batch is about to replace. */
    void compareReplaced(int layer, Matrix entries, Batch batch, int first) {
        loaded.forEach((slice, tokens) -> {
            SequenceSlice computed = slices.get(slice);
            int row = batch.lastRow(slice) + 1 - computed.tokens().length - first;
            // Of both the slice and the loaded tokens, within these rows.
            int from = Math.max(Math.max(computed.start(), tokens.from()), computed.start() - row);
            int end = Math.min(
                    Math.min(computed.start() + computed.tokens().length, tokens.from() + tokens.tokens().length),
                    computed.start() - row + entries.rows());
            if (from < end) {
                compare(slice, layer, entries.part(row + from - computed.start(), end - from), from);
            }
        });
        sampled.forEach((index, slice) -> {
            int row = batch.lastRow(index) - first;
            if (row >= 0 && row < entries.rows()) {
                compare(slice, layer, entries.part(row, 1), slices.get(index).start());
            }
        });
    }

    /**
     * Compares loaded tokens.
     *
     * @param entries of this model, one row for each token
     * @param position of the first
     */
    void compare(int slice, int layer, Matrix entries, int position) {
        boolean together = firstLayer + layer > 0 && bounds.areOfRounded() && entries.rows() > 1;
        boolean mayDiffer = firstLayer + layer > 1 && bounds.areOfRounded() && !together;
        if (deviations.containsKey(slice)
                || (mayDiffer && Objects.requireNonNull(loaded.get(slice)).verify() == VerifyKv.AUTO)) {
            return;
        }
        int[] table = slices.get(slice).blockTables()[cache.groups().groupOf(layer)];
        double[] distances = new double[entries.rows()];
        threads.parallelFor(entries.rows(), PIECE, (_, from, end) -> {
            RowBuffer own = new RowBuffer(entries.columns());
            RowBuffer arrived = new RowBuffer(cache.layout().entryElements());
            for (int row = from; row < end; row++) {
                int at = position + row;
                if (cache.groups().isNull(table[at / cache.layout().blockSize()])) {
                    continue;
                }
                own.load(entries, row, 0, entries.columns());
                distances[row] = distance(own.values(), arrived, table, layer, at);
            }
        });
        double[] most = Objects.requireNonNull(greatest.get(slice));
        int part = firstLayer + layer == 0 ? 0 : 1;
        double tolerance = part == 0 ? bounds.firstLayer : together ? bounds.ofMost : bounds.upperLayers;
        double[] judged = together ? ofMost(distances) : distances;
        most[part] = Math.max(most[part], Arrays.stream(judged).max().orElse(0));
        // A distance that is not a number is too great, too.
        IntStream.range(0, judged.length)
                .filter(row -> !(judged[row] <= tolerance))
                .findFirst()
                .ifPresent(
                        row -> deviations.put(slice, new Deviation(firstLayer + layer, position + row, judged[row])));
    }

    /** For each row, the bound of the distances of seven tenths of the rows beside it. */
    private static double[] ofMost(double[] distances) {
        double[] most = new double[distances.length];
        for (int from = 0, end; from < most.length; from = end) {
            end = most.length - from < 2 * PIECE ? most.length : from + PIECE;
            double[] sorted = Arrays.copyOfRange(distances, from, end);
            Arrays.sort(sorted);
            Arrays.fill(most, from, end, sorted[7 * sorted.length / 10]);
        }
        return most;
    }

    /**
     * The greater one of keys and values.
     *
     * @param arrived for the elements of an entry
     */
    private double distance(float[] own, RowBuffer arrived, int[] table, int layer, int position) {
        KvLayout layout = cache.layout();
        int entry = layout.entryElements();
        int part = layout.headDim();
        // By kind: of differences, of own elements and of loaded ones.
        double[][] squares = new double[entry / part][3];
        for (int head = 0; head < layout.kvHeads(); head++) {
            arrived.load(cache.host(), cache.entryStart(table, layer, head, position), layout.dtype(), entry);
            for (int kind = 0; kind < squares.length; kind++) {
                double difference = 0;
                double ownNorm = 0;
                double loadedNorm = 0;
                for (int i = kind * part; i < (kind + 1) * part; i++) {
                    double computed = own[head * entry + i];
                    double loaded = arrived.values()[i];
                    difference += (computed - loaded) * (computed - loaded);
                    ownNorm += computed * computed;
                    loadedNorm += loaded * loaded;
                }
                squares[kind][0] += difference;
                squares[kind][1] += ownNorm;
                squares[kind][2] += loadedNorm;
            }
        }
        double greatest = 0;
        for (double[] sums : squares) {
            // NaN is greater than all.
            greatest = Math.max(greatest, sums[0] == 0 ? 0 : Math.sqrt(sums[0] / Math.max(sums[1], sums[2])));
        }
        return greatest;
    }

    Comparison comparison() {
        greatest.keySet().removeAll(deviations.keySet());
        return new Comparison(deviations, greatest(0), greatest(1));
    }

    private double greatest(int part) {
        return greatest.values().stream().mapToDouble(each -> each[part]).max().orElse(0);
    }
}
