package baton.store.mooncake;

import baton.store.remote.Failure;

/** The outcome of a request for one object. */
enum Outcome {
    DONE,
    /** There is no such object. */
    ABSENT,

    /** The service, or the master behind it, cannot be reached. */
    UNAVAILABLE,
    /** The deadline has passed. */
    TIMEOUT,
    /** The store has no room for it. */
    OUT_OF_MEMORY,
    /** Readers hold a lease on the object. */
    LEASED,
    /** Another error, or an answer that is none to this request. */
    ERROR,
    /** Too many operations wait already. */
    QUEUE_FULL,
    /** The operation was not tried, because the store failed a moment ago. */
    PAUSED,
    /** The store is closed here. */
    CLOSED,

    /** The object is shorter or longer than this store's are. */
    LENGTH,
    /** The object does not begin as this store's do. */
    FOREIGN,
    /** The object is of another version of this store. */
    VERSION,
    /** The object is that of another key. */
    WRONG_KEY,
    /** The object is of another format. */
    WRONG_FORMAT,
    /** The object's bytes do not fit its checksum. */
    CHECKSUM;

    static Outcome of(Failure failure) {
        return valueOf(failure.name());
    }

    /** The failure that counts the outcome; of all but the first two. */
    Failure failure() {
        return Failure.valueOf(name());
    }

    /** Whether the object under the key is useless. */
    boolean isOfValue() {
        return compareTo(LENGTH) >= 0;
    }

    /** Whether further requests would fare the same now. */
    boolean isOfStore() {
        return this == UNAVAILABLE || this == TIMEOUT || this == PAUSED;
    }
}
