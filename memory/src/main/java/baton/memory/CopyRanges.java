package baton.memory;

/**
 * Ranges to copy from one memory to another, looked up by number when a thread is about to copy them. So the start of a copy costs the same
 * for few and for many ranges. Read by several threads at a time.
 */
public interface CopyRanges {
    /** Number of ranges. */
    int size();

    /** Bytes of a range; 0 if it is left out. */
    long bytes(int range);

    /** An empty plan between the two memories, which live until the copy is over. */
    CopyPlan newPlan();

    /**
     * Adds a part of a range that is not left out.
     *
     * @param at where it begins in the range
     */
    void addTo(CopyPlan plan, int range, long at, long length);
}
