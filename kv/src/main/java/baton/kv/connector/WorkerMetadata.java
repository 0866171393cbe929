package baton.kv.connector;

/**
 * What a worker connector tells its scheduler connector after a step, beside what the engine acts on: a record of the connector's own,
 * which the engine passes on and never looks into.
 */
public interface WorkerMetadata {}
