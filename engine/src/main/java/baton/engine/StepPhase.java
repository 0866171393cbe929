package baton.engine;

/** A phase of an engine's step. Its time belongs to one phase at any moment. */
public enum StepPhase {
    /** Since the step before, if there was work to do all along: commands taken, status and metrics published. */
    BETWEEN,
    /** Choosing the tokens of a step and their blocks, and the bookkeeping after the step. */
    SCHEDULE,
    /** The time in the connector's worker: loads started and waited for, saves, its report. */
    CONNECTOR,
    /** Preparing the model's input: token ids, positions, block tables, masks. */
    BATCH,
    /** The model's layers and logits, keys and values copied to and from their blocks included. */
    MODEL,
    /** Choosing tokens by the logits. */
    SAMPLING,
    /** Tokens to text, stop strings, and events given to the requests' sinks. */
    PUBLISH
}
