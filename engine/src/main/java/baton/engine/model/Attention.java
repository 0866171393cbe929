package baton.engine.model;

import java.lang.foreign.Arena;
import java.util.Optional;

/** Attention of a rank's query heads over its paged cache. Used by one thread. */
interface Attention extends AutoCloseable {
    /**
     * Begins a forward pass.
     *
     * @param tailRows the rows that the last layer's attention is needed for if they are few, in ascending order
     * @param queries of one layer after the other: [rows, heads * D], with a gap between rows perhaps
     * @param attended where results are written to, as wide, of {@link ModelKernels#inputs}
     * @param scratch open as long as the forward pass
     */
    Pass begin(Batch batch, Optional<long[]> tailRows, Matrix queries, Matrix attended, Arena scratch);

    @Override
    void close();

    /** One forward pass. */
    interface Pass {
        /** Attends for all rows; the layer's keys and values are in the cache. */
        void attend(int layer);

        /** Attends for the tail's rows at least, and perhaps for other rows. */
        void attendTail(int layer);
    }
}
