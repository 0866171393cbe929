package baton.connectors.mooncake;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.connectors.mooncake.WritePlan.Ranks;
import baton.transfer.Range;
import baton.transfer.TransferException;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class WritePlanTest {
    private static final int HEAD = 32;

    private static List<MooncakeRegion> regions(int layers, int heads, long base) {
        long layer = (long) heads * HEAD;
        return IntStream.range(0, layers)
                .mapToObj(
                        i -> new MooncakeRegion("layers." + i + ".attn", i, 0, base + i * layer, layers * layer, layer))
                .toList();
    }

    /** Whatever the numbers of ranks and heads, each byte of each decode rank's block is written by exactly one rank. */
    @ParameterizedTest
    @CsvSource({
        "1,1,4", "2,1,4", "1,2,4", "4,2,4", "2,4,4", "4,1,2", "4,2,2", "1,4,2", "4,4,2", "8,4,2", "4,8,2", "2,8,1"
    })
    void everyByteIsWrittenOnce(int prefill, int decode, int heads) throws TransferException {
        int here = Math.max(1, heads / prefill);
        int there = Math.max(1, heads / decode);
        for (int reader = 0; reader < decode; reader++) {
            BitSet written = new BitSet();
            long bytes = 0;
            for (int writer : WritePlan.paired(reader, decode, prefill)) {
                WritePlan plan = WritePlan.of(
                        regions(3, here, 1_000_000),
                        new Ranks(prefill, writer, 1),
                        regions(3, there, 5_000_000),
                        new Ranks(decode, reader, 1),
                        heads);
                for (Range range : plan.ranges(new int[] {7}, new int[] {2})) {
                    long at = range.remote() - 5_000_000 - 2L * 3 * there * HEAD;
                    assertThat(at).isBetween(0L, 3L * there * HEAD - range.bytes());
                    written.set((int) at, (int) (at + range.bytes()));
                    bytes += range.bytes();
                }
            }
            assertThat(bytes).isEqualTo(3L * there * HEAD);
            assertThat(written.cardinality()).isEqualTo(3 * there * HEAD);
        }
    }

    @Test
    void neighboursAreOneRange() throws TransferException {
        WritePlan plan = WritePlan.of(
                regions(3, 2, 1_000_000), new Ranks(1, 0, 1), regions(3, 2, 5_000_000), new Ranks(1, 0, 1), 2);
        long block = 3L * 2 * HEAD;
        assertThat(plan.ranges(new int[] {4, 5, 9}, new int[] {0, 1, 2}))
                .containsExactly(
                        new Range(1_000_000 + 4 * block, 5_000_000, 2 * block),
                        new Range(1_000_000 + 9 * block, 5_000_000 + 2 * block, block));
    }

    /** A stage has some of the layers. */
    @Test
    void layersAreMatchedByName() throws TransferException {
        List<MooncakeRegion> all = regions(3, 2, 5_000_000);
        List<MooncakeRegion> stage = new ArrayList<>(regions(3, 2, 1_000_000).subList(1, 2));
        WritePlan plan = WritePlan.of(stage, new Ranks(1, 0, 3), all, new Ranks(1, 0, 1), 2);
        assertThat(plan.readerRegions()).containsExactly(1);
        assertThatThrownBy(() -> WritePlan.of(all, new Ranks(1, 0, 1), stage, new Ranks(1, 0, 1), 2))
                .isInstanceOf(TransferException.class)
                .hasMessageContaining("the decode rank has no layer layers.0.attn");
    }

    @Test
    void mismatchesAreNamed() {
        assertThatThrownBy(() ->
                        WritePlan.of(regions(1, 2, 0), new Ranks(1, 0, 1), regions(1, 4, 0), new Ranks(1, 0, 1), 2))
                .isInstanceOf(TransferException.class)
                .hasMessageContaining("dtype, head size and block size must be equal");
        assertThatThrownBy(() ->
                        WritePlan.of(regions(1, 2, 0), new Ranks(2, 0, 1), regions(1, 1, 0), new Ranks(4, 3, 1), 4))
                .isInstanceOf(TransferException.class)
                .hasMessageContaining("This D tp_rank 3 is not paired with P tp_rank 0; expected one of [0, 1].");
        assertThatThrownBy(() -> WritePlan.paired(0, 2, 3))
                .isInstanceOf(TransferException.class)
                .hasMessageContaining("one must divide the other");
    }
}
