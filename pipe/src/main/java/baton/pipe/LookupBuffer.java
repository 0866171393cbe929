package baton.pipe;

import java.lang.foreign.Arena;
import java.time.Duration;
import java.util.Optional;

/**
 * Turns order into lookup: a producer inserts what belongs to a prompt, a consumer takes it by the prompt, in whatever order
 * (vLLM's {@code KVLookupBufferBase}). Services that look up by key themselves implement this without pipes.
 */
public interface LookupBuffer extends AutoCloseable {
    /**
     * What a prompt's computation leaves.
     *
     * @param tokens the prompt
     * @param roi "region of interest": which of the tokens keys and values are there for; as many elements as tokens
     * @param key as the two sides agree, e.g. {@code [layers, tokens, kv heads, head dim]}
     * @param value like {@code key}
     * @param hidden hidden states, as the two sides agree
     */
    record Entry(int[] tokens, boolean[] roi, Tensor key, Tensor value, Tensor hidden) {
        /** @throws IllegalArgumentException if there are not as many elements of {@code roi} as tokens */
        public Entry {
            if (tokens.length != roi.length) {
                throw new IllegalArgumentException(
                        "tokens.length=%d roi.length=%d must be equal".formatted(tokens.length, roi.length));
            }
        }

        /** Bytes that count against a buffer's bound. */
        long bytes() {
            return 4L * tokens.length
                    + roi.length
                    + key.data().byteSize()
                    + value.data().byteSize()
                    + hidden.data().byteSize();
        }
    }

    /**
     * Puts an entry in. Returns as soon as there is room; the entry's memory may be changed after that.
     *
     * @throws PipeException if there was no room in time, or nobody can take it any more
     */
    void insert(Entry entry, Duration timeout) throws PipeException;

    /**
     * Says that what belongs to a prompt will never come. Like an entry it is for one who looks it up, now or later, who is told.
     *
     * @throws PipeException if there was no room in time, or nobody can be told any more
     */
    void insertNever(int[] tokens, boolean[] roi, Duration timeout) throws PipeException;

    /**
     * Takes the oldest entry that matches: its tokens and the asked ones, and likewise the regions of interest, are equal as far as
     * the shorter of the two goes; without tokens any entry matches. Waits for one that does. Any number of threads may wait.
     *
     * @param tokens what to look for; empty for any entry
     * @param roi of {@code tokens}
     * @return empty if the producer says that it will never come
     * @throws PipeException if none came in time, or the producer has gone
     */
    Optional<Taken> dropSelect(int[] tokens, boolean[] roi, Duration timeout) throws PipeException;

    /** An entry that was taken out, with its memory. */
    record Taken(Entry entry, Arena arena) implements AutoCloseable {
        /** Gives its memory back. */
        @Override
        public void close() {
            arena.close();
        }
    }

    /** Ends it: entries that nobody took are lost, who waits fails. */
    @Override
    void close();

    /**
     * What a buffer holds.
     *
     * @param bytes of entries at most, {@code kv_buffer_size}
     * @param keep how long an entry that nobody takes stays when its room is needed for others
     */
    record Settings(long bytes, Duration keep) {
        public static final Settings DEFAULT = new Settings(1_000_000_000, Duration.ofMinutes(10));

        /** @throws IllegalArgumentException if one is not positive */
        public Settings {
            if (bytes <= 0 || !keep.isPositive()) {
                throw new IllegalArgumentException("bytes=%d keep=%s must be positive".formatted(bytes, keep));
            }
        }
    }
}
