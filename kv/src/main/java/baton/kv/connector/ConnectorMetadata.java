package baton.kv.connector;

/** A scheduler connector's orders to its worker connectors for one step: a record of the connector's own. */
public interface ConnectorMetadata {
    /** Nothing to do. */
    record None() implements ConnectorMetadata {}
}
