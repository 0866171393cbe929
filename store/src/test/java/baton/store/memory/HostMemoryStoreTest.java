package baton.store.memory;

import static baton.store.BlockStoreContract.over;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.BlockHash;
import baton.kv.DType;
import baton.kv.Deadline;
import baton.kv.KvLayout;
import baton.kv.ModelFingerprint;
import baton.kv.Ticker;
import baton.kv.connector.Measurement;
import baton.store.StoreEvent;
import baton.store.StoreFormat;
import baton.store.StoreTask;
import baton.store.ValueCache;
import baton.store.ValueRanges;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Slots, pins, eviction and damage; the semantics of eviction are those of vLLM's CPU offloading manager. */
class HostMemoryStoreTest {
    private static final StoreFormat FORMAT = new StoreFormat(
            new ModelFingerprint("org/model", "a1".repeat(32)), new KvLayout(2, 2, 8, 4, DType.BF16), 1, 1, 1);
    private static final int BYTES = (int) FORMAT.valueBytes();

    private static final int MANY = 8 << 20;

    private final Arena arena = Arena.ofShared();
    private final List<HostMemoryStore> opened = new ArrayList<>();

    @AfterEach
    void close() {
        opened.forEach(HostMemoryStore::close);
        arena.close();
    }

    private HostMemoryStore store(Eviction eviction, int slots) {
        return opened(HostMemorySettings.of((long) slots * BYTES)
                .withEviction(eviction)
                .withThreads(0));
    }

