package baton.engine.kernel;

/** Threads that divide the iterations of loops among them. Used by one thread at a time. */
public interface ParallelFor {
    /** Threads, the calling one among them. */
    int size();

    /** Threads that take part in a loop now: {@link #size}, or fewer where the processors are too few for all. */
    default int members() {
        return size();
    }

    /**
     * Does the work for 0 to {@code count}, by all threads if it is more than one piece.
     *
     * @param piece iterations that a thread takes at once
     * @throws IllegalStateException if a piece failed, with the failure as its cause; other pieces were perhaps not done
     */
    void parallelFor(int count, int piece, Work work);

    /** The calling thread alone. */
    static ParallelFor alone() {
        return new ParallelFor() {
            @Override
            public int size() {
                return 1;
            }

            @Override
            public void parallelFor(int count, int piece, Work work) {
                try {
                    for (int first = 0; first < count; first += piece) {
                        work.accept(0, first, Math.min(count, first + piece));
                    }
                } catch (RuntimeException | Error e) {
                    throw new IllegalStateException("a piece was not computed: " + e, e);
                }
            }
        };
    }

    /** A part of a loop. */
    @FunctionalInterface
    interface Work {
        /**
         * Does iterations {@code first} to {@code end}, which is not among them.
         *
         * @param member the thread's number, from 0; one thread at a time has it
         */
        void accept(int member, int first, int end);
    }
}
