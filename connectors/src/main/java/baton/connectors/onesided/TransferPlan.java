package baton.connectors.onesided;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;

/**
 * The tokens that one transfer moves, and the reader's blocks for them.
 *
 * @param firstToken a multiple of the reader's block size
 * @param tokens how many
 * @param blocks the reader's, one after the other from {@code firstToken} on; of several groups of layers those of one group after the
 *     other
 * @param groups of the blocks, where the pools have windows and equal block sizes
 */
public record TransferPlan(int firstToken, int tokens, int[] blocks, Optional<Groups> groups) {
    /**
     * @param sizes how many of the blocks are of each group: those of the last tokens
     * @param sources for each of the blocks the index of the owner's block in its table
     */
    record Groups(List<Integer> sizes, int[] sources) {}

    /** The plan of a pool with all layers in each block. */
    public TransferPlan(int firstToken, int tokens, int[] blocks) {
        this(firstToken, tokens, blocks, Optional.empty());
    }

    /**
     * The plan of pools with windows.
     *
     * @param sizes how many of {@code blocks} are of each group: those of the last tokens
     * @param owners how many blocks of each group are in the owner's table
     * @param behind how many of each of these groups are of later tokens
     * @return empty if the owner lacks some
     */
    public static Optional<TransferPlan> ofGroups(
            int firstToken, int tokens, int[] blocks, List<Integer> sizes, List<Integer> owners, int behind) {
        int[] sources = new int[blocks.length];
        int filled = 0;
        int from = 0;
        for (int group = 0; group < sizes.size(); group++) {
            int end = owners.get(group) - behind;
            for (int i = end - sizes.get(group); i < end; i++) {
                if (i < 0) {
                    return Optional.empty();
                }
                sources[filled++] = from + i;
            }
            from += owners.get(group);
        }
        return Optional.of(new TransferPlan(firstToken, tokens, blocks, Optional.of(new Groups(sizes, sources))));
    }

    int endToken() {
        return firstToken + tokens;
    }

    /** The blocks of each group. */
    List<int[]> byGroup() {
        List<int[]> all = new ArrayList<>();
        int from = 0;
        for (int size : groups.map(Groups::sizes).orElse(List.of(blocks.length))) {
            all.add(Arrays.copyOfRange(blocks, from, from + size));
            from += size;
        }
        return all;
    }
}
