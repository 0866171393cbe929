package baton.connectors.nixl;

import baton.connectors.onesided.RemoteBlocks;
import baton.connectors.onesided.TransferPlan;
import baton.kv.KvGroups;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Optional;

/**
 * The block tables of a request's groups of layers, which connectors get one after the other in one array. At the beginning of a group with a
 * window are null blocks.
 */
record GroupTables(KvGroups groups, int blockSize) {
    /** Whether a reference's blocks are those of these groups. */
    boolean areOf(RemoteBlocks source) {
        return source.ofGroups().size() == groups.size();
    }

    /** A request's blocks of each group. */
    int size(int[] tables) {
        return tables.length / groups.size();
    }

    /** The blocks with the indices {@code [from, to)} of all groups, without null blocks. */
    int[] blocks(int[] tables, int from, int to) {
        return last(tables, to, Collections.nCopies(groups.size(), to - from));
    }

    private boolean isNull(int block) {
        return groups.hasWindows() && block == KvGroups.NULL_BLOCK;
    }

    /** How many blocks of each group the token behind these attends to, and the last of these. */
    List<Integer> attended(int tokens) {
        int end = Math.ceilDiv(tokens, blockSize);
        return groups.groups().stream()
                .map(group -> end - group.firstOf(tokens - 1) / blockSize)
                .toList();
    }

    /** The last blocks of each group up to the block {@code end}, as many as {@code counts} says. */
    int[] last(int[] tables, int end, List<Integer> counts) {
        int[] blocks = new int[counts.stream().mapToInt(count -> count).sum()];
        int filled = 0;
        for (int group = 0; group < groups.size(); group++) {
            int start = group * size(tables);
            for (int i = end - counts.get(group); i < end; i++) {
                if (!isNull(tables[start + i])) {
                    blocks[filled++] = tables[start + i];
                }
            }
        }
        return Arrays.copyOf(blocks, filled);
    }

    /**
     * A load of some tokens of a source that has all of them: from the block of the first token on all blocks that are no null blocks.
     *
     * @param tables of the request that loads
     * @return empty if the source lacks some
     */
    Optional<TransferPlan> plan(RemoteBlocks source, int[] tables, int firstToken, int tokens) {
        int first = firstToken / blockSize;
        int end = Math.ceilDiv(firstToken + tokens, blockSize);
        if (!groups.hasWindows()) {
            return Optional.of(new TransferPlan(firstToken, tokens, Arrays.copyOfRange(tables, first, end)));
        }
        if (!areOf(source)) {
            return Optional.empty();
        }
        int ownersEnd = Math.ceilDiv(source.tokens(), blockSize);
        List<Integer> sources = new ArrayList<>();
        int from = 0;
        for (int group = 0; group < groups.size(); group++) {
            int count = source.ofGroups().get(group);
            for (int i = first; i < end; i++) {
                if (!isNull(tables[group * size(tables) + i])) {
                    int fromEnd = ownersEnd - i;
                    if (fromEnd > count) {
                        return Optional.empty();
                    }
                    sources.add(from + count - fromEnd);
                }
            }
            from += count;
        }
        return Optional.of(new TransferPlan(
                firstToken,
                tokens,
                blocks(tables, first, end),
                Optional.of(sources.stream().mapToInt(index -> index).toArray())));
    }
}
