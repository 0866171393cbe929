package baton.store.lm;

import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.kv.connector.Measurement;
import baton.store.StoreTask;
import baton.store.remote.Destination;
import baton.store.remote.Failure;
import baton.store.remote.RemoteClient;
import baton.store.remote.RemoteOperation;
import baton.store.remote.StoreCounters;
import io.netty.buffer.ByteBuf;
import java.lang.foreign.MemorySegment;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.AtomicReferenceArray;

/**
 * A client of one server of the {@code lm} protocol, LMCache's or {@code baton kv-server}. An operation takes a batch of keys, returns at
 * once, and ends at its deadline at the latest. Bytes go straight between the network and the memory given, which belongs to shared arenas,
 * and which the operation uses until it is {@link StoreTask#isQuiet quiet}.
 *
 * <p>No exception reports the behaviour of a server: one that is gone, hangs or refuses makes misses, which are counted. While it is away
 * operations are rejected at once, and it is found in the background when it is back. Thread-safe.
 */
public final class LmClient implements AutoCloseable {
    /** The longest key in bytes. */
    public static final int MOST_KEY_BYTES = 150;

    /**
     * A value to store.
     *
     * @param from its bytes, one memory after the other
     */
    public record Put(String key, LmMetadata metadata, List<MemorySegment> from) {
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
    public record Get(String key, List<MemorySegment> into) {
        /** @throws IllegalArgumentException if the key cannot be sent, see {@link #requireKey} */
        public Get {
            requireKey(key);
            into = List.copyOf(into);
        }
    }

    /**
     * The value that was read for a key.
     *
     * @param bytes of the value
     */
    public record Value(LmMetadata metadata, int bytes) {}

    /** A read. Its {@link #task} succeeds for a key when its value is in place; a failed read leaves undefined bytes there. */
    public interface Reads {
        StoreTask task();

        /** The value that was read for a key of the batch; there when the task has succeeded for it. */
        Optional<Value> value(int key);

        /** Whether the server has replied that it has no value under a key of the batch; false of a read that failed. */
        boolean isAbsent(int key);
    }

    private final StoreCounters counters = new StoreCounters("lm");
    private final RemoteClient<LmRequest> client;

    private LmClient(LmSettings settings, Ticker ticker) {
        client = LmProtocol.client(settings, counters, ticker);
    }

    /**
     * Opens a client. Returns at once: the server is connected to in the background, and needs not be there.
     *
     * @throws baton.kv.ConfigException if the settings cannot be used
     */
    public static LmClient open(LmSettings settings, Ticker ticker) {
        return new LmClient(settings, ticker);
    }

    /**
     * Looks keys up. Succeeds for those that are there. A hit is no promise.
     *
     * @throws IllegalArgumentException if a key cannot be sent, see {@link #requireKey}
     */
    public StoreTask contains(List<String> keys, Deadline deadline) {
        return client.run(new LookUp.Contains(client, new StoreTask(keys.size(), deadline), LmKeys.of(keys)));
    }

    /** Reads values. */
    public Reads get(List<Get> gets, Deadline deadline) {
        Reading reading = new Reading(new StoreTask(gets.size(), deadline), List.copyOf(gets));
        var _ = client.run(reading);
        return reading;
    }

    private final class Reading extends Fetch implements Reads {
        private final List<Get> gets;
        private final AtomicReferenceArray<Value> values;
        private final AtomicIntegerArray absent;

        private Reading(StoreTask task, List<Get> gets) {
            super(
                    LmClient.this.client,
                    task,
                    gets.stream().mapToLong(get -> sum(get.into())).sum(),
                    LmKeys.of(gets.stream().map(Get::key).toList()));
            this.gets = gets;
            values = new AtomicReferenceArray<>(gets.size());
            absent = new AtomicIntegerArray(gets.size());
        }

        @Override
        public Optional<Value> value(int key) {
            return Optional.ofNullable(values.get(key));
        }

        @Override
        public boolean isAbsent(int key) {
            return absent.get(key) != 0;
        }

        @Override
        protected long valueBytes(int key) {
            return sum(gets.get(key).into());
        }

        @Override
        protected Optional<Destination> place(int key, LmReply reply) {
            if (reply.length() > valueBytes(key)) {
                counters.failed(Failure.LENGTH, 1);
                return Optional.empty();
            }
            return Optional.of(new Destination(gets.get(key).into(), reply.length()));
        }

        @Override
        protected void absent(int key) {
            absent.set(key, 1);
        }

        @Override
        protected void arrived(int key, LmReply reply) {
            counters.read(reply.length());
            values.set(key, new Value(reply.metadata(), reply.length()));
            task.succeed(key);
        }
    }

    /**
     * Writes values, each over the present value of its key. The protocol has no reply to that, so each key is looked up behind its value:
     * the task succeeds for the keys found then.
     */
    public StoreTask put(List<Put> puts, Deadline deadline) {
        return client.run(new Writing(new StoreTask(puts.size(), deadline), List.copyOf(puts)));
    }

    private final class Writing extends RemoteOperation<LmRequest> {
        private final List<Put> puts;

        private Writing(StoreTask task, List<Put> puts) {
            super(
                    LmClient.this.client,
                    task,
                    puts.size(),
                    puts.stream().mapToLong(Put::bytes).sum());
            this.puts = puts;
        }

        @Override
        protected void submit() {
            LmKeys keys = LmKeys.of(puts.stream().map(Put::key).toList());
            List<Send> requests = new ArrayList<>(puts.size());
            for (int key = 0; key < puts.size(); key++) {
                requests.add(send(keys, key, puts.get(key)));
            }
            transfer(requests);
        }

        private Send send(LmKeys keys, int index, Put put) {
            return new Send(this, counters, keys, index, put.bytes()) {
                @Override
                protected LmMetadata metadata() {
                    return put.metadata();
                }

                @Override
                protected List<MemorySegment> value(int key, ByteBuf head) {
                    return put.from();
                }

                @Override
                protected void stored(int key) {
                    counters.stored(put.bytes());
                    task.succeed(key);
                }
            };
        }
    }

    /** Whether the server can be asked at present. */
    public boolean isConnected() {
        return client.isUsable();
    }

    /** Measurements since the last call. */
    public List<Measurement> takeMeasurements() {
        return counters.takeMeasurements(client.usable());
    }

    /** Ends all operations, and all use of memory. */
    @Override
    public void close() {
        client.close();
    }

    /**
     * Requires a key that the protocol can carry: 1 to {@link #MOST_KEY_BYTES} bytes in UTF-8, without blanks at its ends, because it is
     * padded with them. LMCache's own server takes only keys of its own form, {@code model@world_size@worker@hash@dtype}, and closes the
     * connection on others.
     *
     * @throws IllegalArgumentException if it is not such a key
     */
    public static void requireKey(String key) {
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
