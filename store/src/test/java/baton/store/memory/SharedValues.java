package baton.store.memory;

import baton.kv.BlockHash;
import baton.kv.DType;
import baton.kv.Deadline;
import baton.kv.KvLayout;
import baton.kv.ModelFingerprint;
import baton.kv.Ticker;
import baton.store.StoreFormat;
import baton.store.StoreTask;
import baton.store.ValueRanges;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.IntStream;

/** Values that follow from their keys, in every process. */
final class SharedValues {
    static final StoreFormat FORMAT = new StoreFormat(
            new ModelFingerprint("org/model", "a1".repeat(32)), new KvLayout(4, 2, 16, 8, DType.BF16), 1, 1, 1);

    static final int ANY = -1;
    private static final long BYTES = FORMAT.valueBytes();

    private SharedValues() {}

    static List<BlockHash> keys(int from, int to) {
        return IntStream.range(from, to).mapToObj(SharedValues::key).toList();
    }

    static BlockHash key(int number) {
        return new BlockHash(number, 5, 6, 7);
    }

    private static MemorySegment values(Arena arena, List<BlockHash> keys) {
        MemorySegment memory = arena.allocate(keys.size() * BYTES, 64);
        for (int i = 0; i < keys.size(); i++) {
            for (long at = 0; at < BYTES; at += Long.BYTES) {
                memory.set(ValueLayout.JAVA_LONG, i * BYTES + at, (keys.get(i).a() + 1) * 1_000_003 + at);
            }
        }
        return memory;
    }

    private static List<ValueRanges> ranges(MemorySegment memory, int count) {
        ValueRanges ranges = new ValueRanges(memory);
        for (int i = 0; i < count; i++) {
            ranges.add(i, 0, i * BYTES, BYTES);
        }
        return List.of(ranges);
    }

    private static Deadline deadline() {
        return Deadline.after(Ticker.system(), Duration.ofMinutes(2));
    }

    private static StoreTask over(StoreTask task) {
        while (!task.isDone() || !task.isQuiet()) {
            if (task.deadline().isOver()) {
                throw new AssertionError("the deadline is over");
            }
            LockSupport.parkNanos(20_000);
        }
        return task;
    }

    static StoreTask put(HostMemoryStore store, List<BlockHash> keys) {
        try (Arena arena = Arena.ofShared()) {
            return over(store.put(keys, ranges(values(arena, keys), keys.size()), deadline()));
        }
    }

    /** Until all succeed: where several processes share the lock, a put fails while one that has it does not run. */
    static void putAll(HostMemoryStore store, List<BlockHash> keys) {
        Deadline deadline = deadline();
        while (put(store, keys).succeededCount() < keys.size()) {
            if (deadline.isOver()) {
                throw new AssertionError("not all values could be put");
            }
        }
    }

    /** @param expected how many are there, or {@link #ANY} */
    static void requireRight(HostMemoryStore store, List<BlockHash> keys, int expected) {
        try (Arena arena = Arena.ofShared()) {
            MemorySegment right = values(arena, keys);
            MemorySegment read = arena.allocate(right.byteSize(), 64);
            StoreTask task = over(store.get(keys, ranges(read, keys.size()), deadline()));
            for (int i = 0; i < keys.size(); i++) {
                if (task.succeeded(i)
                        && right.asSlice(i * BYTES, BYTES).mismatch(read.asSlice(i * BYTES, BYTES)) >= 0) {
                    throw new AssertionError("the value of " + keys.get(i) + " is wrong");
                }
            }
            if (expected != ANY && task.succeededCount() != expected) {
                throw new AssertionError("found %d, not %d".formatted(task.succeededCount(), expected));
            }
        }
    }
}
