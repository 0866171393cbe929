package baton.kv.connector;

/** What a scheduler connector tells its worker connectors for one step: a record of the connector's own. */
public interface ConnectorMetadata {
    /** Nothing to do. */
    record None() implements ConnectorMetadata {}
}
