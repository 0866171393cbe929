package baton.engine.model;

import baton.engine.kernel.ParallelFor;
import baton.engine.model.ModelConfig.LinearRopeScaling;
import baton.engine.model.ModelConfig.Llama3RopeScaling;
import baton.engine.model.ModelConfig.LongRopeScaling;
import baton.engine.model.ModelConfig.RopeScaling;
import baton.engine.model.ModelConfig.YarnRopeScaling;
import baton.engine.model.Recipe.Rotation;

/** The rotation of a model's queries and keys, by the formulas of transformers' {@code modeling_rope_utils}. */
final class Rope {
    private Rope() {}

    /**
     * Radians per position of each pair of a head.
     *
     * @param maxPositions that a sequence may have
     */
    static double[] frequencies(Rotation rotation, int headDim, int maxPositions) {
        int turned = rotation.elements(headDim);
        double[] frequencies = new double[turned / 2];
        for (int i = 0; i < frequencies.length; i++) {
            int pair = i;
            double frequency = Math.pow(rotation.theta(), -2.0 * i / turned);
            frequencies[i] = rotation.scaling()
                    .map(scaling -> scaled(frequency, pair, rotation.theta(), turned, maxPositions, scaling))
                    .orElse(frequency);
        }
        return frequencies;
    }

    /**
     * Turns neighbours of each head's first elements.
     *
     * @param to may be {@code from}; elements that are not turned stay as they are
     * @param stride elements from a head to the next one; {@code toStride} in {@code to}
     * @param table by row, cosines and sines of the pairs
     */
    static void turnNeighbours(
            Matrix from, int stride, Matrix to, int toStride, int heads, Matrix table, ParallelFor threads) {
        int turned = table.columns();
        threads.parallelFor(from.rows(), Matrix.PIECE, (_, first, end) -> {
            RowBuffer angles = new RowBuffer(turned);
            RowBuffer pairs = new RowBuffer(turned);
            float[] x = pairs.values();
            for (int row = first; row < end; row++) {
                angles.load(table, row, 0, turned);
                for (int head = 0; head < heads; head++) {
                    pairs.load(from, row, head * stride, turned);
                    for (int i = 0; i < turned; i += 2) {
                        float cosine = angles.values()[i / 2];
                        float sine = angles.values()[(turned + i) / 2];
                        float even = x[i];
                        x[i] = even * cosine - x[i + 1] * sine;
                        x[i + 1] = x[i + 1] * cosine + even * sine;
                    }
                    pairs.store(to, row, head * toStride, turned);
                }
            }
        });
    }

    /** Factor of the cosines and sines. */
    static double amplitude(Rotation rotation) {
        return rotation.scaling()
                .map(scaling -> switch (scaling) {
                    case YarnRopeScaling yarn -> yarn.attentionFactor();
                    case LongRopeScaling longRope -> longRope.attentionFactor();
                    case LinearRopeScaling _, Llama3RopeScaling _ -> 1.0;
                })
                .orElse(1.0);
    }

    private static double scaled(
            double frequency, int pair, double theta, int turned, int maxPositions, RopeScaling scaling) {
        return switch (scaling) {
            case LinearRopeScaling linear -> frequency / linear.factor();
            case Llama3RopeScaling llama3 -> mixed(frequency, llama3.factor(), keptByLlama3(frequency, llama3));
            case YarnRopeScaling yarn -> mixed(frequency, yarn.factor(), keptByYarn(pair, theta, turned, yarn));
            case LongRopeScaling longRope ->
                frequency
                        / (longRope.isLong(maxPositions) ? longRope.longFactors() : longRope.shortFactors()).get(pair);
        };
    }

    /** @param kept share of the frequency that is not divided by {@code factor} */
    private static double mixed(double frequency, double factor, double kept) {
        return (1 - kept) * frequency / factor + kept * frequency;
    }

    private static double keptByLlama3(double frequency, Llama3RopeScaling scaling) {
        double turns = scaling.originalMaxPositions() * frequency / (2 * Math.PI);
        return Math.clamp(
                (turns - scaling.lowFreqFactor()) / (scaling.highFreqFactor() - scaling.lowFreqFactor()), 0, 1);
    }

    private static double keptByYarn(int pair, double theta, int turned, YarnRopeScaling scaling) {
        double fast = pairOf(scaling.betaFast(), theta, turned, scaling);
        double slow = pairOf(scaling.betaSlow(), theta, turned, scaling);
        double low = Math.max(scaling.truncate() ? Math.floor(fast) : fast, 0);
        double high = Math.min(scaling.truncate() ? Math.ceil(slow) : slow, turned - 1.0);
        // A ramp of no width would divide by zero.
        return 1 - Math.clamp((pair - low) / (low == high ? 0.001 : high - low), 0, 1);
    }

    /** Index, with fraction, of the pair that makes so many turns in the positions of the original training. */
    private static double pairOf(double turns, double theta, int turned, YarnRopeScaling scaling) {
        return turned * Math.log(scaling.originalMaxPositions() / (turns * 2 * Math.PI)) / (2 * Math.log(theta));
    }
}
