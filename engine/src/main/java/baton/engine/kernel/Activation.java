package baton.engine.kernel;

/** Functions that a feed-forward layer's gate goes through before it multiplies the other product. */
public enum Activation {
    /** {@code x * sigmoid(x)}. */
    SILU,
    /** GeLU with its approximation by tanh: {@code x * sigmoid(2 * sqrt(2 / pi) * (x + 0.044715 * x^3))}. */
    GELU_TANH,
    /**
     * gpt-oss': {@code x * sigmoid(SWIGLU_SLOPE * x)} of x up to {@link #SWIGLU_LIMIT}. It multiplies 1 plus the other product, which is cut off
     * at the limit and at the negative limit.
     */
    CLAMPED_SWIGLU;

    public static final double SWIGLU_SLOPE = 1.702;
    public static final float SWIGLU_LIMIT = 7;
}
