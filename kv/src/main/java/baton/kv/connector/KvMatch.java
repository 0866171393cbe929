package baton.kv.connector;

/** Answer to: how many tokens beyond those already here can come from elsewhere? */
public sealed interface KvMatch {
    /** Nothing. */
    record None() implements KvMatch {}

    /** The match is not known yet; ask again in a later step. The request waits without holding blocks. */
    record Pending() implements KvMatch {}

    /**
     * Some.
     *
     * @param count tokens that can be loaded, following the computed ones; positive
     * @param async true: loaded between steps while the request waits; false: loaded within the step that schedules the request
     * @param reached false: from a peer that nothing has been loaded from, so that it may not be there. All loads of this kind together hold a
     *     part of the pool only; a request beyond it waits without blocks
     */
    record Tokens(int count, boolean async, boolean reached) implements KvMatch {
        /** Tokens at a place that is known to exist. */
        public Tokens(int count, boolean async) {
            this(count, async, true);
        }

        public Tokens {
            if (count <= 0) {
                throw new IllegalArgumentException("count=" + count + " must be positive");
            }
        }
    }
}