    private HostMemoryStore opened(HostMemorySettings settings) {
        try {
            HostMemoryStore store = HostMemoryStore.open(FORMAT, settings, Ticker.system());
            opened.add(store);
            return store;
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private static List<BlockHash> keys(int... numbers) {
        return IntStream.of(numbers)
                .mapToObj(each -> new BlockHash(each, 1, 2, 3))
                .toList();
    }

    private static Deadline soon() {
        return Deadline.after(Ticker.system(), Duration.ofMinutes(2));
    }

    /** A value of a key: its number in all bytes. */
    private ValueRanges values(List<BlockHash> keys) {
        MemorySegment memory = arena.allocate((long) keys.size() * BYTES, 64);
        ValueRanges ranges = new ValueRanges(memory);
        for (int i = 0; i < keys.size(); i++) {
            memory.asSlice((long) i * BYTES, BYTES).fill((byte) keys.get(i).a());
            ranges.add(i, 0, (long) i * BYTES, BYTES);
        }
        return ranges;
    }

    private StoreTask put(HostMemoryStore store, int... numbers) {
        List<BlockHash> keys = keys(numbers);
        return over(store.put(keys, List.of(values(keys)), soon()));
    }

    private static List<Long> present(HostMemoryStore store, int from, int to) {
        return keys(IntStream.rangeClosed(from, to).toArray()).stream()
                .filter(store::isPresent)
                .map(BlockHash::a)
                .toList();
    }

    private static String events(HostMemoryStore store) {
        StringBuilder text = new StringBuilder();
        for (StoreEvent event : store.takeEvents()) {
            text.append(event.stored() ? "+" : "-")
                    .append(event.keys().stream().map(BlockHash::a).sorted().toList());
        }
        return text.toString();
    }

    @ParameterizedTest
    @EnumSource
    void evictionsAreReportedBeforeStoredValues(Eviction eviction) {
        HostMemoryStore store = store(eviction, 4);
        put(store, 1, 2, 3, 4);
        assertThat(events(store)).isEqualTo("+[1, 2, 3, 4]");
        assertThat(put(store, 5, 6).succeededCount()).isEqualTo(2);
        assertThat(events(store)).isEqualTo("-[3, 4]+[5, 6]");
        assertThat(present(store, 1, 6)).containsExactly(1L, 2L, 5L, 6L);
    }

    @Test
    void lruEvictsTheLeastRecentlyReadAndThePrefixOfABatchLast() {
        HostMemoryStore store = store(Eviction.LRU, 4);
        put(store, 1, 2);
        put(store, 3, 4);
        store.unpin(store.pin(keys(2).getFirst()));
        put(store, 5);
        assertThat(present(store, 1, 5)).containsExactly(2L, 3L, 4L, 5L);
        put(store, 6);
        assertThat(present(store, 1, 6)).containsExactly(2L, 3L, 5L, 6L);
        store.unpin(store.pin(keys(2).getFirst()));
        store.unpin(store.pin(keys(3).getFirst()));
        put(store, 7, 8);
        assertThat(present(store, 1, 8)).containsExactly(2L, 3L, 7L, 8L);
        put(store, 9);
        assertThat(present(store, 1, 9)).containsExactly(3L, 7L, 8L, 9L);
    }

    @ParameterizedTest
    @EnumSource
    void aValueOfTheSameReservationIsNotEvictedForIt(Eviction eviction) {
        HostMemoryStore store = store(eviction, 3);
        put(store, 1, 2, 3);
        store.takeEvents();
        int[] slots = new int[3];
        assertThat(store.reserve(keys(3, 4, 5), slots)).isTrue();
        assertThat(slots[0]).isEqualTo(ValueCache.NONE);
        assertThat(events(store)).isEqualTo("-[1, 2]");
        assertThat(store.reserve(keys(3, 6), new int[2])).as("only 3 could go").isFalse();
        store.commit(slots[1]);
        store.commit(slots[2]);
        assertThat(present(store, 1, 6)).containsExactly(3L, 4L, 5L);
    }

    @ParameterizedTest
    @EnumSource
    void aReservationThatFindsNotEnoughRoomEvictsNothing(Eviction eviction) {
        HostMemoryStore store = store(eviction, 4);
        put(store, 1, 2, 3, 4);
        int[] pinned = {store.pin(keys(1).getFirst()), store.pin(keys(3).getFirst())};
        store.takeEvents();
        assertThat(put(store, 5, 6, 7).succeededCount()).isZero();
        assertThat(put(store, 5, 6, 7, 8, 9).succeededCount()).isZero();
        assertThat(store.takeEvents()).isEmpty();
        assertThat(present(store, 1, 9)).containsExactly(1L, 2L, 3L, 4L);
        assertThat(store.takeMeasurements())
                .contains(Measurement.count("vllm:kv_offload_allocation_failure", 2))
                .anyMatch(each -> each.name().equals("vllm:kv_offload_cpu_cache_usage_perc") && each.value() == 0.5);
        for (int slot : pinned) {
            store.unpin(slot);
        }
        assertThat(put(store, 5, 6, 7).succeededCount()).isEqualTo(3);
        assertThat(store.takeMeasurements())
                .anyMatch(each -> each.name().equals("vllm:kv_offload_cpu_cache_usage_perc") && each.value() == 0);
    }

    @ParameterizedTest
    @EnumSource
    void aPinnedValueStaysUntilItsLastUnpin(Eviction eviction) {
        HostMemoryStore store = store(eviction, 2);
        put(store, 1, 2);
        BlockHash key = keys(1).getFirst();
        int slot = store.pin(key);
        assertThat(store.pin(key)).isEqualTo(slot);
        store.unpin(slot);
        put(store, 3);
        put(store, 4);
        assertThat(store.reset()).isFalse();
        assertThat(present(store, 1, 4)).containsExactly(1L);
        store.unpin(slot);
        assertThatThrownBy(() -> store.unpin(slot)).isInstanceOf(IllegalStateException.class);
        put(store, 5, 6);
        assertThat(present(store, 1, 6)).containsExactly(5L, 6L);
    }

    @ParameterizedTest
    @EnumSource
    void aSlotBeingFilledIsNeitherFoundNorEvictedAndLeavesNothingIfItFails(Eviction eviction) {
        HostMemoryStore store = store(eviction, 2);
        int[] slots = new int[2];
        assertThat(store.reserve(keys(1, 2), slots)).isTrue();
        assertThat(store.used()).isEqualTo(2);
        assertThat(present(store, 1, 2)).isEmpty();
        assertThat(store.pin(keys(1).getFirst())).isEqualTo(ValueCache.NONE);
        assertThat(store.reserve(keys(1), new int[1])).as("it is being filled").isTrue();
        assertThat(store.reserve(keys(3), new int[1])).isFalse();
        assertThat(store.reset()).isFalse();
        store.abort(slots[0]);
        store.commit(slots[1]);
        assertThat(store.used()).isEqualTo(1);
        assertThat(events(store)).isEqualTo("+[2]");
        assertThat(present(store, 1, 2)).containsExactly(2L);
        assertThatThrownBy(() -> store.abort(slots[1])).isInstanceOf(IllegalStateException.class);
        assertThat(store.reset()).isTrue();
        assertThat(store.used()).isZero();
        assertThat(events(store)).isEqualTo("-[2]");
    }

    @Test
    void aValueThatWasDamagedIsAMissAndRemoved() {
        HostMemoryStore store = store(Eviction.LRU, 4);
        put(store, 1, 2, 3);
        int slot = store.pin(keys(2).getFirst());
        store.memory().set(ValueLayout.JAVA_BYTE, store.offset(slot) + BYTES - 1, (byte) 0);
        store.unpin(slot);
        store.takeEvents();
        List<BlockHash> keys = keys(1, 2, 3);
        StoreTask task = over(store.get(keys, List.of(values(keys)), soon()));
        assertThat(IntStream.range(0, 3).filter(task::succeeded)).containsExactly(0, 2);
        assertThat(present(store, 1, 3)).containsExactly(1L, 3L);
        assertThat(events(store)).isEqualTo("-[2]");
        assertThat(store.takeMeasurements()).contains(Measurement.count("baton:kv_store_damaged", 1, "store", "cpu"));
    }

    @Test
    void rangesThatOverlapAreNotTakenForDamage() {
        HostMemoryStore store = store(Eviction.LRU, 4);
        put(store, 1);
        MemorySegment memory = arena.allocate(2L * BYTES, 64);
        ValueRanges twice = new ValueRanges(memory).add(0, 0, 0, BYTES / 2).add(0, 0, BYTES, BYTES / 2);
        assertThat(over(store.get(keys(1), List.of(twice), soon())).succeeded(0))
                .isTrue();
        assertThat(present(store, 1, 1)).containsExactly(1L);
    }

    @Test
    void aPutThatDoesNotCoverItsValuesIsRefused() {
        HostMemoryStore store = store(Eviction.LRU, 4);
        ValueRanges half = new ValueRanges(arena.allocate(BYTES, 64)).add(0, 0, 0, BYTES / 2);
        assertThatThrownBy(() -> store.put(keys(1), List.of(half), soon()))
                .isInstanceOf(IllegalArgumentException.class)
                .hasMessageContaining("have %d bytes, a value has %d".formatted(BYTES / 2, BYTES));
        ValueRanges outside = new ValueRanges(arena.allocate(BYTES, 64)).add(0, 64, 0, BYTES);
        assertThatThrownBy(() -> store.put(keys(1), List.of(outside), soon()))
                .isInstanceOf(IndexOutOfBoundsException.class);
        assertThat(store.used()).isZero();
    }

    @Test
    void aCapacityWithoutRoomForAValueIsRefusedWithNumbers() {
        assertThatThrownBy(() -> opened(HostMemorySettings.of(BYTES - 1)))
                .isInstanceOf(IllegalArgumentException.class)
                .hasMessageContaining(
                        "capacityBytes=%d has no room for a value of %d bytes".formatted(BYTES - 1, BYTES));
    }

    @Test
    void aCancelledPutLeavesNothing() {
        HostMemoryStore store = opened(HostMemorySettings.of(MANY).withThreads(1));
        List<BlockHash> keys = keys(IntStream.range(0, MANY / BYTES).toArray());
        ValueRanges values = values(keys);
        for (int i = 0; i < 20; i++) {
            StoreTask task = store.put(keys, List.of(values), soon());
            task.cancel();
            over(task);
            assertThat(store.used()).isIn(0, keys.size());
            assertThat(store.reset()).isTrue();
        }
    }

    @Test
    void closingEndsCopies() {
        HostMemoryStore store = opened(HostMemorySettings.of(MANY).withThreads(1));
        List<BlockHash> keys = keys(IntStream.range(0, MANY / BYTES).toArray());
        ValueRanges values = values(keys);
        List<StoreTask> tasks = new ArrayList<>();
        for (int i = 0; i < 8; i++) {
            tasks.add(store.put(keys, List.of(values), soon()));
            tasks.add(store.get(keys, List.of(values), soon()));
        }
        store.close();
        assertThat(tasks).allMatch(StoreTask::isDone).allMatch(StoreTask::isQuiet);
    }
}
