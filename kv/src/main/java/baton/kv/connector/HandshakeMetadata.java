package baton.kv.connector;

/** A worker's description for its peers (addresses, regions, geometry): a record of the connector's own. */
public interface HandshakeMetadata {}
