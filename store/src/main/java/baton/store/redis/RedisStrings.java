package baton.store.redis;

import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.kv.connector.Measurement;
import baton.store.StoreTask;
import baton.store.remote.Destination;
import baton.store.remote.Failure;
import baton.store.remote.StoreCounters;
import io.netty.buffer.ByteBuf;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicIntegerArray;

/**
 * Strings at a Redis server under any keys. Several make an entry, which is set at once ({@code MSET}) and read at once ({@code MGET}), so that
 * a reader never sees strings of two writers. An operation takes a batch of entries, and ends at its deadline at the latest; the server's
 * faults cost it as much as they cost {@link RedisBlockStore}. Thread-safe.
 */
public final class RedisStrings implements AutoCloseable {
    /** The result of {@link Reads#bytes} for a string that is not there. */
    public static final int ABSENT = -1;

    private final StoreCounters counters;
    private final RedisClient redis;

    /**
     * Strings that belong together.
     *
     * @param values by key: the string, or where it goes. Of a shared arena, used until the operation is quiet
     */
    public record Entry(List<String> keys, List<MemorySegment> values) {
        public Entry {
            keys = List.copyOf(keys);
            values = List.copyOf(values);
            if (keys.size() != values.size()) {
                throw new IllegalArgumentException("%d keys have %d values".formatted(keys.size(), values.size()));
            }
        }

        private long bytes() {
            long sum = 0;
            for (int i = 0; i < keys.size(); i++) {
                sum += keys.get(i).length() + values.get(i).byteSize();
            }
            return sum;
        }
    }

    /** A read. Its task succeeds for an entry when the server has answered how much of it is there. */
    public interface Reads {
        StoreTask task();

        /**
         * Bytes of a string, or {@link #ABSENT}. It is in its place if it is no longer than that; the rest of the place is left as it
         * is.
         */
        int bytes(int entry, int string);
    }

    /**
     * Connects in the background: the server needs not be there.
     *
     * @param name for measurements
     * @param entryBytes of an entry, about
     * @throws baton.kv.ConfigException if the settings cannot be used
     */
    public RedisStrings(String name, RedisSettings settings, long entryBytes, Ticker ticker) {
        counters = new StoreCounters(name);
        redis = new RedisClient(settings, entryBytes, counters, ticker);
    }

    /** Whether the server can be asked at present. */
    public boolean isConnected() {
        return redis.remote().isUsable();
    }

    /** Looks keys up. Succeeds for those that are there. */
    public StoreTask contains(List<String> keys, Deadline deadline) {
        return redis.remote().run(new Presence.Lookup(redis, new StoreTask(keys.size(), deadline), KeyList.of(keys)));
    }

    /** Sets entries, over existing ones. */
    public StoreTask set(List<Entry> entries, Deadline deadline) {
        return redis.remote().run(new Setting(new StoreTask(entries.size(), deadline), List.copyOf(entries)));
    }

    /** Reads entries. */
    public Reads get(List<Entry> entries, Deadline deadline) {
        Getting getting = new Getting(new StoreTask(entries.size(), deadline), List.copyOf(entries));
        var _ = redis.remote().run(getting);
        return getting;
    }

    /** Measurements since the last call. */
    public List<Measurement> takeMeasurements() {
        return counters.takeMeasurements(redis.remote().usable());
    }

    @Override
    public void close() {
        redis.remote().close();
    }

    private static long bytes(List<Entry> entries) {
        return entries.stream().mapToLong(Entry::bytes).sum();
    }

    private final class Setting extends RedisOperation {
        private final List<Entry> entries;

        private Setting(StoreTask task, List<Entry> entries) {
            super(
                    RedisStrings.this.redis,
                    RedisStrings.this.redis.writes(),
                    task,
                    entries.size(),
                    RedisStrings.bytes(entries));
            this.entries = entries;
        }

        @Override
        protected void submit() {
            List<RedisRequest> requests = new ArrayList<>(entries.size());
            for (int i = 0; i < entries.size(); i++) {
                requests.add(new SetAll(i));
            }
            transfer(requests);
        }

        private final class SetAll extends RedisRequest.Part {
            private final int index;

            private SetAll(int index) {
                super(Setting.this, entries.get(index).bytes(), 1);
                this.index = index;
            }

            @Override
            protected void write(ByteBuf to, boolean getex) {
                Entry entry = entries.get(index);
                to.ensureWritable(Math.toIntExact(entry.bytes()) + 256);
                Keys.command(to, 1 + 2 * entry.keys().size(), "MSET");
                KeyList keys = KeyList.of(entry.keys());
                for (int i = 0; i < entry.keys().size(); i++) {
                    keys.write(to, i);
                    MemorySegment value = entry.values().get(i);
                    to.writeByte('$');
                    Keys.number(to, value.byteSize());
                    to.writeBytes(value.asByteBuffer());
                    Keys.lineEnd(to);
                }
            }

            @Override
            protected void word() {}

            @Override
            protected void apply() {
                counters.stored(entries.get(index).bytes());
                task.succeed(index);
            }
        }
    }

    private final class Getting extends RedisOperation implements Reads {
        private final List<Entry> entries;
        private final List<AtomicIntegerArray> lengths = new ArrayList<>();

        private Getting(StoreTask task, List<Entry> entries) {
            super(
                    RedisStrings.this.redis,
                    RedisStrings.this.redis.reads(),
                    task,
                    entries.size(),
                    RedisStrings.bytes(entries));
            this.entries = entries;
            for (Entry entry : entries) {
                AtomicIntegerArray absent = new AtomicIntegerArray(entry.keys().size());
                for (int i = 0; i < absent.length(); i++) {
                    absent.set(i, ABSENT);
                }
                lengths.add(absent);
            }
        }

        @Override
        public int bytes(int entry, int string) {
            return lengths.get(entry).get(string);
        }

        @Override
        protected void submit() {
            List<RedisRequest> requests = new ArrayList<>(entries.size());
            for (int i = 0; i < entries.size(); i++) {
                requests.add(new GetAll(i));
            }
            transfer(requests);
        }

        private final class GetAll extends RedisRequest.Part {
            private final Entry entry;
            private final int index;
            private int strings;

            private GetAll(int index) {
                super(Getting.this, entries.get(index).bytes(), 1);
                this.index = index;
                entry = entries.get(index);
            }

            @Override
            protected void write(ByteBuf buffer, boolean getex) {
                KeyList keys = KeyList.of(entry.keys());
                Keys.command(buffer, 1 + keys.size(), "MGET");
                for (int i = 0; i < keys.size(); i++) {
                    keys.write(buffer, i);
                }
            }

            @Override
            protected Optional<Destination> string(int string, int bytes) {
                strings++;
                if (string >= entry.keys().size()) {
                    return Optional.empty();
                }
                lengths.get(index).set(string, bytes);
                MemorySegment to = entry.values().get(string);
                return bytes > to.byteSize() ? Optional.empty() : Optional.of(new Destination(List.of(to), bytes));
            }

            @Override
            protected void missing(int string) {
                strings++;
            }

            @Override
            protected void apply() {
                if (strings == entry.keys().size()) {
                    task.succeed(index);
                } else {
                    failed(Failure.ERROR);
                }
            }
        }
    }
}
