package baton.engine.kernel;

import baton.memory.Assembler.Width;

/**
 * Panels of numbers of MXFP4, which become those of {@link WeightType#BF16_PAIRS} exactly. Of {@link #INPUTS} inputs a panel has a block: for
 * each lane of two vectors the addend of its exponent to the bits of a bf16 number, and then vectors of shorts, each of four pairs of inputs of
 * one vector of outputs, the first pair in the lowest four bits.
 */
public final class Mxfp4Panels {
    /** Inputs of an output that have an exponent together. */
    public static final int INPUTS = 32;

    private static final int VECTOR = Width.ZMM.bytes();
    private static final int OUTPUTS = Width.ZMM.lanes();

    /** Four bits of 16 are a vector's part of a pair. */
    static final int PAIRS_OF_VECTOR = 4;

    static final int NUMBERS = ProductCode.VECTORS * VECTOR;

    /** Bytes of a block. */
    public static final int BYTES = NUMBERS + INPUTS / 2 / PAIRS_OF_VECTOR * ProductCode.VECTORS * VECTOR;

    public static final double BYTES_OF_WEIGHT = (double) BYTES / (ProductCode.VECTORS * OUTPUTS * INPUTS);

    static final float[] MAGNITUDES = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};

    /** Two times a magnitude to its bits; -1: there is none. */
    private static final int[] BITS = {0, 1, 2, 3, 4, -1, 5, -1, 6, -1, -1, -1, 7, -1, -1, -1};

    private static final int BF16_EXPONENT = 7;

    /** The largest exponent for which no sum of exponents leaves the normal numbers of bf16. */
    private static final int MOST_EXPONENT = 120;

    private Mxfp4Panels() {}

    /**
     * Puts an output's weights into a block.
     *
     * @param first of {@link #INPUTS} weights
     * @param panels where the block begins at {@code block}, in which this output's weights are zero
     * @param output of the panel
     * @return whether the weights are numbers of MXFP4; else the block may have any content
     */
    public static boolean put(float[] weights, int first, byte[] panels, int block, int output) {
        float largest = 0;
        for (int i = 0; i < INPUTS; i++) {
            largest = Math.max(largest, Math.abs(weights[first + i]));
        }
        int exponent = largest == 0 ? 0 : Math.getExponent(largest) - 2;
        if (Math.abs(exponent) > MOST_EXPONENT) {
            return false;
        }
        int vector = output / OUTPUTS * VECTOR;
        int lane = output % OUTPUTS * Integer.BYTES;
        int added = exponent << BF16_EXPONENT;
        for (int i = 0; i < Integer.BYTES; i++) {
            panels[block + vector + lane + i] = (byte) (added >> i % Short.BYTES * Byte.SIZE);
        }
        for (int i = 0; i < INPUTS; i++) {
            float twice = Math.scalb(Math.abs(weights[first + i]), 1 - exponent);
            int bits = twice == (int) twice ? BITS[(int) twice] : -1;
            if (bits < 0) {
                return false;
            }
            int sign = Float.floatToRawIntBits(weights[first + i]) >>> 31 << 3;
            int pair = i / 2;
            int place = NUMBERS
                    + pair / PAIRS_OF_VECTOR * VECTOR
                    + vector * (INPUTS / 2 / PAIRS_OF_VECTOR)
                    + lane
                    + i % 2 * Short.BYTES
                    + pair % PAIRS_OF_VECTOR / 2;
            panels[block + place] |= (byte) ((sign | bits) << pair % 2 * 4);
        }
        return true;
    }
}
