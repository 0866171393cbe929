package baton.store.tiered;

import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.BlockHash;
import baton.kv.DType;
import baton.kv.Deadline;
import baton.kv.KvLayout;
import baton.kv.ModelFingerprint;
import baton.kv.connector.Measurement;
import baton.store.MapStore;
import baton.store.StoreFormat;
import baton.store.StoreTask;
import baton.store.ValueCache;
import baton.store.ValueRanges;
import baton.store.memory.HostMemorySettings;
import baton.store.memory.HostMemoryStore;
import baton.testkit.VirtualTicker;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

final class TieredStoreTest {
    private static final StoreFormat FORMAT = new StoreFormat(
            new ModelFingerprint("model", "0a".repeat(32)), new KvLayout(1, 1, 8, 4, DType.F32), 1, 1, 1);
    private static final Duration SECOND = Duration.ofSeconds(1);

    private final VirtualTicker ticker = new VirtualTicker();
    private final Arena arena = Arena.ofShared();
    private final MapStore disk = new MapStore(FORMAT);
    private final MapStore remote = new MapStore(FORMAT);
    private final ValueCache memory = cache(8);
    private final TieredStore store = new TieredStore(
            memory,
            List.of(new Tier(disk, Optional.empty(), false), new Tier(remote, Optional.empty(), false)),
            new TieredStore.Timeouts(SECOND, SECOND),
            ticker);

