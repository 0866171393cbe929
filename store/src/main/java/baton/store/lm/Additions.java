package baton.store.lm;

import java.lang.foreign.MemorySegment;
import java.util.Optional;

/**
 * A server's additions to LMCache's protocol, as far as a connection uses them.
 *
 * @param batches {@link LmWire#BATCH_EXIST}
 * @param memory of the server, mapped into this process: values are copied from where {@link LmWire#HOLD} says; empty: they come over the
 *     connection
 */
record Additions(boolean batches, Optional<MemorySegment> memory) {
    /** LMCache's own server. */
    static final Additions NONE = new Additions(false, Optional.empty());
}
