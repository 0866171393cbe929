package baton.kv.connector;

/** What a worker tells peers of itself (addresses, regions, geometry): a record of the connector's own. */
public interface HandshakeMetadata {}
