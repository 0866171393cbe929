package baton.store.lm;

import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.kv.connector.Measurement;
import baton.store.StoreTask;
import java.lang.foreign.MemorySegment;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Optional;

/**
 * A client of one server of the {@code lm} protocol, LMCache's or {@code baton kv-server}. An operation takes a batch of keys, returns at
 * once, and ends at its deadline at the latest. Bytes go straight between the network and the memory given, which belongs to shared arenas,
 * and which the operation uses until it is {@link StoreTask#isQuiet quiet}.
 *
 * <p>Nothing is thrown for what a server does: a server that is gone, hangs or refuses makes misses, which are counted. While it is away
 * operations are rejected at once, and it is found in the background when it is back. Thread-safe.
 */
public interface LmClient extends AutoCloseable {
    /** The longest key in bytes. */
    int MOST_KEY_BYTES = 150;

    /**
     * A value to store.
     *
     * @param from its bytes, one memory after the other
     */
    record Put(String key, LmMetadata metadata, List<MemorySegment> from) {
        /** @throws IllegalArgumentException if the key cannot be sent, see {@link #requireKey}, or the value has 2 GiB or more */
        public Put {
            requireKey(key);
            from = List.copyOf(from);
            long bytes = sum(from);
            if (bytes > Integer.MAX_VALUE) {
                throw new IllegalArgumentException(
                        "from has %d bytes, a value has at most %d".formatted(bytes, Integer.MAX_VALUE));
            }
        }

        /** Bytes of the value. */
        public int bytes() {
            return (int) sum(from);
        }
    }

    /**
     * A value to read.
     *
     * @param into where it goes, one memory after the other, from the front; a value of fewer bytes leaves the rest as it is, one of more
     *     bytes is a miss
     */
    record Get(String key, List<MemorySegment> into) {
        /** @throws IllegalArgumentException if the key cannot be sent, see {@link #requireKey} */
        public Get {
            requireKey(key);
            into = List.copyOf(into);
        }
    }

    /**
     * What was read for a key.
     *
     * @param bytes of the value
     */
    record Value(LmMetadata metadata, int bytes) {}

    /** A read. Its {@link #task} succeeds for a key when its value is in place; what a failed one leaves there is undefined. */
    interface Reads {
        StoreTask task();

        /** What was read for a key of the batch; there when the task has succeeded for it. */
        Optional<Value> value(int key);

        /** Whether the server has replied that it has no value under a key of the batch; false of a read that failed. */
        boolean isAbsent(int key);
    }

    /**
     * Opens a client. Returns at once: the server is connected to in the background, and needs not be there.
     *
     * @throws baton.kv.ConfigException if the settings cannot be used
     */
    static LmClient open(LmSettings settings, Ticker ticker) {
        return new NettyLmClient(settings, ticker);
    }

    /**
     * Looks keys up. Succeeds for those that are there. A hit is no promise.
     *
     * @throws IllegalArgumentException if a key cannot be sent, see {@link #requireKey}
     */
    StoreTask contains(List<String> keys, Deadline deadline);

    /** Reads values. */
    Reads get(List<Get> gets, Deadline deadline);

    /**
     * Writes values, each over what is there under its key. The protocol has no reply to that, so each key is looked up behind its value:
     * succeeds for those that are there then.
     */
    StoreTask put(List<Put> puts, Deadline deadline);

    /** Whether the server can be asked at present. */
    boolean isConnected();

    /** Measurements since the last call. */
    List<Measurement> takeMeasurements();

    /** Ends all operations, and all use of memory. */
    @Override
    void close();

    /**
     * Requires a key that the protocol can carry: 1 to {@link #MOST_KEY_BYTES} bytes in UTF-8, without blanks at its ends, because it is
     * padded with them. LMCache's own server takes only those of its own form, {@code model@world_size@worker@hash@dtype}, and closes
     * the connection on others.
     *
     * @throws IllegalArgumentException if it is not such a key
     */
    static void requireKey(String key) {
        int bytes = key.getBytes(StandardCharsets.UTF_8).length;
        if (bytes == 0 || bytes > MOST_KEY_BYTES || !key.equals(key.strip())) {
            throw new IllegalArgumentException("key='%s' has %d bytes, must have 1 to %d and no blanks at its ends"
                    .formatted(key, bytes, MOST_KEY_BYTES));
        }
    }

    private static long sum(List<MemorySegment> memories) {
        long sum = 0;
        for (MemorySegment memory : memories) {
            sum += memory.byteSize();
        }
        return sum;
    }
}
