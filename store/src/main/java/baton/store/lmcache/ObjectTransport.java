package baton.store.lmcache;

import baton.kv.Deadline;
import baton.kv.connector.Measurement;
import baton.store.StoreTask;
import java.lang.foreign.MemorySegment;
import java.util.List;
import java.util.function.IntFunction;

/**
 * Carries objects to and from one remote store, in LMCache's form of it. An operation takes a batch, returns at once, and ends at its
 * deadline at the latest, or when its task is cancelled; it uses the memory given until its task is quiet. A failure is counted and makes
 * misses; nothing is thrown. Thread-safe.
 */
public interface ObjectTransport extends AutoCloseable {
    /**
     * An object: its stored bytes, or the memory into which they go.
     *
     * @param metadata {@link ObjectMetadata#BYTES}
     * @param bytes of LMCache's chunk
     * @param check {@link ObjectCheck#BYTES}, which LMCache does not see
     */
    record Entry(String key, MemorySegment metadata, MemorySegment bytes, MemorySegment check) {}

    /**
     * The parts of an object that were found. They are in their places unless they are longer than these.
     *
     * @param metadata its bytes; 0 where objects have none
     * @param bytes of the chunk
     * @param check 0 if there is none
     */
    record Found(int metadata, long bytes, int check) {}

    /**
     * A read.
     *
     * @param task succeeds for objects that were found
     * @param found by the index of an entry, of those that the task has succeeded for
     */
    record Reads(StoreTask task, IntFunction<Found> found) {}

    /** Its name in measurements and logs. */
    String name();

    /** Whether an object can have this key. */
    default boolean takes(String key) {
        return true;
    }

    /** Succeeds for the keys that have an object. */
    StoreTask contains(List<String> keys, Deadline deadline);

    Reads get(List<Entry> entries, Deadline deadline);

    /** Writes objects over existing ones. */
    StoreTask put(List<Entry> entries, Deadline deadline);

    List<Measurement> takeMeasurements();

    @Override
    void close();
}
