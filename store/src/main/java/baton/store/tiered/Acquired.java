package baton.store.tiered;

/**
 * Values of a {@link TieredStore} that a caller is going to read: those in its memory are pinned at once, those in other tiers are copied
 * there first (promoted). Pinned values cannot be evicted until {@link #release}, so a read of them does not fail.
 */
public interface Acquired {
    /** Whether the result is final: at the deadline at the latest, with the values promoted by then. */
    boolean isReady();

    /** How many values from the front are pinned; 0 before it is ready. */
    int fromFront();

    /** How many of the values from the front came from a tier: 0 is the memory, 1 the first behind it. */
    int fromFront(int tier);

    /** Gives all pins back. May be called at any time, and again. */
    void release();
}
