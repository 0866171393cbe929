package baton.store.file;

import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.BlockHash;
import baton.kv.DType;
import baton.kv.Deadline;
import baton.kv.KvLayout;
import baton.kv.ModelFingerprint;
import baton.kv.Ticker;
import baton.kv.connector.Measurement;
import baton.store.BlockStore;
import baton.store.StoreFormat;
import baton.store.StoreTask;
import baton.store.ValueRanges;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.locks.LockSupport;
import java.util.function.BooleanSupplier;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/** Values that follow from their keys, put and read in one operation each. */
final class StoredValues {
    static final Ticker TICKER = Ticker.system();
    static final StoreFormat SMALL = format(1);

    private StoredValues() {}

    /** Of so many blocks of 8 KiB. */
    static StoreFormat format(int blocks) {
        return new StoreFormat(
                new ModelFingerprint("org/model", "a1".repeat(32)),
                new KvLayout(2, 2, 32, 16, DType.BF16),
                blocks,
                1,
                1);
    }

    static BlockHash key(int number) {
        return new BlockHash(number * 0x9e37_79b9_7f4a_7c15L, number, ~number, 17L * number);
    }

    static List<BlockHash> keys(int first, int count) {
        return IntStream.range(first, first + count).mapToObj(StoredValues::key).toList();
    }

    static byte[] value(BlockHash key, StoreFormat format) {
        byte[] bytes = new byte[Math.toIntExact(format.valueBytes())];
        new Random(key.a()).nextBytes(bytes);
        return bytes;
    }

    static Deadline soon() {
        return Deadline.after(TICKER, Duration.ofMinutes(2));
    }

    static void await(String what, BooleanSupplier condition) {
        Deadline deadline = soon();
        while (!condition.getAsBoolean()) {
            assertThat(deadline.isOver()).as(what).isFalse();
            LockSupport.parkNanos(100_000);
        }
    }

    static StoreTask over(StoreTask task) {
        await("the operation is over", () -> task.isDone() && task.isQuiet());
        return task;
    }

    /** Returns for how many it succeeded. */
    static int put(BlockStore store, List<BlockHash> keys) {
        try (Arena arena = Arena.ofShared()) {
            return over(start(store, arena, keys, soon())).succeededCount();
        }
    }

    static StoreTask start(BlockStore store, Arena arena, List<BlockHash> keys, Deadline deadline) {
        long bytes = store.format().valueBytes();
        MemorySegment memory = arena.allocate(keys.size() * bytes, 4096);
        ValueRanges ranges = new ValueRanges(memory);
        for (int i = 0; i < keys.size(); i++) {
            MemorySegment.copy(
                    value(keys.get(i), store.format()), 0, memory, ValueLayout.JAVA_BYTE, i * bytes, (int) bytes);
            ranges.add(i, 0, i * bytes, bytes);
        }
        return store.put(keys, List.of(ranges), deadline);
    }

    /** Returns the keys for which it succeeded; checks that the bytes read are those put. */
    static List<BlockHash> get(BlockStore store, List<BlockHash> keys) {
        long bytes = store.format().valueBytes();
        try (Arena arena = Arena.ofShared()) {
            MemorySegment memory = arena.allocate(keys.size() * bytes, 4096);
            ValueRanges ranges = new ValueRanges(memory);
            for (int i = 0; i < keys.size(); i++) {
                ranges.add(i, 0, i * bytes, bytes);
            }
            StoreTask task = over(store.get(keys, List.of(ranges), soon()));
            List<BlockHash> got = IntStream.range(0, keys.size())
                    .filter(task::succeeded)
                    .mapToObj(keys::get)
                    .toList();
            for (BlockHash key : got) {
                assertThat(memory.asSlice(keys.indexOf(key) * bytes, bytes).toArray(ValueLayout.JAVA_BYTE))
                        .as(key.toString())
                        .isEqualTo(value(key, store.format()));
            }
            return got;
        }
    }

    /** Failures since the last call, by {@code operation/cause}. */
    static Map<String, Integer> failures(BlockStore store) {
        return store.takeMeasurements().stream()
                .filter(measurement -> measurement.name().equals("baton:kv_file_failures"))
                .collect(Collectors.toMap(
                        measurement -> measurement.labels().get("operation") + "/"
                                + measurement.labels().get("cause"),
                        measurement -> (int) measurement.value()));
    }

    static double counted(List<Measurement> measurements, String name) {
        return measurements.stream()
                .filter(measurement -> measurement.name().equals(name))
                .mapToDouble(Measurement::value)
                .sum();
    }
}
