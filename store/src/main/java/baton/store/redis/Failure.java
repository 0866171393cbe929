package baton.store.redis;

import java.util.Locale;

/** Why an operation did not succeed for a key, as it is counted. Plain misses are none of these. */
enum Failure {
    /** No connection is up, or none of them answers. */
    UNAVAILABLE,
    /** Too many bytes are in flight already. */
    QUEUE_FULL,
    /** The store is closed. */
    CLOSED,
    /** Not tried, because the server refused the same kind of command a moment ago. */
    PAUSED,
    /** The deadline has passed. */
    TIMEOUT,
    /** The connection was lost before the reply. */
    DISCONNECTED,
    /** The server reads its data from disk. */
    LOADING,
    /** The server is at {@code maxmemory} and evicts nothing. */
    OUT_OF_MEMORY,
    /** The server is a replica, or cannot persist what it is given. */
    READ_ONLY,
    /** No or wrong credentials, or not permitted to them. */
    AUTHENTICATION,
    /** Another error reply, or one that is no reply to this command. */
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
    CHECKSUM;

    String label() {
        return name().toLowerCase(Locale.ROOT);
    }

    /** Whether what is stored under the key is useless. */
    boolean isOfValue() {
        return compareTo(LENGTH) >= 0;
    }

    /** Of an error reply, by its first word. */
    static Failure ofReply(String error) {
        int end = error.indexOf(' ');
        return switch (end < 0 ? error : error.substring(0, end)) {
            case "LOADING", "BUSY", "MASTERDOWN" -> LOADING;
            case "OOM" -> OUT_OF_MEMORY;
            case "READONLY", "MISCONF", "NOREPLICAS" -> READ_ONLY;
            case "NOAUTH", "WRONGPASS", "NOPERM" -> AUTHENTICATION;
            case "WRONGTYPE" -> FOREIGN;
            default -> error.contains("AUTH") ? AUTHENTICATION : ERROR;
        };
    }
}
