package baton.kv;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.OptionalInt;
import java.util.stream.IntStream;

/**
 * The layers of a pool in groups, as vLLM's KV cache groups. The layers of a group attend equally far back and share a block table; a
 * block holds the entries of one group at a time. So a group with a window holds only the blocks that its window reaches.
 */
public final class KvGroups {
    /** The place in block tables of groups with a window of a block that is before the window of every token to come. Zeros, never handed out. */
    public static final int NULL_BLOCK = 0;

    private final List<Group> groups;
    private final int[] groupOf;
    private final int[] slotOf;
    private final boolean hasWindows;

    /**
     * Layers that share a block table.
     *
     * @param layers of the pool, in ascending order
     * @param window how many positions a token attends to, its own included: the latest ones; empty: all
     */
    public record Group(List<Integer> layers, OptionalInt window) {
        public Group {
            layers = List.copyOf(layers);
        }

        /** The first position that the token at {@code position} attends to. */
        public int firstOf(int position) {
            return window.isEmpty() ? 0 : Math.max(0, position + 1 - window.getAsInt());
        }

        /**
         * Blocks that a sequence of {@code tokens} tokens holds at once, at most.
         *
         * @param step tokens that are computed at once, at most
         */
        public int blocksFor(int tokens, int step, int blockSize) {
            int all = Math.ceilDiv(tokens, blockSize);
            if (window.isEmpty()) {
                return all;
            }
            // They begin anywhere in a block.
            long positions = (long) window.getAsInt() - 1 + step;
            return (int) Math.min(all, (positions + blockSize - 2) / blockSize + 1);
        }
    }

    private KvGroups(List<Group> groups, int layers) {
        this.groups = List.copyOf(groups);
        this.groupOf = new int[layers];
        this.slotOf = new int[layers];
        this.hasWindows = groups.stream().anyMatch(group -> group.window().isPresent());
        for (int group = 0; group < groups.size(); group++) {
            List<Integer> own = groups.get(group).layers();
            for (int slot = 0; slot < own.size(); slot++) {
                groupOf[own.get(slot)] = group;
                slotOf[own.get(slot)] = slot;
            }
        }
    }

    /** All layers in one group that keeps all positions. */
    public static KvGroups one(int layers) {
        return new KvGroups(
                List.of(new Group(IntStream.range(0, layers).boxed().toList(), OptionalInt.empty())), layers);
    }

    /**
     * vLLM's groups: of layers with equal windows, in the order of their first layers. All groups have as many layers as the kind
     * with the fewest has, or, where the kinds have similar numbers, as the one with the most; a kind's layers are dealt out to its
     * groups in turn.
     *
     * @param windows of each layer; empty: it attends to all positions
     */
    public static KvGroups of(List<OptionalInt> windows) {
        Map<OptionalInt, List<Integer>> kinds = new LinkedHashMap<>();
        for (int layer = 0; layer < windows.size(); layer++) {
            kinds.computeIfAbsent(windows.get(layer), _ -> new ArrayList<>()).add(layer);
        }
        List<Integer> counts = kinds.values().stream().map(List::size).toList();
        int fewest = Collections.min(counts);
        int most = Collections.max(counts);
        int size = 2 * most < 3 * fewest ? most : fewest;
        List<Group> groups = new ArrayList<>();
        kinds.forEach((window, layers) -> {
            int count = Math.ceilDiv(layers.size(), size);
            for (int first = 0; first < count; first++) {
                List<Integer> dealt = new ArrayList<>();
                for (int i = first; i < layers.size(); i += count) {
                    dealt.add(layers.get(i));
                }
                groups.add(new Group(dealt, window));
            }
        });
        return new KvGroups(groups, windows.size());
    }

    /** The same groups with some of the layers, which are counted from {@code first}. */
    public KvGroups ofLayers(int first, int count) {
        return new KvGroups(
                groups.stream()
                        .map(group -> new Group(
                                group.layers().stream()
                                        .filter(layer -> layer >= first && layer < first + count)
                                        .map(layer -> layer - first)
                                        .toList(),
                                group.window()))
                        .toList(),
                count);
    }

    /** The groups; vLLM's {@code group_idx} is the index. */
    public List<Group> groups() {
        return groups;
    }

    public int size() {
        return groups.size();
    }

    public int layers() {
        return groupOf.length;
    }

    /** Layers of a block: those of the largest group. */
    public int layersOfBlock() {
        return groups.stream().mapToInt(group -> group.layers().size()).max().orElseThrow();
    }

    /** Whether some group has a window, so that {@link #NULL_BLOCK} stands in block tables. */
    public boolean hasWindows() {
        return hasWindows;
    }

    /** Whether that place in a block table has no block. */
    public boolean isNull(int block) {
        return hasWindows && block == NULL_BLOCK;
    }

    /**
     * The blocks with the indices {@code [from, to)} of each group, without null blocks.
     *
     * @param tables block tables of equal length of the groups, one after the other
     */
    public List<int[]> blocks(int[] tables, int from, int to) {
        int size = tables.length / groups.size();
        return IntStream.range(0, groups.size())
                .mapToObj(group -> Arrays.stream(tables, group * size + from, group * size + to)
                        .filter(block -> !isNull(block))
                        .toArray())
                .toList();
    }

    /** The index of a layer's group. */
    public int groupOf(int layer) {
        return groupOf[layer];
    }

    /** The layer's place in a block of its group. */
    public int slotOf(int layer) {
        return slotOf[layer];
    }

    /**
     * Layers of a group's blocks that are in place when the layers before {@code endLayer} are computed. With the group's last one all
     * are: those of a larger group hold nothing.
     */
    public int filledSlots(int group, int endLayer) {
        List<Integer> layers = groups.get(group).layers();
        int filled = (int) layers.stream().filter(layer -> layer < endLayer).count();
        return filled == layers.size() ? layersOfBlock() : filled;
    }

    /**
     * Blocks of a pool that is to hold a sequence, the null block included.
     *
     * @param tokens of the sequence
     * @param step tokens that are computed at once, at most
     */
    public int blocksFor(int tokens, int step, int blockSize) {
        return (hasWindows() ? 1 : 0)
                + groups.stream()
                        .mapToInt(group -> group.blocksFor(tokens, step, blockSize))
                        .sum();
    }
}
