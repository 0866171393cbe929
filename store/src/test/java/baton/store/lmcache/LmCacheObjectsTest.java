package baton.store.lmcache;

import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.BlockHash;
import baton.kv.DType;
import baton.kv.Deadline;
import baton.kv.KvLayout;
import baton.kv.ModelFingerprint;
import baton.kv.Ticker;
import baton.store.FileOperations;
import baton.store.StoreFormat;
import baton.store.StoreTask;
import baton.store.SystemIoThreads;
import baton.store.ValueRanges;
import baton.store.lmcache.CacheEngineKeys.Tag;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.locks.LockSupport;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Objects in files: their names and bytes, and the handling of damaged ones. */
class LmCacheObjectsTest {
    private static final KvLayout LAYOUT = new KvLayout(2, 4, 8, 16, DType.BF16);
    private static final StoreFormat FORMAT = format("a1");
    private static final BlockHash KEY = new BlockHash(-0x1234L, 0, 7, 8);

    /** Two ranks of two heads: 2 * 2 layers * 32 tokens * 16 elements of two bytes. */
    private static final int OBJECT = 2 * 2 * 32 * 16 * 2;

    private final byte[] value = new byte[(int) FORMAT.valueBytes()];

    @TempDir
    private Path directory;

    private Arena arena;
    private LmCacheStore store;

    private static StoreFormat format(String model) {
        return new StoreFormat(new ModelFingerprint("org/m", model.repeat(32)), LAYOUT, 2, 2, 1);
    }

    private LmCacheStore open(StoreFormat format) {
        return new LmCacheStore(
                format,
                ChunkShare.of(format, 2, List.of(2)),
                new CacheEngineKeys("org/m", 2, DType.BF16, true),
                new FsTransport(
                        List.of(directory), true, FileOperations.SYSTEM, new SystemIoThreads(), Ticker.system()),
                1 << 20,
                Ticker.system());
    }

    @BeforeEach
    void open() {
        arena = Arena.ofShared();
        new Random(4).nextBytes(value);
        store = open(FORMAT);
    }

    @AfterEach
    void close() {
        store.close();
        arena.close();
    }

    private static StoreTask over(StoreTask task) {
        while (!task.isDone() || !task.isQuiet()) {
            assertThat(task.deadline().isOver()).isFalse();
            LockSupport.parkNanos(50_000);
        }
        return task;
    }

    private static Deadline soon() {
        return Deadline.after(Ticker.system(), Duration.ofMinutes(2));
    }

    private boolean put() {
        MemorySegment from = arena.allocate(value.length, 64).copyFrom(MemorySegment.ofArray(value));
        ValueRanges ranges = new ValueRanges(from).add(0, 0, 0, value.length);
        return over(store.put(List.of(KEY), List.of(ranges), soon())).succeeded(0);
    }

    /** Whether the value is read; it is right then. */
    private boolean get(LmCacheStore from) {
        MemorySegment to = arena.allocate(value.length, 64);
        ValueRanges ranges = new ValueRanges(to).add(0, 0, 0, value.length);
        boolean read = over(from.get(List.of(KEY), List.of(ranges), soon())).succeeded(0);
        assertThat(!read || Arrays.equals(to.toArray(ValueLayout.JAVA_BYTE), value))
                .isTrue();
        return read;
    }

    private boolean isThere() {
        return over(store.contains(List.of(KEY), soon())).succeeded(0);
    }

    private double failures(LmCacheStore of, String cause) {
        return of.takeMeasurements().stream()
                .filter(each -> each.name().equals("baton:kv_store_failures")
                        && cause.equals(each.labels().get("cause")))
                .mapToDouble(each -> each.value())
                .sum();
    }

    private Path file(int rank) {
        return directory.resolve("org-SEP-m@2@%d@-1234@bfloat16.data".formatted(rank));
    }

    private interface Change {
        byte[] of(byte[] bytes);
    }

    private void change(Change change) throws IOException {
        Files.write(file(1), change.of(Files.readAllBytes(file(1))));
    }

