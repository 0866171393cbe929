package baton.kv;

import static org.assertj.core.api.Assertions.assertThat;

import java.util.List;
import java.util.OptionalInt;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

class KvGroupsTest {
    private static final OptionalInt ALL = OptionalInt.empty();

    private static OptionalInt window(int positions) {
        return OptionalInt.of(positions);
    }

    private static KvGroups sixth(int layers) {
        return KvGroups.of(IntStream.range(0, layers)
                .mapToObj(layer -> layer % 6 == 5 ? ALL : window(512))
                .toList());
    }

    private static List<List<Integer>> layers(KvGroups groups) {
        return groups.groups().stream().map(KvGroups.Group::layers).toList();
    }

    @Test
    void equalLayersAreOneGroup() {
        assertThat(layers(KvGroups.of(List.of(ALL, ALL, ALL)))).containsExactly(List.of(0, 1, 2));
        assertThat(KvGroups.of(List.of(ALL, ALL)).hasWindows()).isFalse();
        KvGroups windows = KvGroups.of(List.of(window(8), window(8)));
        assertThat(layers(windows)).containsExactly(List.of(0, 1));
        assertThat(windows.hasWindows()).isTrue();
    }

    /** The groups equal those of vLLM's get_kv_cache_groups for Gemma 3 270M and gpt-oss-20b. */
    @Test
    void layersAreDividedAsInVllm() {
        assertThat(layers(sixth(18)))
                .containsExactly(
                        List.of(0, 6, 12),
                        List.of(1, 7, 13),
                        List.of(2, 8, 14),
                        List.of(3, 9, 15),
                        List.of(4, 10, 16),
                        List.of(5, 11, 17));
        KvGroups alternating = KvGroups.of(IntStream.range(0, 24)
                .mapToObj(layer -> layer % 2 == 0 ? window(128) : ALL)
                .toList());
        assertThat(alternating.size()).isEqualTo(2);
        assertThat(alternating.layersOfBlock()).isEqualTo(12);
        assertThat(alternating.groupOf(7)).isEqualTo(1);
        assertThat(alternating.slotOf(7)).isEqualTo(3);
    }

    @Test
    void similarNumbersOfLayersArePadded() {
        KvGroups groups = KvGroups.of(IntStream.range(0, 25)
                .mapToObj(layer -> layer % 2 == 1 ? window(128) : ALL)
                .toList());
        assertThat(groups.size()).isEqualTo(2);
        assertThat(groups.layersOfBlock()).isEqualTo(13);
    }

    /** A group with fewer layers than the largest has no more to wait for after its last one. */
    @Test
    void layersFillTheBlocksOfTheirGroups() {
        KvGroups groups = KvGroups.of(IntStream.range(0, 9)
                .mapToObj(layer -> layer % 2 == 1 ? window(8) : ALL)
                .toList());
        assertThat(layers(groups)).containsExactly(List.of(0, 2, 4, 6, 8), List.of(1, 3, 5, 7));
        assertThat(IntStream.rangeClosed(0, 9).mapToObj(end -> groups.filledSlots(0, end)))
                .containsExactly(0, 1, 1, 2, 2, 3, 3, 4, 4, 5);
        assertThat(IntStream.rangeClosed(0, 9).mapToObj(end -> groups.filledSlots(1, end)))
                .containsExactly(0, 0, 1, 1, 2, 2, 3, 3, 5, 5);
    }

    @Test
    void blocksOfTablesAreByGroupWithoutNullBlocks() {
        int[] tables = {3, 4, 5, 0, 0, 6};
        assertThat(KvGroups.of(List.of(ALL, window(8))).blocks(tables, 1, 3))
                .containsExactly(new int[] {4, 5}, new int[] {6});
        assertThat(KvGroups.one(2).blocks(tables, 2, 4)).containsExactly(new int[] {5, 0});
    }

    @Test
    void aStageHasItsLayersOfEveryGroup() {
        KvGroups stage = sixth(18).ofLayers(6, 6);
        assertThat(layers(stage))
                .containsExactly(List.of(0), List.of(1), List.of(2), List.of(3), List.of(4), List.of(5));
        assertThat(stage.layersOfBlock()).isEqualTo(1);
        assertThat(sixth(18).ofLayers(0, 1).layersOfBlock()).isEqualTo(1);
    }

    /** Counted one by one, for each place where a step may begin. */
    @Test
    void aWindowNeedsTheMostBlocksThatItAndAStepTouch() {
        for (int blockSize = 1; blockSize <= 5; blockSize++) {
            for (int window = 1; window <= 12; window++) {
                for (int step = 1; step <= 9; step++) {
                    KvGroups.Group group = new KvGroups.Group(List.of(0), window(window));
                    int most = 0;
                    for (int start = 0; start < 60; start++) {
                        int first = group.firstOf(start) / blockSize;
                        most = Math.max(most, (start + step - 1) / blockSize - first + 1);
                    }
                    assertThat(group.blocksFor(1000, step, blockSize)).isEqualTo(most);
                }
            }
        }
        assertThat(new KvGroups.Group(List.of(0), window(8)).blocksFor(5, 100, 4))
                .isEqualTo(2);
    }
}
