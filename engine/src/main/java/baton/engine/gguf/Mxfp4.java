package baton.engine.gguf;

/** MXFP4: blocks of numbers of 4 bits (E2M1), each block with an exponent of 8 bits (E8M0). */
public final class Mxfp4 {
    private static final float[] E2M1 = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    private static final int EXPONENT_BIAS = 127;

    private Mxfp4() {}

    /** The factor of a block's numbers. */
    public static float scale(byte exponent) {
        return Math.scalb(1f, (exponent & 0xff) - EXPONENT_BIAS);
    }

    /** @param bits of which the lowest four are the number */
    public static float number(int bits) {
        return E2M1[bits & 0xf];
    }
}
