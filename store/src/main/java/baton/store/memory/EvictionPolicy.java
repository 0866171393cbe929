package baton.store.memory;

import baton.kv.BlockHash;
import java.util.function.IntPredicate;

/** Keeps slots that hold values, or are being filled, in the order in which they are to go. One thread uses it at a time. */
sealed interface EvictionPolicy permits LruPolicy, ArcPolicy {
    /** List of {@link NodeLists} with the slots that are free; policies have those after it. */
    int FREE = 0;

    /** A slot is about to be filled with a value that was not there. */
    void insert(int slot);

    /** A slot is about to become free, without its value being evicted. */
    void remove(int slot);

    /**
     * A value has been used.
     *
     * @param isFilled false while the slot is being filled
     */
    void use(int slot, boolean isFilled);

    /** A value that is asked room for is not there. */
    void miss(BlockHash key);

    /** The state that {@link #miss} changes, to {@link #restore} it. */
    long state();

    void restore(long state);

    /**
     * Selects slots to evict in order, and changes nothing.
     *
     * @param take whether a slot can go; asked for each once at most
     * @param victims gets those that can
     * @return how many; as many as asked for if there are
     */
    int select(int count, IntPredicate take, int[] victims);

    /** A selected slot is about to become free; its key is still there. */
    void evict(int slot);

    /** Whether its state is consistent, apart from {@link NodeLists#isConsistent} of the slots' lists. */
    boolean isConsistent();

    /** Forgets values that are not there, and the statistics of them. */
    void forget();
}
