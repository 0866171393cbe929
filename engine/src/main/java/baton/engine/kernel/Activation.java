package baton.engine.kernel;

/** Functions that a feed-forward layer's gate goes through. */
public enum Activation {
    /** {@code x * sigmoid(x)}. */
    SILU,
    /** GeLU with its approximation by tanh: {@code x * sigmoid(2 * sqrt(2 / pi) * (x + 0.044715 * x^3))}. */
    GELU_TANH
}
