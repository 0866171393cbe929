package baton.kv;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.BlockCopy.TokenMajor;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.List;
import java.util.Random;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Copies between blocks and token-major memory, compared byte by byte with a loop over {@link KvLayout#entryOffset}. */
class BlockCopyTest {
    private static final int BLOCKS = 5;
    private static final int[] TABLE = {3, 0, 4};

    private final Random random = new Random(1);

    /** Which tokens of the table's blocks, at which token of the memory, which of the pool's heads, and which of the memory's. */
    @ParameterizedTest
    @CsvSource({
        "F32,  1, 1, 4,  0, 12, 0,  0, 1, 1, 0",
        "BF16, 3, 2, 4,  0, 12, 0,  0, 2, 2, 0",
        "BF16, 2, 2, 4,  0,  7, 0,  0, 2, 2, 0",
        "F16,  2, 3, 5,  4, 11, 2,  0, 3, 3, 0",
        "F32,  1, 3, 4,  5,  6, 1,  0, 3, 3, 0",
        "BF16, 2, 3, 4,  3,  9, 0,  1, 2, 6, 4",
        "F32,  1, 4, 3,  0,  9, 5,  3, 1, 8, 2",
        "BF16, 1, 2, 4,  6,  6, 0,  0, 2, 2, 0",
    })
    void copiesTheBytesOfTokensAndHeadsAndNoOthers(
            DType dtype,
            int layers,
            int poolHeads,
            int blockSize,
            int from,
            int end,
            int at,
            int firstHead,
            int heads,
            int memoryHeads,
            int memoryFirstHead) {
        KvLayout layout = new KvLayout(layers, poolHeads, 3, blockSize, dtype);
        int tokens = at + end - from + 1;
        int entries = tokens * memoryHeads;
        int vector = (int) layout.entryBytes() / 2;
        for (int layer = 0; layer < layers; layer++) {
            MemorySegment pool = noise(BLOCKS * layout.blockBytes());
            BlockCopy copy = new BlockCopy(
                    new KvCache(
                            pool,
                            layout,
                            BLOCKS,
                            IntStream.range(0, layers)
                                    .mapToObj("layer %d"::formatted)
                                    .toList()),
                    firstHead,
                    heads);
            MemorySegment packed = noise((long) entries * 2 * vector);
            MemorySegment keys = noise((long) entries * vector);
            MemorySegment values = noise((long) entries * vector);
            byte[] poolBefore = bytes(pool);
            byte[] expectedPacked = bytes(packed);
            byte[] expectedKeys = bytes(keys);
            byte[] expectedValues = bytes(values);
            byte[] poolFromPacked = poolBefore.clone();
            byte[] poolFromSplit = poolBefore.clone();
            MemorySegment otherPacked = noise(packed.byteSize());
            MemorySegment otherKeys = noise(keys.byteSize());
            MemorySegment otherValues = noise(values.byteSize());
            for (int token = from; token < end; token++) {
                for (int head = 0; head < heads; head++) {
                    int inPool = (int) (TABLE[token / blockSize] * layout.blockBytes()
                            + layout.entryOffset(layer, firstHead + head, token % blockSize));
                    int index = (at + token - from) * memoryHeads + memoryFirstHead + head;
                    for (int i = 0; i < vector; i++) {
                        int key = inPool + i;
                        int value = inPool + vector + i;
                        expectedPacked[index * 2 * vector + i] = poolBefore[key];
                        expectedPacked[index * 2 * vector + vector + i] = poolBefore[value];
                        expectedKeys[index * vector + i] = poolBefore[key];
                        expectedValues[index * vector + i] = poolBefore[value];
                        poolFromPacked[key] = bytes(otherPacked)[index * 2 * vector + i];
                        poolFromPacked[value] = bytes(otherPacked)[index * 2 * vector + vector + i];
                        poolFromSplit[key] = bytes(otherKeys)[index * vector + i];
                        poolFromSplit[value] = bytes(otherValues)[index * vector + i];
                    }
                }
            }

            copy.gather(layer, TABLE, from, end, new TokenMajor.Packed(packed, memoryHeads, memoryFirstHead), at);
            copy.gather(layer, TABLE, from, end, new TokenMajor.Split(keys, values, memoryHeads, memoryFirstHead), at);

            assertThat(bytes(packed)).isEqualTo(expectedPacked);
            assertThat(bytes(keys)).isEqualTo(expectedKeys);
            assertThat(bytes(values)).isEqualTo(expectedValues);
            assertThat(bytes(pool)).isEqualTo(poolBefore);

            copy.scatter(layer, TABLE, from, end, new TokenMajor.Packed(otherPacked, memoryHeads, memoryFirstHead), at);
            assertThat(bytes(pool)).isEqualTo(poolFromPacked);
            pool.copyFrom(MemorySegment.ofArray(poolBefore));
            copy.scatter(
                    layer,
                    TABLE,
                    from,
                    end,
                    new TokenMajor.Split(otherKeys, otherValues, memoryHeads, memoryFirstHead),
                    at);
            assertThat(bytes(pool)).isEqualTo(poolFromSplit);
        }
    }

    @Test
    void refusesTokensHeadsAndLayersThatAreNotThere() {
        KvLayout layout = new KvLayout(1, 2, 1, 4, DType.F32);
        KvCache cache = new KvCache(noise(BLOCKS * layout.blockBytes()), layout, BLOCKS, List.of("layer"));
        BlockCopy copy = new BlockCopy(cache);
        TokenMajor memory = new TokenMajor.Packed(noise(12 * 2 * layout.entryBytes()), 2, 0);

        assertThatThrownBy(() -> new BlockCopy(cache, 1, 2)).isInstanceOf(IndexOutOfBoundsException.class);
        assertThatThrownBy(() -> copy.gather(0, TABLE, 0, 13, memory, 0)).isInstanceOf(IndexOutOfBoundsException.class);
        assertThatThrownBy(() -> copy.gather(0, TABLE, -1, 1, memory, 0)).isInstanceOf(IndexOutOfBoundsException.class);
        assertThatThrownBy(() -> copy.gather(1, TABLE, 0, 1, memory, 0)).isInstanceOf(IndexOutOfBoundsException.class);
        assertThatThrownBy(() -> copy.gather(0, new int[] {BLOCKS}, 0, 1, memory, 0))
                .isInstanceOf(IndexOutOfBoundsException.class);
        assertThatThrownBy(() -> copy.gather(0, TABLE, 0, 12, memory, 1)).isInstanceOf(IndexOutOfBoundsException.class);
        assertThatThrownBy(() ->
                        copy.scatter(0, TABLE, 0, 1, new TokenMajor.Packed(noise(100 * layout.entryBytes()), 2, 1), 0))
                .isInstanceOf(IndexOutOfBoundsException.class);
    }

    private MemorySegment noise(long bytes) {
        byte[] noise = new byte[(int) bytes];
        random.nextBytes(noise);
        return MemorySegment.ofArray(noise);
    }

    private static byte[] bytes(MemorySegment memory) {
        return memory.toArray(ValueLayout.JAVA_BYTE);
    }
}
