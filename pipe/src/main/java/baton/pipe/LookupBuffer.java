package baton.pipe;

import java.time.Duration;
import java.util.List;
import java.util.Optional;

/**
 * Entries by prompt: a producer inserts a prompt's keys, values and hidden states, a consumer takes them out by the prompt, in
 * any order (vLLM's {@code KVLookupBufferBase}). Services with lookups by key can implement this without pipes.
 */
public interface LookupBuffer extends AutoCloseable {
    /**
     * The results of a prompt's computation.
     *
     * @param tokens the prompt
     * @param roi "region of interest": the tokens that have keys and values; as many elements as tokens
     * @param key in a shape that both sides agree on, e.g. {@code [layers, tokens, kv heads, head dim]}
     * @param value like {@code key}
     * @param hidden hidden states, in a shape that both sides agree on, in memory of the host
     */
    record Entry(int[] tokens, boolean[] roi, Tensor key, Tensor value, Tensor hidden) implements AutoCloseable {
        /** @throws IllegalArgumentException if there are not as many elements of {@code roi} as tokens */
        public Entry {
            if (tokens.length != roi.length) {
                throw new IllegalArgumentException(
                        "tokens.length=%d roi.length=%d must be equal".formatted(tokens.length, roi.length));
            }
        }

        List<Tensor> parts() {
            return List.of(key, value, hidden);
        }

        /** Bytes of keys, values and hidden states. */
        public long tensorBytes() {
            return parts().stream().mapToLong(part -> part.data().byteSize()).sum();
        }

        /** Bytes that count against a buffer's bound. */
        long bytes() {
            return 4L * tokens.length + roi.length + tensorBytes();
        }

        /** Frees its memory. */
        @Override
        public void close() {
            parts().forEach(Tensor::close);
        }
    }

    /**
     * Inserts an entry, which the buffer closes, also if this throws. Returns as soon as there is room.
     *
     * @throws PipeException if there was no room in time, or the buffer has ended
     */
    void insert(Entry entry, Duration timeout) throws PipeException;

    /**
     * Tells that a prompt's entry will never be inserted. Like an entry it is taken by one lookup, now or later.
     *
     * @throws PipeException if there was no room in time, or the buffer has ended
     */
    void insertNever(int[] tokens, boolean[] roi, Duration timeout) throws PipeException;

    /**
     * Takes the oldest entry that matches: its tokens and the given ones, and likewise the regions of interest, are equal up to
     * the length of the shorter one; without tokens any entry matches. Waits for such an entry. Any number of threads may wait.
     *
     * @param tokens to look for; empty for any entry
     * @param roi of {@code tokens}
     * @return empty if the producer reports that it will never be inserted; the caller closes the entry
     * @throws DamagedTensorException if its bytes are not those that were inserted; the buffer can still be used
     * @throws PipeException if there was none in time, or the buffer has ended
     */
    Optional<Entry> dropSelect(int[] tokens, boolean[] roi, Duration timeout) throws PipeException;

    /** Ends the buffer: entries in it are lost, waiting calls fail. */
    @Override
    void close();

    /**
     * Bounds.
     *
     * @param bytes of entries at most, {@code kv_buffer_size}
     * @param keep after this time an entry that was not taken may be dropped to make room for another one
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
