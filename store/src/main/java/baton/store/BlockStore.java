package baton.store;

import baton.kv.BlockHash;
import baton.kv.Deadline;
import baton.kv.connector.Measurement;
import java.util.List;

/**
 * Keeps values of {@link StoreFormat#valueBytes} bytes by the hash of the last block in them: KV blocks that were computed once, in host
 * memory, in files, or at a server. A value is there completely or not at all; it is never changed, only removed, and {@link #get} delivers
 * exactly the bytes that a store of the same {@link StoreFormat} put under that key: anything else is a miss and counted.
 *
 * <p>An operation takes a batch of keys, without duplicates, returns at once, and ends at its deadline at the latest ({@link StoreTask}). It
 * allocates per batch, not per key. Operations of one store run side by side in any order. The number of those that wait is bounded: above it
 * an operation is rejected, which is to say that it is done at once and has succeeded for no key.
 *
 * <p>A medium that fails (a full disk, a server that is gone, a mount that hangs) makes operations fail, and is counted and logged; nothing is
 * thrown. Thread-safe.
 */
public interface BlockStore extends AutoCloseable {
    /** Its name in measurements, events and logs, e.g. {@code fs}. */
    String name();

    StoreFormat format();

    /**
     * Looks keys up. Succeeds for those that are there. A hit is no promise: the value may be evicted before it is read.
     */
    StoreTask contains(List<BlockHash> keys, Deadline deadline);

    /**
     * Reads values, or ranges of them.
     *
     * @param to where they go; succeeds for a key when all its ranges are in place. The bytes that a failed one leaves there are undefined
     */
    StoreTask get(List<BlockHash> keys, List<ValueRanges> to, Deadline deadline);

    /**
     * Writes values. Succeeds for those that are stored, and for those that were there already, which may cost nothing then.
     *
     * @param from where they are: ranges that cover each value
     */
    StoreTask put(List<BlockHash> keys, List<ValueRanges> from, Deadline deadline);

    /** Keys stored and removed since the last call, in order; a bounded number is kept. */
    List<StoreEvent> takeEvents();

    /** Measurements since the last call. */
    List<Measurement> takeMeasurements();

    /** Whether a value has been read that has no checksum, so that only a model can find out whether it is right. */
    default boolean hasReadUnverified() {
        return false;
    }

    /**
     * Ends all operations, with a deadline of its own. When it returns, none uses memory that was given to it any more; if one cannot be
     * ended, as a read from a mount that hangs, its {@link StoreTask#onQuiet} is not called, and that memory must not be reused.
     */
    @Override
    void close();
}
