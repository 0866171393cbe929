package baton.store;

import baton.kv.BlockHash;
import java.lang.foreign.MemorySegment;
import java.nio.file.Path;
import java.util.List;
import java.util.Optional;

/**
 * A store in memory that other stores can read into and write from: a value lies in a slot, one contiguous range of {@link #memory}. A slot
 * that is pinned, or being filled, is not evicted.
 *
 * <p>Its look-ups are fast enough for the scheduler's thread and never wait. Thread-safe.
 */
public interface ValueCache extends BlockStore {
    /** A slot that is not there. */
    int NONE = -1;

    /** All slots. */
    MemorySegment memory();

    /** The file by which other processes of this host can map {@link #memory}, where there is one. */
    default Optional<Path> file() {
        return Optional.empty();
    }

    /** Where a slot begins in {@link #memory}. */
    long offset(int slot);

    /** How many of the keys from the front are there, complete. Changes nothing, not even their order of eviction. */
    int presentFromFront(List<BlockHash> keys);

    /** Whether the value is there, complete. Changes nothing. */
    boolean isPresent(BlockHash key);

    /**
     * Pins a value that is there, complete, and counts as its use. Each pin needs an {@link #unpin}.
     *
     * @return its slot, or {@link #NONE}
     */
    int pin(BlockHash key);

    /** Pins as {@link #pin} does, but without counting a use: for copies that the store itself makes of its values. */
    int hold(BlockHash key);

    void unpin(int slot);

    /**
     * Takes slots for values that are not there and not being filled, and evicts for them values that are not pinned and not among these
     * keys: for all of them, or for none if there is not enough room. Each slot taken needs a {@link #commit} or {@link #abort}.
     *
     * @param slots gets for each key its slot, or {@link #NONE} for those that are there or being filled
     * @return false if there is not enough room; nothing is changed then
     */
    boolean reserve(List<BlockHash> keys, int[] slots);

    /** The slot is filled: does the part of {@link #commit} that takes long, so that a caller may commit under a lock. May be left out. */
    default void seal(int slot) {}

    /** The slot is filled: its value is there from now on. */
    void commit(int slot);

    /** The slot could not be filled and is free again. */
    void abort(int slot);

    /** Removes those of the values that are there and not pinned. */
    void drop(List<BlockHash> keys);

    /** Slots in all, and slots that hold values or are being filled. */
    int slots();

    int used();

    /** Forgets all values that are not pinned or being filled. Whether none is left. */
    boolean reset();
}
