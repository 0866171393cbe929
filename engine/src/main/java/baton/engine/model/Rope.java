package baton.engine.model;

import baton.engine.model.ModelConfig.LinearRopeScaling;
import baton.engine.model.ModelConfig.Llama3RopeScaling;
import baton.engine.model.ModelConfig.RopeScaling;
import baton.engine.model.ModelConfig.YarnRopeScaling;
import baton.engine.model.Recipe.Rotation;

/** The rotation of a model's queries and keys, by the formulas of transformers' {@code modeling_rope_utils}. */
final class Rope {
    private Rope() {}

    /** Radians per position of each pair of a head. */
    static double[] frequencies(Rotation rotation, int headDim) {
        double[] frequencies = new double[headDim / 2];
        for (int i = 0; i < frequencies.length; i++) {
            int pair = i;
            double frequency = Math.pow(rotation.theta(), -2.0 * i / headDim);
            frequencies[i] = rotation.scaling()
                    .map(scaling -> scaled(frequency, pair, rotation.theta(), headDim, scaling))
                    .orElse(frequency);
        }
        return frequencies;
    }

    /** Factor of the cosines and sines. */
    static double amplitude(Rotation rotation) {
        return rotation.scaling()
                .map(scaling -> scaling instanceof YarnRopeScaling yarn ? yarn.attentionFactor() : 1.0)
                .orElse(1.0);
    }

    private static double scaled(double frequency, int pair, double theta, int headDim, RopeScaling scaling) {
        return switch (scaling) {
            case LinearRopeScaling linear -> frequency / linear.factor();
            case Llama3RopeScaling llama3 -> mixed(frequency, llama3.factor(), keptByLlama3(frequency, llama3));
            case YarnRopeScaling yarn -> mixed(frequency, yarn.factor(), keptByYarn(pair, theta, headDim, yarn));
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

    private static double keptByYarn(int pair, double theta, int headDim, YarnRopeScaling scaling) {
        double fast = pairOf(scaling.betaFast(), theta, headDim, scaling);
        double slow = pairOf(scaling.betaSlow(), theta, headDim, scaling);
        double low = Math.max(scaling.truncate() ? Math.floor(fast) : fast, 0);
        double high = Math.min(scaling.truncate() ? Math.ceil(slow) : slow, headDim - 1.0);
        // A ramp of no width would divide by zero.
        return 1 - Math.clamp((pair - low) / (low == high ? 0.001 : high - low), 0, 1);
    }

    /** Index, with fraction, of the pair that makes so many turns in the positions of the original training. */
    private static double pairOf(double turns, double theta, int headDim, YarnRopeScaling scaling) {
        return headDim * Math.log(scaling.originalMaxPositions() / (turns * 2 * Math.PI)) / (2 * Math.log(theta));
    }
}