    private ValueCache cache(int slots) {
        try {
            return HostMemoryStore.open(
                    FORMAT, HostMemorySettings.of(slots * FORMAT.valueBytes()).withThreads(0), ticker);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    @AfterEach
    void close() {
        store.close();
        arena.close();
    }

    private static BlockHash key(int i) {
        return new BlockHash(0x9e3779b97f4a7c15L * (i + 1), i, i, i);
    }

    private static List<BlockHash> keys(int from, int to) {
        return IntStream.range(from, to).mapToObj(TieredStoreTest::key).toList();
    }

    private static byte[] value(int i) {
        byte[] value = new byte[(int) FORMAT.valueBytes()];
        for (int at = 0; at < value.length; at++) {
            value[at] = (byte) (i * 31 + at);
        }
        return value;
    }

    private Deadline deadline() {
        return Deadline.after(ticker, SECOND);
    }

    private void put(int from, int to) {
        // So many that a cascade pins at a time.
        for (int i = from; i < to; i += 4) {
            putAtOnce(i, Math.min(to, i + 4));
        }
    }

    private void putAtOnce(int from, int to) {
        MemorySegment values = arena.allocate((to - from) * FORMAT.valueBytes(), 64);
        ValueRanges ranges = new ValueRanges(values);
        for (int i = from; i < to; i++) {
            long at = (i - from) * FORMAT.valueBytes();
            MemorySegment.copy(value(i), 0, values, ValueLayout.JAVA_BYTE, at, (int) FORMAT.valueBytes());
            ranges.add(i - from, 0, at, FORMAT.valueBytes());
        }
        assertThat(store.put(keys(from, to), List.of(ranges), deadline()).succeededFromFront())
                .isEqualTo(to - from);
    }

    private Acquired acquire(int from, int to) {
        return store.acquire(keys(from, to), true, deadline(), () -> {});
    }

    /** Reads the values from memory, as a load does. */
    private void assertRead(int from, int to) {
        MemorySegment values = arena.allocate((to - from) * FORMAT.valueBytes(), 64);
        ValueRanges ranges = new ValueRanges(values);
        for (int i = from; i < to; i++) {
            ranges.add(i - from, 0, (i - from) * FORMAT.valueBytes(), FORMAT.valueBytes());
        }
        StoreTask task = memory.get(keys(from, to), List.of(ranges), deadline());
        assertThat(task.succeededFromFront()).isEqualTo(to - from);
        for (int i = from; i < to; i++) {
            assertThat(values.asSlice((i - from) * FORMAT.valueBytes(), FORMAT.valueBytes())
                            .toArray(ValueLayout.JAVA_BYTE))
                    .isEqualTo(value(i));
        }
    }

    private double measured(String name, String tier) {
        return store.takeMeasurements().stream()
                .filter(each -> each.name().equals("vllm:kv_offload_tiering_" + name)
                        && tier.equals(each.labels().get("tier")))
                .mapToDouble(Measurement::value)
                .sum();
    }

    @Test
    void storedValuesCascadeToAllTiers() {
        put(0, 3);
        assertThat(memory.presentFromFront(keys(0, 3))).isEqualTo(3);
        assertThat(disk.values.get(key(2))).isEqualTo(value(2));
        assertThat(remote.values.get(key(0))).isEqualTo(value(0));
    }

    @Test
    void evictedValuesArePromotedFromTheFirstTierThatHasThem() {
        put(0, 8);
        put(8, 16);
        assertThat(memory.presentFromFront(keys(0, 8))).isZero();
        disk.values.remove(key(2));
        Acquired acquired = acquire(0, 4);
        assertThat(acquired.isReady()).isTrue();
        assertThat(acquired.fromFront()).isEqualTo(4);
        assertThat(acquired.fromFront(1)).isEqualTo(3);
        assertThat(acquired.fromFront(2)).isEqualTo(1);
        assertRead(0, 4);
        acquired.release();
        assertThat(measured("chunk_hits", "1:map")).isEqualTo(3);
    }

    @Test
    void aValueThatNoTierHasEndsThePrefix() {
        put(0, 3);
        put(4, 8);
        Acquired acquired = acquire(0, 8);
        assertThat(acquired.isReady()).isTrue();
        assertThat(acquired.fromFront()).isEqualTo(3);
        acquired.release();
    }

    @Test
    void pinnedValuesAreNotEvictedUntilTheirRelease() {
        put(0, 4);
        Acquired acquired = acquire(0, 4);
        put(10, 14);
        put(20, 24);
        assertRead(0, 4);
        acquired.release();
        acquired.release();
        put(30, 38);
        assertThat(memory.presentFromFront(keys(0, 4))).isZero();
        assertThat(memory.presentFromFront(keys(30, 38))).isEqualTo(8);
    }

    @Test
    void aReadThatFailsIsAMissAndTheValuesBeforeItAreUsed() {
        put(0, 8);
        put(8, 16);
        disk.broken.add(key(2));
        Acquired acquired = acquire(0, 5);
        assertThat(acquired.isReady()).isTrue();
        assertThat(acquired.fromFront()).isEqualTo(2);
        acquired.release();
        assertThat(measured("promotion_job_failures", "1:map")).isEqualTo(1);
        // The slot that was not filled is free again.
        put(30, 38);
        assertThat(memory.presentFromFront(keys(30, 38))).isEqualTo(8);
    }

    @Test
    void aTierThatHangsIsWaitedForUntilTheDeadlineAndKeepsItsSlotsUntilItReturns() {
        put(0, 8);
        put(8, 16);
        disk.holds = true;
        remote.values.clear();
        AtomicInteger ready = new AtomicInteger();
        Acquired acquired = store.acquire(keys(8, 16), true, deadline(), ready::incrementAndGet);
        assertThat(acquired.isReady()).isTrue();
        acquired.release();
        Acquired hanging = store.acquire(keys(0, 4), true, deadline(), ready::incrementAndGet);
        assertThat(hanging.isReady()).isFalse();
        disk.held.removeFirst().run();
        assertThat(hanging.isReady()).isFalse();
        ticker.advance(SECOND);
        assertThat(hanging.isReady()).isTrue();
        assertThat(hanging.fromFront()).isZero();
        assertThat(ready).hasValue(2);
        hanging.release();
        // Four slots are held by the read that hangs.
        disk.holds = false;
        put(20, 24);
        assertThat(memory.presentFromFront(keys(20, 24))).isEqualTo(4);
        int[] slots = new int[5];
        assertThat(memory.reserve(keys(40, 45), slots)).isFalse();
        disk.proceed();
        assertThat(memory.presentFromFront(keys(0, 1))).isZero();
        assertThat(memory.reserve(keys(40, 45), slots)).isTrue();
        for (int slot : slots) {
            memory.abort(slot);
        }
    }

    @Test
    void aPromotionThatHangsEndsAtItsDeadlineAlthoughItsReaderHasLeft() {
        put(0, 8);
        put(8, 16);
        disk.holds = true;
        remote.values.clear();
        Acquired left = acquire(0, 4);
        // The look-up; the read hangs.
        disk.held.removeFirst().run();
        left.release();
        ticker.advance(SECOND);
        disk.holds = false;
        Acquired next = acquire(0, 4);
        // Their slots are still written to: it misses, but does not wait for that.
        assertThat(next.isReady()).isTrue();
        assertThat(next.fromFront()).isZero();
        next.release();
        disk.proceed();
        Acquired last = acquire(0, 4);
        assertThat(last.fromFront()).isEqualTo(4);
        last.release();
    }

    @Test
    void aWriteThatHangsIsOverAtItsDeadlineAndARejectedOneSaysNothingOfTheSpeed() {
        Backpressure pressure = new Backpressure(
                new Backpressure.Settings(Backpressure.Policy.DROP, 0.001, 0.0005, 0.5, 1, 2, 1, 3), ticker);
        MapStore slow = new MapStore(FORMAT);
        try (TieredStore pressed = new TieredStore(
                cache(8),
                List.of(new Tier(slow, Optional.of(pressure), false)),
                new TieredStore.Timeouts(SECOND, SECOND),
                ticker)) {
            slow.holds = true;
            MemorySegment value = arena.allocate(FORMAT.valueBytes(), 64);
            ValueRanges ranges = new ValueRanges(value).add(0, 0, 0, FORMAT.valueBytes());
            pressed.put(keys(0, 1), List.of(ranges), deadline());
            ticker.advance(SECOND);
            pressed.takeMeasurements();
            double average = pressure.average();
            assertThat(average).as("seconds for a MiB of the write that hung").isPositive();
            assertThat(pressure.admits()).isFalse();
            slow.holds = false;
            slow.proceed();
            slow.rejects = true;
            ticker.advance(Duration.ofSeconds(60));
            assertThat(pressure.admits()).as("without writes pressure ends").isTrue();
            double before = pressure.average();
            ticker.advance(Duration.ofSeconds(2));
            pressed.put(keys(1, 2), List.of(ranges), deadline());
            assertThat(pressure.average()).isEqualTo(before);
            assertThat(pressure.failures()).isEqualTo(1);
        }
    }

    @Test
    void itIsWritingUntilAllTiersHaveTheValueOrTheDeadlineIsOver() {
        assertThat(store.isWriting()).isFalse();
        disk.holds = true;
        remote.holds = true;
        put(0, 1);
        assertThat(store.isWriting()).isTrue();
        disk.holds = false;
        disk.proceed();
        assertThat(store.isWriting()).isTrue();
        ticker.advance(SECOND);
        assertThat(store.isWriting()).isFalse();
        remote.holds = false;
        remote.proceed();
        assertThat(store.isWriting()).isFalse();
    }

    @Test
    void twoReadersOfTheSameValuesShareOnePromotion() {
        put(0, 8);
        put(8, 16);
        disk.holds = true;
        AtomicInteger ready = new AtomicInteger();
        Acquired first = store.acquire(keys(0, 4), true, deadline(), ready::incrementAndGet);
        Acquired second = store.acquire(keys(0, 6), true, deadline(), ready::incrementAndGet);
        disk.proceed();
        assertThat(ready).hasValue(2);
        assertThat(first.isReady()).isTrue();
        assertThat(second.isReady()).isTrue();
        assertThat(first.fromFront()).isEqualTo(4);
        assertThat(second.fromFront()).isEqualTo(6);
        assertRead(0, 6);
        first.release();
        second.release();
    }

    @Test
    void aReaderThatGivesUpLeavesThePromotionToTheOther() {
        put(0, 8);
        put(8, 16);
        disk.holds = true;
        Acquired first = acquire(0, 4);
        Acquired second = acquire(0, 4);
        first.release();
        disk.proceed();
        assertThat(second.isReady()).isTrue();
        assertThat(second.fromFront()).isEqualTo(4);
        second.release();
    }

    @Test
    void aPrefixThatDoesNotFitIntoMemoryIsCut() {
        put(0, 8);
        put(8, 16);
        Acquired pins = acquire(10, 16);
        Acquired acquired = acquire(0, 8);
        assertThat(acquired.isReady()).isTrue();
        assertThat(acquired.fromFront()).isBetween(1, 2);
        acquired.release();
        pins.release();
    }

    @Test
    void withoutOtherTiersOnlyMemoryIsAsked() {
        put(0, 8);
        put(8, 16);
        int before = disk.lookups;
        Acquired acquired = store.acquire(keys(0, 4), false, deadline(), () -> {});
        assertThat(acquired.isReady()).isTrue();
        assertThat(acquired.fromFront()).isZero();
        assertThat(disk.lookups).isEqualTo(before);
        acquired.release();
    }

    @Test
    void cascadesNeverPinMoreThanHalfOfTheMemory() {
        disk.holds = true;
        remote.rejects = true;
        putAtOnce(0, 3);
        putAtOnce(3, 8);
        assertThat(measured("backpressure_blocks_dropped", "1:map")).isEqualTo(4);
        disk.proceed();
        assertThat(disk.values).containsOnlyKeys(keys(0, 4));
    }
}
