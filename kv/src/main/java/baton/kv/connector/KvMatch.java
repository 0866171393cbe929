package baton.kv.connector;

/** Answer to: how many tokens beyond those already here can come from elsewhere? */
public sealed interface KvMatch {
    /** Nothing. */
    record None() implements KvMatch {}

    /** Not known yet; ask again in a later step. The request waits without holding blocks. */
    record Pending() implements KvMatch {}

    /**
     * Some.
     *
     * @param count tokens that can be loaded, following the computed ones; positive
     * @param async true: loaded between steps while the request waits; false: loaded within the step that schedules the request
     */
    record Tokens(int count, boolean async) implements KvMatch {
        public Tokens {
            if (count <= 0) {
                throw new IllegalArgumentException("count=" + count + " must be positive");
            }
        }
    }
}
