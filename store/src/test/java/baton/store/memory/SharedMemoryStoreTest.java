package baton.store.memory;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.kv.BlockHash;
import baton.kv.Ticker;
import baton.kv.connector.Measurement;
import baton.memory.MappableMemory;
import baton.memory.MappedFile;
import baton.store.ValueCache;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Stores on the same memory, as those of several processes are: each has opened its file itself. */
class SharedMemoryStoreTest {
    private static final int SLOTS = 8;
    /** The first part of the tables; a damaged record may say that a living process has pinned the slot. */
    private static final int RECORD_BYTES = (int) (Geometry.ALIGNMENT + SLOTS * SlotTable.RECORD);

    /** Of damages; more with {@code -Dtests.damages}. */
    private static final int ROUNDS = Integer.getInteger("tests.damages", 60);

    private static final long SEED = Long.getLong("tests.damages.seed", 9);

    @TempDir
    private Path directory;

    private final List<HostMemoryStore> opened = new ArrayList<>();

    @BeforeEach
    void onLinuxOnly() {
        assumeTrue(
                MappableMemory.whyNone().isEmpty(),
                () -> MappableMemory.whyNone().orElse(""));
    }

    @AfterEach
    void close() {
        opened.forEach(HostMemoryStore::close);
    }

    private HostMemoryStore open(Eviction eviction, int slots) throws IOException {
        HostMemoryStore store = HostMemoryStore.open(
                SharedValues.FORMAT,
                HostMemorySettings.of(slots * SharedValues.FORMAT.valueBytes())
                        .withEviction(eviction)
                        .withThreads(0)
                        .withShared(Optional.of(new SharedMemory(directory, "test"))),
                Ticker.system());
        opened.add(store);
        return store;
    }

    private HostMemoryStore open() throws IOException {
        return open(Eviction.LRU, SLOTS);
    }

    private Path file() {
        return SharedSlab.path(new SharedMemory(directory, "test"), SharedValues.FORMAT);
    }

    private static List<BlockHash> keys(int from, int to) {
        return SharedValues.keys(from, to);
    }

    @ParameterizedTest
    @EnumSource
    void oneStoresValueIsFoundAndEvictedByTheOther(Eviction eviction) throws IOException {
        HostMemoryStore one = open(eviction, SLOTS);
        HostMemoryStore other = open(eviction, SLOTS);
        SharedValues.put(one, keys(0, 5));
        assertThat(other.presentFromFront(keys(0, 8))).isEqualTo(5);
        SharedValues.requireRight(other, keys(0, 5), 5);
        assertThat(other.takeEvents()).as("each reports its own values").isEmpty();
        SharedValues.put(other, keys(5, 10));
        assertThat(one.used()).isEqualTo(SLOTS);
        assertThat(one.presentFromFront(keys(5, 10))).isEqualTo(5);
        SharedValues.requireRight(one, keys(0, 10), SLOTS);
    }

    @Test
    void oneStoresPinnedValueIsNotEvictedByTheOther() throws IOException {
        HostMemoryStore one = open();
        HostMemoryStore other = open();
        SharedValues.put(one, keys(0, SLOTS));
        int slot = one.pin(keys(0, 1).getFirst());
        int again = other.pin(keys(0, 1).getFirst());
        assertThat(again).isEqualTo(slot);
        other.unpin(again);
        assertThat(other.reserve(keys(10, 10 + SLOTS), new int[SLOTS])).isFalse();
        SharedValues.put(other, keys(10, 10 + SLOTS - 1));
        assertThat(one.isPresent(keys(0, 1).getFirst())).isTrue();
        one.unpin(slot);
        SharedValues.put(other, keys(20, 21));
        SharedValues.put(other, keys(30, 30 + SLOTS));
        assertThat(one.presentFromFront(keys(30, 30 + SLOTS))).isEqualTo(SLOTS);
    }

    @Test
    void slotsLeftPinnedOrHalfFilledAreNotReusedWhileTheProcessLives() throws IOException {
        HostMemoryStore one = open();
        HostMemoryStore other = open();
        SharedValues.put(one, keys(0, 2));
        assertThat(one.pin(keys(0, 1).getFirst())).isNotEqualTo(ValueCache.NONE);
        assertThat(one.reserve(keys(2, SLOTS), new int[SLOTS - 2])).isTrue();
        assertThat(other.reserve(keys(2, 3), new int[1]))
                .as("it is being filled")
                .isTrue();
        assertThat(other.reserve(keys(10, 18), new int[8])).isFalse();
        one.close();
        // A read that hangs may yet write to these slots.
        assertThat(other.reserve(keys(10, 18), new int[8])).isFalse();
        assertThat(other.used()).isEqualTo(SLOTS);
    }

