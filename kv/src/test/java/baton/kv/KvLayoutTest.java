package baton.kv;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.BitSet;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class KvLayoutTest {
    @ParameterizedTest
    @CsvSource({"1,1,1,1,F32", "3,2,8,16,BF16", "2,5,3,7,F16"})
    void entriesCoverABlockWithoutOverlap(int layers, int kvHeads, int headDim, int blockSize, DType dtype) {
        KvLayout layout = new KvLayout(layers, kvHeads, headDim, blockSize, dtype);
        BitSet covered = new BitSet();
        long last = -1;
        for (int layer = 0; layer < layers; layer++) {
            for (int head = 0; head < kvHeads; head++) {
                for (int slot = 0; slot < blockSize; slot++) {
                    int from = (int) layout.entryOffset(layer, head, slot);
                    int to = from + (int) layout.entryBytes();
                    assertThat(covered.nextSetBit(from)).isEqualTo(-1);
                    assertThat((long) from).isGreaterThan(last);
                    covered.set(from, to);
                    last = from;
                }
            }
        }

        assertThat(covered.cardinality()).isEqualTo((int) layout.blockBytes());
        assertThat(covered.length()).isEqualTo((int) layout.blockBytes());
        assertThat(layout.blockBytes()).isEqualTo(layout.tokenBytes() * blockSize);
        assertThat(layout.blockBytes()).isEqualTo(layout.layerBytes() * layers);
        assertThat(layout.layerOffset(layers - 1) + layout.layerBytes()).isEqualTo(layout.blockBytes());
    }

    @Test
    void countsBlocks() {
        KvLayout layout = new KvLayout(1, 1, 1, 16, DType.BF16);

        assertThat(layout.blocksFor(0)).isZero();
        assertThat(layout.blocksFor(1)).isEqualTo(1);
        assertThat(layout.blocksFor(16)).isEqualTo(1);
        assertThat(layout.blocksFor(17)).isEqualTo(2);
    }

    @Test
    void doesNotOverflow() {
        KvLayout layout = new KvLayout(128, 128, 256, 1024, DType.F32);

        assertThat(layout.blockBytes()).isEqualTo(128L * 128 * 256 * 2 * 1024 * 4);
    }

    @Test
    void cacheSlicesFollowTheLayout() {
        KvLayout layout = new KvLayout(2, 1, 2, 4, DType.F32);
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment memory = arena.allocate(3 * layout.blockBytes());
            KvCache cache = new KvCache(memory, layout, 3, List.of("a", "b"));

            assertThat(cache.layer(2, 1).address() - memory.address())
                    .isEqualTo(2 * layout.blockBytes() + layout.layerBytes());
            assertThat(cache.block(2).byteSize()).isEqualTo(layout.blockBytes());
            assertThatThrownBy(() -> cache.block(3)).isInstanceOf(IndexOutOfBoundsException.class);
            assertThatThrownBy(() -> cache.layer(0, 2)).isInstanceOf(IndexOutOfBoundsException.class);
            assertThatThrownBy(() -> new KvCache(memory, layout, 4, List.of("a", "b")))
                    .hasMessage("memory of 384 bytes is smaller than blocks=4 of 128 bytes");
            assertThatThrownBy(() -> new KvCache(memory, layout, 3, List.of("a")))
                    .hasMessage("layerNames has 1 names for layers=2");
        }
        assertThatThrownBy(() -> new KvLayout(0, 1, 1, 1, DType.F32)).hasMessage("layers=0 must be positive");
    }
}
