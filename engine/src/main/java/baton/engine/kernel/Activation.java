package baton.engine.kernel;

/** Functions that a feed-forward layer's gate goes through. */
public enum Activation {
    /** {@code x * sigmoid(x)}. */
    SILU
}
