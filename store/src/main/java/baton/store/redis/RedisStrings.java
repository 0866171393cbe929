package baton.store.redis;

import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.kv.connector.Measurement;
import baton.store.StoreTask;
import baton.store.remote.Failure;
import baton.store.remote.StoreCounters;
import io.lettuce.core.protocol.CommandType;
import io.netty.buffer.ByteBuf;
import java.lang.foreign.MemorySegment;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicIntegerArray;
import org.jspecify.annotations.Nullable;

/**
 * Strings at a Redis server under any keys. Several make an entry, which is set at once ({@code MSET}) and read at once ({@code MGET}), so that
 * a reader never sees strings of two writers. An operation takes a batch of entries, and ends at its deadline at the latest; the server's
 * faults cost it as much as they cost {@link RedisBlockStore}. Thread-safe.
 */
public final class RedisStrings implements AutoCloseable {
    /** What {@link Reads#bytes} is of a string that is not there. */
    public static final int ABSENT = -1;

    private final Operations operations;

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

    /** A read. Its task succeeds for an entry when the server has told what is there of it. */
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
        operations = new Operations(name, settings, entryBytes, ticker);
        operations.start();
    }

    /** Whether the server can be asked at present. */
    public boolean isConnected() {
        return operations.connections().isUsable();
    }

    /** Looks keys up. Succeeds for those that are there. */
    public StoreTask contains(List<String> keys, Deadline deadline) {
        StoreTask task = new StoreTask(keys.size(), deadline);
        return operations.run(new Presence.Lookup(operations, task, KeyList.of(keys)), operations.reads());
    }

    /** Sets entries, over what is there. */
    public StoreTask set(List<Entry> entries, Deadline deadline) {
        return operations.run(
                new Setting(new StoreTask(entries.size(), deadline), List.copyOf(entries)), operations.writes());
    }

    /** Reads entries. */
    public Reads get(List<Entry> entries, Deadline deadline) {
        Getting getting = new Getting(new StoreTask(entries.size(), deadline), List.copyOf(entries));
        StoreTask task = operations.run(getting, operations.reads());
        return new Reads() {
            @Override
            public StoreTask task() {
                return task;
            }

            @Override
            public int bytes(int entry, int string) {
                return getting.lengths.get(entry).get(string);
            }
        };
    }

    /** What a reader of the strings has found out counts with what is known here. */
    public StoreCounters counters() {
        return operations.counters();
    }

    /** Measurements since the last call. */
    public List<Measurement> takeMeasurements() {
        return operations.counters().takeMeasurements(operations.connections().usable());
    }

    @Override
    public void close() {
        operations.close();
    }

    private static long bytes(List<Entry> entries) {
        return entries.stream().mapToLong(Entry::bytes).sum();
    }

    private final class Setting extends Operation {
        private final List<Entry> entries;

        private Setting(StoreTask task, List<Entry> entries) {
            super(RedisStrings.this.operations, task, entries.size(), RedisStrings.bytes(entries));
            this.entries = entries;
        }

        @Override
        protected void submit() {
            List<Request> requests = new ArrayList<>(entries.size());
            for (int i = 0; i < entries.size(); i++) {
                requests.add(new SetAll(i));
            }
            opened(requests.size());
            operations.connections().transfer(requests);
        }

        private final class SetAll extends Part {
            private final int index;
            private boolean set;

            private SetAll(int index) {
                super(Setting.this, CommandType.MSET, entries.get(index).bytes(), 1);
                this.index = index;
            }

            @Override
            protected void write(ByteBuf to, boolean getex) {
                if (!use(() -> writeEntry(to, entries.get(index)))) {
                    writePing(to);
                }
            }

            private static void writeEntry(ByteBuf to, Entry entry) {
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
            public void set(@Nullable ByteBuffer bytes) {
                set = bytes != null && bytes.remaining() == 2;
            }

            @Override
            protected void apply() {
                operations.writes().succeeded();
                if (set) {
                    operations.counters().stored(entries.get(index).bytes());
                    task.succeed(index);
                }
            }
        }
    }

    private final class Getting extends Operation {
        private final List<Entry> entries;
        private final List<AtomicIntegerArray> lengths = new ArrayList<>();

        private Getting(StoreTask task, List<Entry> entries) {
            super(RedisStrings.this.operations, task, entries.size(), RedisStrings.bytes(entries));
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
        protected void submit() {
            List<Request> requests = new ArrayList<>(entries.size());
            for (int i = 0; i < entries.size(); i++) {
                requests.add(new GetAll(i));
            }
            opened(requests.size());
            operations.connections().transfer(requests);
        }

        private final class GetAll extends Part {
            private final int index;
            private int told;

            private GetAll(int index) {
                super(Getting.this, CommandType.MGET, entries.get(index).bytes(), 1);
                this.index = index;
            }

            @Override
            protected void write(ByteBuf buffer, boolean getex) {
                if (isOver()) {
                    writePing(buffer);
                    return;
                }
                List<String> names = entries.get(index).keys();
                KeyList keys = KeyList.of(names);
                Keys.command(buffer, 1 + names.size(), "MGET");
                for (int i = 0; i < names.size(); i++) {
                    keys.write(buffer, i);
                }
            }

            /** Called for each string in turn; once, with {@code PONG}, where {@code PING} was sent. */
            @Override
            public void set(@Nullable ByteBuffer bytes) {
                int string = told++;
                if (bytes == null
                        || isOver()
                        || string >= entries.get(index).keys().size()) {
                    return;
                }
                MemorySegment to = entries.get(index).values().get(string);
                if (bytes.remaining() > to.byteSize()) {
                    lengths.get(index).set(string, bytes.remaining());
                } else if (use(() -> to.asByteBuffer().put(bytes.duplicate()))) {
                    lengths.get(index).set(string, bytes.remaining());
                }
            }

            @Override
            protected void apply() {
                operations.reads().succeeded();
                if (told == entries.get(index).keys().size()) {
                    task.succeed(index);
                } else if (!isOver()) {
                    operations.counters().failed(Failure.ERROR, 1);
                }
            }
        }
    }
}
