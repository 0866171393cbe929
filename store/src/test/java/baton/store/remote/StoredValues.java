package baton.store.remote;

import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.BlockHash;
import baton.kv.DType;
import baton.kv.Deadline;
import baton.kv.KvLayout;
import baton.kv.ModelFingerprint;
import baton.kv.Ticker;
import baton.store.BlockStore;
import baton.store.StoreFormat;
import baton.store.StoreTask;
import baton.store.ValueRanges;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.time.Duration;
import java.util.List;
import java.util.Random;
import java.util.concurrent.locks.LockSupport;
import java.util.function.BooleanSupplier;
import java.util.stream.IntStream;

/** A batch of values in one memory, one after the other, for tests of stores. */
public record StoredValues(StoreFormat format, List<BlockHash> keys, MemorySegment memory) {
    private static final Duration SOON = Duration.ofMinutes(2);

    /** Of about that many bytes each. */
    public static StoreFormat format(int valueBytes) {
        KvLayout layout = new KvLayout(2, 4, 16, 64, DType.BF16);
        return new StoreFormat(
                new ModelFingerprint("org/model", "a1".repeat(32)),
                layout,
                Math.max(1, Math.toIntExact(valueBytes / layout.blockBytes())),
                1,
                1);
    }

    public static StoredValues random(StoreFormat format, int count, Arena arena, Random random) {
        List<BlockHash> keys = IntStream.range(0, count)
                .mapToObj(
                        _ -> new BlockHash(random.nextLong(), random.nextLong(), random.nextLong(), random.nextLong()))
                .toList();
        StoredValues values = empty(format, keys, arena);
        byte[] bytes = new byte[Math.toIntExact(values.memory.byteSize())];
        random.nextBytes(bytes);
        MemorySegment.copy(bytes, 0, values.memory, ValueLayout.JAVA_BYTE, 0, bytes.length);
        return values;
    }

    public static StoredValues empty(StoreFormat format, List<BlockHash> keys, Arena arena) {
        return new StoredValues(format, keys, arena.allocate(keys.size() * format.valueBytes(), 64));
    }

    public List<ValueRanges> ranges() {
        ValueRanges ranges = new ValueRanges(memory);
        for (int i = 0; i < keys.size(); i++) {
            ranges.add(i, 0, i * format.valueBytes(), format.valueBytes());
        }
        return List.of(ranges);
    }

    /** Whether a value is the same in both. */
    public boolean sameAt(int key, StoredValues other) {
        long bytes = format.valueBytes();
        return memory.asSlice(key * bytes, bytes).mismatch(other.memory.asSlice(key * bytes, bytes)) < 0;
    }

    public static Deadline soon() {
        return within(SOON);
    }

    public static Deadline within(Duration time) {
        return Deadline.after(Ticker.system(), time);
    }

    public StoreTask put(BlockStore store) {
        return quiet(store.put(keys, ranges(), soon()));
    }

    public StoreTask get(BlockStore store) {
        return quiet(store.get(keys, ranges(), soon()));
    }

    public StoreTask contains(BlockStore store) {
        return quiet(store.contains(keys, soon()));
    }

    /** Waits until a task is done and quiet. */
    public static StoreTask quiet(StoreTask task) {
        until("the task is done and quiet", () -> task.isDone() && task.isQuiet());
        return task;
    }

    public static void until(String what, BooleanSupplier condition) {
        Deadline deadline = soon();
        while (!condition.getAsBoolean()) {
            assertThat(deadline.isOver()).as("still not: " + what).isFalse();
            LockSupport.parkNanos(100_000);
        }
    }
}