    @ParameterizedTest
    @EnumSource
    void aRestartHitsAndKeepsTheOrderOfEviction(Eviction eviction) throws IOException {
        HostMemoryStore before = open(eviction, SLOTS);
        SharedValues.put(before, keys(0, 4));
        SharedValues.put(before, keys(4, 8));
        before.close();
        HostMemoryStore after = open(eviction, SLOTS);
        SharedValues.requireRight(after, keys(4, 8), 4);
        SharedValues.put(after, keys(10, 13));
        assertThat(after.presentFromFront(keys(4, 8))).isEqualTo(4);
        SharedValues.requireRight(after, keys(0, 4), 1);
    }

    @Test
    void aFileOfAnotherGeometryIsReplacedUnlessItIsInUse() throws IOException {
        HostMemoryStore one = open();
        SharedValues.put(one, keys(0, 2));
        assertThatThrownBy(() -> open(Eviction.LRU, SLOTS + 1))
                .isInstanceOf(IOException.class)
                .hasMessageContaining("is used by another process with another capacity or eviction than 9 values");
        assertThatThrownBy(() -> open(Eviction.ARC, SLOTS)).isInstanceOf(IOException.class);
        one.close();
        assertThat(open(Eviction.ARC, SLOTS).used()).isZero();
    }

    /** Of any length: the file is garbage, or was cut, or not finished. */
    @Test
    void aFileOfGarbageIsReplaced() throws IOException {
        HostMemoryStore first = open();
        first.close();
        byte[] good = Files.readAllBytes(file());
        Random random = new Random(3);
        for (int bytes : new int[] {1, 100, 5000, good.length - 1, good.length, good.length + 1}) {
            byte[] garbage = new byte[bytes];
            random.nextBytes(garbage);
            Files.write(file(), garbage);
            HostMemoryStore store = open();
            assertThat(store.used()).isZero();
            SharedValues.put(store, keys(0, 3));
            SharedValues.requireRight(store, keys(0, 3), 3);
            store.close();
        }
        Files.write(file(), new byte[good.length]);
        assertThat(open().used()).isZero();
    }

    /** Wherever it is damaged behind its header: values read are right, and all slots are usable again. */
    @ParameterizedTest
    @EnumSource
    void aFileWithDamagedTablesOrValuesGivesNoWrongValues(Eviction eviction) throws IOException {
        Random random = new Random(SEED);
        for (int i = 0; i < ROUNDS; i++) {
            HostMemoryStore store = open(eviction, SLOTS);
            SharedValues.put(store, keys(0, 7));
            store.close();
            damage(random, 0, i % 2 == 0 ? 1500 : (int) Files.size(file()) - 5000);
            HostMemoryStore again = open(eviction, SLOTS);
            SharedValues.requireRight(again, keys(0, 7), SharedValues.ANY);
            assertThat(again.reset()).isTrue();
            SharedValues.put(again, keys(20, 20 + SLOTS));
            SharedValues.requireRight(again, keys(20, 20 + SLOTS), SLOTS);
            assertThat(again.reset()).isTrue();
            again.close();
        }
    }

    /** Values are complete then, and all are found. */
    @ParameterizedTest
    @EnumSource
    void damagedTablesAreFoundWhileAnotherProcessIsAttached(Eviction eviction) throws IOException {
        Random random = new Random(SEED);
        HostMemoryStore attached = open(eviction, SLOTS);
        for (int i = 0; i < ROUNDS; i++) {
            SharedValues.put(attached, keys(0, 7));
            damage(random, RECORD_BYTES, tableBytes(eviction));
            HostMemoryStore opened = open(eviction, SLOTS);
            SharedValues.requireRight(opened, keys(0, 7), 7);
            assertThat(opened.reset()).isTrue();
            SharedValues.put(opened, keys(20, 20 + SLOTS));
            SharedValues.requireRight(attached, keys(20, 20 + SLOTS), SLOTS);
            assertThat(attached.reset()).isTrue();
            opened.close();
        }
    }

    /** The operation that finds the damage may fail; none throws, none ends without a result, and the next process has all slots. */
    @ParameterizedTest
    @EnumSource
    void tablesDamagedInUseAreMadeAnew(Eviction eviction) throws IOException {
        Random random = new Random(SEED);
        for (int i = 0; i < ROUNDS; i++) {
            HostMemoryStore store = open(eviction, SLOTS);
            SharedValues.put(store, keys(0, 7));
            SharedValues.requireRight(store, keys(0, 4), 4);
            if (i % 2 == 0) {
                int[] aborted = new int[1];
                assertThat(store.reserve(keys(7, 8), aborted)).isTrue();
                damage(random, RECORD_BYTES, tableBytes(eviction));
                store.abort(aborted[0]);
            } else {
                damage(random, 0, tableBytes(eviction));
            }
            SharedValues.requireRight(store, keys(0, 7), SharedValues.ANY);
            SharedValues.put(store, keys(5, 12));
            SharedValues.requireRight(store, keys(0, 12), SharedValues.ANY);
            store.drop(keys(3, 9));
            SharedValues.put(store, keys(10, 10 + SLOTS));
            boolean _ = store.reset();
            store.close();
            HostMemoryStore again = open(eviction, SLOTS);
            SharedValues.requireRight(again, keys(0, 20), SharedValues.ANY);
            assertThat(again.reset()).isTrue();
            SharedValues.put(again, keys(20, 20 + SLOTS));
            SharedValues.requireRight(again, keys(20, 20 + SLOTS), SLOTS);
            assertThat(again.reset()).isTrue();
            again.close();
        }
    }

