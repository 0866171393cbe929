package baton.store.mooncake;

import baton.kv.Deadline;
import java.lang.foreign.MemorySegment;
import java.util.List;

/**
 * Access to the objects of a Mooncake store, which are bytes under a text. A stored object is never changed: a {@link #put} of another one
 * under its key does nothing. Calls wait, and are made by threads that may hang. Thread-safe.
 */
interface ObjectClient extends AutoCloseable {
    /** Objects that one call serves together; a call may be given more. */
    int batch();

    /** The largest object that can be stored. */
    long mostBytes();

    /**
     * Announces memory that objects will be read into and written from, until the client is closed.
     *
     * @throws IllegalStateException if it cannot be used for that
     */
    void register(MemorySegment memory);

    /** {@link Outcome#DONE} for those that are there. */
    List<Outcome> exist(List<String> keys, Deadline deadline);

    /** @param to for each, memory of the object's size: {@link Outcome#LENGTH} if it has another one */
    List<Outcome> get(List<String> keys, List<MemorySegment> to, Deadline deadline);

    /** Stores objects. {@link Outcome#DONE} for those that are there already, too. */
    List<Outcome> put(List<String> keys, List<MemorySegment> from, Deadline deadline);

    /** {@link Outcome#DONE} if it was there and is not any more. */
    Outcome remove(String key, Deadline deadline);

    /** Ends calls as far as it can. */
    void stop();

    /** Called when no call is under way. */
    @Override
    void close();
}