    @Test
    void anObjectIsLmCachesMetadataAndBytes() throws IOException {
        assertThat(put()).isTrue();
        ByteBuffer file = ByteBuffer.wrap(Files.readAllBytes(file(1))).order(ByteOrder.LITTLE_ENDIAN);
        assertThat(file.remaining()).isEqualTo(28 + OBJECT + ObjectCheck.BYTES);
        int[] metadata = new int[7];
        file.asIntBuffer().get(metadata);
        assertThat(metadata).containsExactly(OBJECT, 1, 3, 2, 2, 32, 16);
        // The value of token 17 in the model's head 3 of layer 1, its second element.
        int inValue = (int) (LAYOUT.blockBytes() + LAYOUT.entryOffset(1, 3, 1) + LAYOUT.entryBytes() / 2 + 2);
        int inObject = (((1 * 2 + 1) * 32 + 17) * 16 + 1 * 8 + 1) * 2;
        assertThat(file.getShort(28 + inObject))
                .isEqualTo(ByteBuffer.wrap(value).order(ByteOrder.LITTLE_ENDIAN).getShort(inValue));
        assertThat(get(store)).isTrue();
    }

    @Test
    void damagedBytesAreAMissUntilTheyHaveBeenWrittenAgain() throws IOException {
        put();
        change(bytes -> {
            bytes[3000] ^= 1;
            return bytes;
        });
        assertThat(isThere()).isTrue();
        assertThat(get(store)).isFalse();
        assertThat(failures(store, "checksum")).isEqualTo(1);
        assertThat(isThere()).isFalse();
        assertThat(put()).isTrue();
        assertThat(isThere()).isTrue();
        assertThat(get(store)).isTrue();
    }

    @Test
    void aCutFileIsAMissUntilItHasBeenWrittenAgain() throws IOException {
        put();
        change(bytes -> Arrays.copyOf(bytes, 3000));
        assertThat(get(store)).isFalse();
        assertThat(failures(store, "length")).isEqualTo(1);
        assertThat(put()).isTrue();
        assertThat(get(store)).isTrue();
    }

    @Test
    void anObjectWithoutBatonsChecksumIsLmCachesAndUsed() throws IOException {
        put();
        assertThat(get(store)).isTrue();
        assertThat(store.hasReadUnverified()).isFalse();
        change(bytes -> Arrays.copyOf(bytes, bytes.length - ObjectCheck.BYTES));
        assertThat(get(store)).isTrue();
        assertThat(store.hasReadUnverified()).isTrue();
    }

    @Test
    void anObjectOfAnotherShapeIsAMissAndStays() throws IOException {
        put();
        byte[] foreign = Arrays.copyOf(Files.readAllBytes(file(1)), 28 + OBJECT);
        foreign[16] = 4;
        Files.write(file(1), foreign);
        assertThat(get(store)).isFalse();
        assertThat(failures(store, "wrong_format")).isEqualTo(1);
        assertThat(isThere()).isFalse();
        assertThat(put()).isFalse();
        assertThat(file(1)).hasBinaryContent(foreign);
    }

    @Test
    void anObjectOfOtherWeightsUnderTheSameNameIsAMiss() {
        put();
        try (LmCacheStore other = open(format("b2"))) {
            assertThat(get(other)).isFalse();
            assertThat(failures(other, "wrong_format")).isEqualTo(1);
        }
        assertThat(get(store)).isTrue();
    }

    @Test
    void aChunkIsThereOnlyWithTheObjectsOfAllRanks() throws IOException {
        put();
        Files.delete(file(0));
        assertThat(isThere()).isFalse();
        assertThat(get(store)).isFalse();
        assertThat(put()).isTrue();
        assertThat(get(store)).isTrue();
    }

    @Test
    void keysAreLmCaches() {
        CacheEngineKeys signed = new CacheEngineKeys("org/m", 4, DType.F16, true);
        assertThat(signed.name(KEY, 3)).contains("org/m@4@3@-1234@half");
        CacheEngineKeys unsigned = new CacheEngineKeys("m", 1, DType.F32, false);
        long tags = unsigned.digest(List.of(new Tag("a", "1"), new Tag("b", "x")));
        assertThat(unsigned.name(new BlockHash(-1, tags, 0, 0), 0)).contains("m@1@0@ffffffffffffffff@float@a%1@b%x");
        assertThat(unsigned.name(new BlockHash(1, tags + 1, 0, 0), 0)).isEmpty();
    }
}
