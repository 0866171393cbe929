package baton.store.remote;

import java.util.Locale;

/** Why an operation did not succeed for a key, as it is counted. Plain misses are none of these. */
public enum Failure {
    /** No connection is up, or none of them answers. */
    UNAVAILABLE,
    /** Too many bytes are in flight already. */
    QUEUE_FULL,
    /** The store is closed. */
    CLOSED,
    /** The command was not tried, because the server refused the same kind a moment ago. */
    PAUSED,
    /** The deadline has passed. */
    TIMEOUT,
    /** The connection was lost before the reply. */
    DISCONNECTED,
    /** The server reads its data from disk. */
    LOADING,
    /** The server has no room for it. */
    OUT_OF_MEMORY,
    /** Readers hold a lease on it. */
    LEASED,
    /** The server is a replica, or cannot persist values. */
    READ_ONLY,
    /** No or wrong credentials, or not permitted to them. */
    AUTHENTICATION,
    /** Another error reply, or one that is no reply to this request. */
    ERROR,

    /** The value is shorter or longer than it says, or than values of this format are. */
    LENGTH,
    /** The value does not begin as this store's do, or is no string. */
    FOREIGN,
    /** The value is of another version of this store. */
    VERSION,
    /** The value is that of another key. */
    WRONG_KEY,
    /** The value is of another format. */
    WRONG_FORMAT,
    /** The value's bytes do not fit its checksum. */
    CHECKSUM,
    /** The value was changed after it was sealed, or is sealed with another key. */
    SEAL;

    /** The failure as a label of a measurement. */
    public String label() {
        return name().toLowerCase(Locale.ROOT);
    }
}
