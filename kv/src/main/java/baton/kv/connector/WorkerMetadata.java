package baton.kv.connector;

/**
 * A worker connector's message to its scheduler connector after a step, beside the fields that the engine acts on: a record of the connector's own,
 * which the engine passes on and never looks into.
 */
public interface WorkerMetadata {}
