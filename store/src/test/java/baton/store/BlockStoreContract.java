package baton.store;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.kv.BlockHash;
import baton.kv.DType;
import baton.kv.Deadline;
import baton.kv.KvLayout;
import baton.kv.ModelFingerprint;
import baton.kv.Ticker;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** The guarantees for callers of a {@link BlockStore}, checked for any store. A store's test extends this class and opens stores. */
public abstract class BlockStoreContract {
    private static final Duration SOON = Duration.ofMinutes(2);
    private static final Ticker TICKER = Ticker.system();

    /** Blocks of 2 layers, 4 heads: odd sizes, so that mistakes in offsets show. */
    private static final KvLayout LAYOUT = new KvLayout(2, 4, 12, 6, DType.BF16);

    protected static final StoreFormat FORMAT =
            new StoreFormat(new ModelFingerprint("org/model", "a1".repeat(32)), LAYOUT, 2, 1, 1);

    /** The medium of stores: a directory, a server. Has room for at least 600 values. */
    public interface Medium extends AutoCloseable {
        BlockStore open(StoreFormat format) throws Exception;

        /** Whether values are there still when the last store has been closed. */
        boolean isDurable();

        @Override
        default void close() throws Exception {}
    }

    private final Random random = new Random(7);
    private Medium medium;
    private BlockStore store;
    private Arena arena;

    protected abstract Medium medium() throws Exception;

    @BeforeEach
    void open() throws Exception {
        medium = medium();
        store = medium.open(FORMAT);
        arena = Arena.ofShared();
    }

    @AfterEach
    void close() throws Exception {
        store.close();
        medium.close();
        arena.close();
    }

    /** A batch of values in one memory, one after the other. */
    private record Batch(List<BlockHash> keys, MemorySegment memory) {
        ValueRanges ranges() {
            ValueRanges ranges = new ValueRanges(memory);
            long bytes = FORMAT.valueBytes();
            for (int i = 0; i < keys.size(); i++) {
                ranges.add(i, 0, i * bytes, bytes);
            }
            return ranges;
        }

        byte[] value(int key) {
            long bytes = FORMAT.valueBytes();
            return memory.asSlice(key * bytes, bytes).toArray(ValueLayout.JAVA_BYTE);
        }
    }

    private Batch values(int count) {
        Batch batch = empty(keys(count));
        byte[] bytes = new byte[(int) batch.memory.byteSize()];
        random.nextBytes(bytes);
        MemorySegment.copy(bytes, 0, batch.memory, ValueLayout.JAVA_BYTE, 0, bytes.length);
        return batch;
    }

    private List<BlockHash> keys(int count) {
        return IntStream.range(0, count)
                .mapToObj(
                        _ -> new BlockHash(random.nextLong(), random.nextLong(), random.nextLong(), random.nextLong()))
                .toList();
    }

    private Batch empty(List<BlockHash> keys) {
        return new Batch(keys, arena.allocate(keys.size() * FORMAT.valueBytes(), 64));
    }

    private static Deadline soon() {
        return Deadline.after(TICKER, SOON);
    }

    /** The task, when it is over. */
    public static StoreTask over(StoreTask task) {
        while (!task.isDone() || !task.isQuiet()) {
            assertThat(task.deadline().isOver()).as("the deadline is over").isFalse();
            LockSupport.parkNanos(50_000);
        }
        return task;
    }

    private StoreTask put(Batch batch) {
        return over(store.put(batch.keys, List.of(batch.ranges()), soon()));
    }

    private Batch got(List<BlockHash> keys, int expected) {
        Batch batch = empty(keys);
        StoreTask task = over(store.get(keys, List.of(batch.ranges()), soon()));
        assertThat(task.succeededCount()).isEqualTo(expected);
        return batch;
    }

