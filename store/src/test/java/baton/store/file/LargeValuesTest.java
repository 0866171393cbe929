package baton.store.file;

import static baton.store.file.StoredValues.TICKER;
import static baton.store.file.StoredValues.keys;
import static baton.store.file.StoredValues.over;
import static baton.store.file.StoredValues.soon;
import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.BlockHash;
import baton.kv.DType;
import baton.kv.KvLayout;
import baton.kv.ModelFingerprint;
import baton.store.BlockStore;
import baton.store.StoreFormat;
import baton.store.ValueRanges;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.file.Path;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Values of several pieces, direct and buffered, with and without the fsync: files of either are read by the other. */
class LargeValuesTest {
    @TempDir
    Path root;

    private static FileStoreSettings settings(Path root, FileStoreSettings.IoMode mode, boolean fsync) {
        return new FileStoreSettings("root", root, 4, 4, 64, mode, fsync, FileStoreSettings.Limits.NONE);
    }

    /** @param headDim 32: values of a multiple of the page size; 33: of none */
    @ParameterizedTest
    @CsvSource({"DIRECT, 32, 0", "DIRECT, 32, 512", "DIRECT, 33, 0", "BUFFERED, 32, 0", "BUFFERED, 33, 24"})
    void valuesAreReadAsTheyWereWritten(FileStoreSettings.IoMode mode, int headDim, long misaligned) {
        KvLayout layout = new KvLayout(5, 2, headDim, 16, DType.BF16);
        StoreFormat format = new StoreFormat(new ModelFingerprint("m", "a1"), layout, 130, 1, 1);
        long bytes = format.valueBytes();
        assertThat(bytes).isGreaterThan(2 << 20);
        List<BlockHash> keys = keys(1, 3);
        try (Arena arena = Arena.ofShared()) {
            MemorySegment from = arena.allocate(3 * bytes + misaligned, 4096).asSlice(misaligned);
            byte[] random = new byte[(int) from.byteSize()];
            new Random(5).nextBytes(random);
            MemorySegment.copy(random, 0, from, ValueLayout.JAVA_BYTE, 0, random.length);
            try (BlockStore store = FileBlockStore.open(settings(root, mode, true), format, TICKER)) {
                // One in place, two in parts in another order in memory than in the value.
                ValueRanges ranges = new ValueRanges(from).add(0, 0, 0, bytes);
                long part = bytes / 10;
                for (int key = 1; key < 3; key++) {
                    for (int i = 9; i >= 0; i--) {
                        ranges.add(key, i * part, key * bytes + i * part, i == 9 ? bytes - 9 * part : part);
                    }
                }
                assertThat(over(store.put(keys, List.of(ranges), soon())).succeededCount())
                        .isEqualTo(3);
                assertThat(read(store, arena, keys, misaligned).mismatch(from)).isEqualTo(-1);
            }
            FileStoreSettings.IoMode other = mode == FileStoreSettings.IoMode.DIRECT
                    ? FileStoreSettings.IoMode.BUFFERED
                    : FileStoreSettings.IoMode.DIRECT;
            try (BlockStore store = FileBlockStore.open(settings(root, other, false), format, TICKER)) {
                assertThat(read(store, arena, keys, misaligned).mismatch(from)).isEqualTo(-1);
            }
        }
    }

    private static MemorySegment read(BlockStore store, Arena arena, List<BlockHash> keys, long misaligned) {
        long bytes = store.format().valueBytes();
        MemorySegment to = arena.allocate(3 * bytes + misaligned, 4096).asSlice(misaligned);
        ValueRanges ranges = new ValueRanges(to);
        for (int key = 0; key < 3; key++) {
            ranges.add(key, 0, key * bytes, bytes);
        }
        assertThat(over(store.get(keys, List.of(ranges), soon())).succeededCount())
                .isEqualTo(3);
        return to;
    }
}