    private static int tableBytes(Eviction eviction) {
        return (int) Geometry.of(SharedValues.FORMAT, SLOTS * SharedValues.FORMAT.valueBytes(), eviction)
                .tableBytes();
    }

    /** Overwrites up to 200 bytes that begin in a part of the file behind its header. */
    private void damage(Random random, int from, int to) throws IOException {
        int at = 4096 + random.nextInt(from, to);
        byte[] garbage = new byte[random.nextInt(1, 200)];
        random.nextBytes(garbage);
        try (FileChannel channel = FileChannel.open(file(), StandardOpenOption.WRITE)) {
            channel.write(ByteBuffer.wrap(garbage), at);
        }
    }

    @Test
    void storesThatOpenAtTheSameTimeShareOneFile() throws Exception {
        try (ExecutorService threads = Executors.newFixedThreadPool(8)) {
            for (int i = 0; i < 10; i++) {
                List<Callable<HostMemoryStore>> openings = new ArrayList<>();
                for (int thread = 0; thread < 8; thread++) {
                    openings.add(() -> HostMemoryStore.open(
                            SharedValues.FORMAT,
                            HostMemorySettings.of(SLOTS * SharedValues.FORMAT.valueBytes())
                                    .withThreads(0)
                                    .withShared(Optional.of(new SharedMemory(directory, "test"))),
                            Ticker.system()));
                }
                List<HostMemoryStore> stores = new ArrayList<>();
                for (Future<HostMemoryStore> each : threads.invokeAll(openings, 120, TimeUnit.SECONDS)) {
                    stores.add(each.get(120, TimeUnit.SECONDS));
                }
                opened.addAll(stores);
                SharedValues.put(stores.getFirst(), keys(0, 3));
                assertThat(stores).allMatch(store -> store.presentFromFront(keys(0, 3)) == 3);
                stores.forEach(HostMemoryStore::close);
                Files.delete(file());
            }
        }
    }

    @Test
    void moreProcessesThanPinsHaveBitsAreRefused() throws IOException {
        for (int i = 0; i < SharedSlab.PLACES; i++) {
            open();
        }
        assertThatThrownBy(this::open).isInstanceOf(IOException.class).hasMessageContaining("is used by 32 processes");
        opened.removeFirst().close();
        open();
    }

    @Test
    void lookUpsGoOnAndReservationsFailWhileAnotherProcessKeepsTheLock() throws IOException {
        HostMemoryStore store = open();
        SharedValues.put(store, keys(0, 2));
        int[] slots = new int[1];
        assertThat(store.reserve(keys(2, 3), slots)).isTrue();
        try (MappedFile stopped = MappedFile.open(file())) {
            assertThat(stopped.tryLock(SharedSlab.PLACES)).isTrue();
            SharedValues.requireRight(store, keys(0, 2), 2);
            assertThat(store.isPresent(keys(7, 8).getFirst())).isFalse();
            int[] none = {0};
            assertThat(store.reserve(keys(5, 6), none)).isFalse();
            assertThat(none).containsExactly(ValueCache.NONE);
            store.abort(slots[0]);
            assertThat(store.takeMeasurements()).contains(Measurement.count("baton:kv_store_lock_timeouts", 1));
            // Nothing is stored, above all not in the first slot, which has another value.
            assertThat(SharedValues.put(store, keys(5, 6)).succeededCount()).isZero();
            assertThat(SharedValues.put(store, keys(0, 1)).succeededCount()).isEqualTo(1);
            SharedValues.requireRight(store, keys(0, 2), 2);
        }
        SharedValues.put(store, keys(5, 6));
        assertThat(store.used()).as("the aborted slots are free").isEqualTo(3);
    }

    @Test
    void namesThatAreNoFileNamesAreRefused() {
        for (String name : List.of("", "a/b", "..\u0000", "x".repeat(65))) {
            assertThatThrownBy(() -> new SharedMemory(directory, name)).isInstanceOf(IllegalArgumentException.class);
        }
    }
}