    private boolean has(BlockHash key) {
        return over(store.contains(List.of(key), soon())).succeeded(0);
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 3, 300})
    void putValuesAreFoundAndRead(int count) {
        Batch batch = values(count);
        assertThat(over(store.contains(batch.keys, soon())).succeededCount()).isZero();
        assertThat(put(batch).succeededFromFront()).isEqualTo(count);
        assertThat(over(store.contains(batch.keys, soon())).succeededFromFront())
                .isEqualTo(count);
        assertThat(got(batch.keys, count).memory.mismatch(batch.memory)).isEqualTo(-1);
    }

    @Test
    void missesAmongHitsAreMisses() {
        Batch batch = values(4);
        put(batch);
        List<BlockHash> asked = new ArrayList<>(keys(3));
        asked.add(1, batch.keys.get(2));
        asked.add(batch.keys.get(0));
        StoreTask found = over(store.contains(asked, soon()));
        Batch read = empty(asked);
        StoreTask task = over(store.get(asked, List.of(read.ranges()), soon()));
        assertThat(IntStream.range(0, 5).filter(task::succeeded)).containsExactly(1, 4);
        assertThat(IntStream.range(0, 5).filter(found::succeeded)).containsExactly(1, 4);
        assertThat(task.succeededFromFront()).isZero();
        assertThat(read.value(1)).isEqualTo(batch.value(2));
        assertThat(read.value(4)).isEqualTo(batch.value(0));
    }

    /** As two tensor-parallel ranks put them, and one of another size reads its part: heads 1 to 3 of layer 1 of both blocks. */
    @Test
    void rangesInSeveralMemoriesMakeAValueAndPartsOfItAreRead() {
        Batch whole = values(2);
        long layer = LAYOUT.layerBytes();
        long share = layer / 2;
        int rows = 2 * LAYOUT.layers();
        List<ValueRanges> ranks = new ArrayList<>();
        for (int rank = 0; rank < 2; rank++) {
            MemorySegment pool = arena.allocate(2L * rows * share, 64);
            ValueRanges ranges = new ValueRanges(pool);
            for (int key = 0; key < 2; key++) {
                for (int row = 0; row < rows; row++) {
                    long inValue = row * layer + rank * share;
                    // The pool's order is another one than the values'.
                    long inPool = ((1 - key) * rows + row) * share;
                    MemorySegment.copy(whole.memory, key * FORMAT.valueBytes() + inValue, pool, inPool, share);
                    ranges.add(key, inValue, inPool, share);
                }
            }
            ranks.add(ranges);
        }
        assertThat(over(store.put(whole.keys, ranks, soon())).succeededCount()).isEqualTo(2);
        assertThat(got(whole.keys, 2).memory.mismatch(whole.memory)).isEqualTo(-1);

        long head = LAYOUT.headBytes();
        MemorySegment part = arena.allocate(4 * 3L * head, 64);
        ValueRanges ranges = new ValueRanges(part);
        for (int key = 0; key < 2; key++) {
            for (int block = 0; block < 2; block++) {
                ranges.add(
                        key,
                        block * LAYOUT.blockBytes() + LAYOUT.layerOffset(1) + head,
                        (key * 2 + block) * 3L * head,
                        3 * head);
            }
        }
        assertThat(over(store.get(whole.keys, List.of(ranges), soon())).succeededCount())
                .isEqualTo(2);
        for (int i = 0; i < ranges.size(); i++) {
            assertThat(part.asSlice(ranges.memoryOffset(i), ranges.bytes(i))
                            .mismatch(whole.memory.asSlice(
                                    ranges.key(i) * FORMAT.valueBytes() + ranges.valueOffset(i), ranges.bytes(i))))
                    .isEqualTo(-1);
        }
    }

    @Test
    void nothingBesideTheRangesIsWritten() {
        Batch batch = values(2);
        put(batch);
        MemorySegment memory = arena.allocate(3 * FORMAT.valueBytes(), 64);
        memory.fill((byte) 0x5a);
        ValueRanges ranges = new ValueRanges(memory).add(0, 100, 1000, 37).add(1, 0, 2000, 1);
        assertThat(over(store.get(batch.keys, List.of(ranges), soon())).succeededCount())
                .isEqualTo(2);
        byte[] expected = new byte[(int) memory.byteSize()];
        Arrays.fill(expected, (byte) 0x5a);
        System.arraycopy(batch.value(0), 100, expected, 1000, 37);
        expected[2000] = batch.value(1)[0];
        assertThat(memory.toArray(ValueLayout.JAVA_BYTE)).isEqualTo(expected);
    }

    @Test
    void aValueThatIsThereAlreadyIsNotChangedByAnotherPut() {
        Batch first = values(1);
        put(first);
        Batch second = new Batch(first.keys, values(1).memory);
        assertThat(put(second).succeeded(0)).isTrue();
        assertThat(got(first.keys, 1).value(0)).isEqualTo(first.value(0));
    }

    @Test
    void eachValueIsStoredByOneOfTheSamePutsSideBySideAndLeftWhole() {
        Batch batch = values(20);
        List<StoreTask> tasks = IntStream.range(0, 8)
                .mapToObj(_ -> store.put(batch.keys, List.of(batch.ranges()), soon()))
                .toList();
        tasks.forEach(BlockStoreContract::over);
        assertThat(IntStream.range(0, 20).filter(key -> tasks.stream().anyMatch(task -> task.succeeded(key))))
                .hasSize(20);
        assertThat(over(store.contains(batch.keys, soon())).succeededCount()).isEqualTo(20);
        assertThat(got(batch.keys, 20).memory.mismatch(batch.memory)).isEqualTo(-1);
    }

    @Test
    void valuesOfAnotherFormatAreNotFound() throws Exception {
        Batch batch = values(3);
        put(batch);
        List<StoreFormat> formats = List.of(
                new StoreFormat(new ModelFingerprint("org/model", "b2".repeat(32)), LAYOUT, 2, 1, 1),
                new StoreFormat(FORMAT.model(), LAYOUT, 2, 2, 1),
                new StoreFormat(FORMAT.model(), new KvLayout(4, 2, 12, 6, DType.BF16), 2, 1, 1),
                new StoreFormat(FORMAT.model(), new KvLayout(2, 4, 12, 6, DType.F16), 2, 1, 1));
        for (StoreFormat format : formats) {
            try (BlockStore other = medium.open(format)) {
                assertThat(over(other.contains(batch.keys, soon())).succeededCount())
                        .as(format.describe())
                        .isZero();
                Batch read = empty(batch.keys);
                assertThat(over(other.get(batch.keys, List.of(read.ranges()), soon()))
                                .succeededCount())
                        .as(format.describe())
                        .isZero();
            }
        }
        assertThat(got(batch.keys, 3).memory.mismatch(batch.memory)).isEqualTo(-1);
    }

    @Test
    void anOverdueOperationIsDoneAndBecomesQuiet() throws Exception {
        Batch batch = values(2);
        Deadline past = Deadline.after(TICKER, Duration.ZERO);
        StoreTask task = store.put(batch.keys, List.of(batch.ranges()), past);
        assertThat(task.isDone()).isTrue();
        Deadline patience = soon();
        while (!task.isQuiet() && !patience.isOver()) {
            LockSupport.parkNanos(50_000);
        }
        assertThat(task.isQuiet()).isTrue();
        put(batch);
        assertThat(has(batch.keys.getFirst())).isTrue();
    }

    @Test
    void anEmptyBatchIsDone() {
        assertThat(over(store.contains(List.of(), soon())).succeededCount()).isZero();
        assertThat(over(store.get(List.of(), List.of(), soon())).succeededCount())
                .isZero();
        assertThat(over(store.put(List.of(), List.of(), soon())).succeededCount())
                .isZero();
    }

    @Test
    void aClosedStoreRejectsAndAnotherOneOfADurableMediumHasItsValues() throws Exception {
        Batch batch = values(3);
        put(batch);
        store.close();
        store.close();
        assertThat(over(store.contains(batch.keys, soon())).succeededCount()).isZero();
        assertThat(put(batch).succeededCount()).isZero();
        assumeTrue(medium.isDurable(), "does not apply: values end with their store");
        store = medium.open(FORMAT);
        assertThat(got(batch.keys, 3).memory.mismatch(batch.memory)).isEqualTo(-1);
    }

    @Test
    void eventsReportStoredValuesInOrder() {
        store.takeEvents();
        Batch batch = values(2);
        put(batch);
        assertThat(store.takeEvents().stream().filter(event -> event.stored()).flatMap(event -> event.keys().stream()))
                .containsExactlyInAnyOrderElementsOf(batch.keys);
        assertThat(store.takeEvents()).isEmpty();
    }
}
