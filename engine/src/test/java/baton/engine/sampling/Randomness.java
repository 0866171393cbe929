package baton.engine.sampling;

import java.util.Random;

/** Random test data, new in each run unless {@code -Dtests.seed} repeats one. Failures name the seed. */
final class Randomness {
    final long seed = Long.getLong("tests.seed", System.nanoTime());
    final Random random = new Random(seed);

    int below(int bound) {
        return random.nextInt(bound);
    }

    /** Logits of one of several kinds: smooth, full of ties, masked, and at the ends of a float's range. */
    float[] logits(int size) {
        int kind = below(8);
        float[] logits = new float[size];
        for (int i = 0; i < size; i++) {
            float normal = (float) random.nextGaussian();
            logits[i] = switch (kind) {
                case 0 -> 3 * normal;
                case 1 -> below(4);
                case 2 -> 7.5f;
                case 3 -> below(3) == 0 ? Float.NEGATIVE_INFINITY : normal;
                case 4 -> Float.intBitsToFloat(Float.floatToIntBits(4 * normal) & 0xffff0000);
                case 5 -> normal * Float.MIN_NORMAL / 16;
                case 6 -> (below(2) == 0 ? 1 : -1) * Float.MAX_VALUE / (1 + below(3));
                default -> below(2) == 0 ? below(2) * -0f : 1000 * normal;
            };
        }
        logits[below(size)] = kind == 3 ? 1 : logits[0];
        return logits;
    }

    @Override
    public String toString() {
        return "-Dtests.seed=" + seed;
    }
}
