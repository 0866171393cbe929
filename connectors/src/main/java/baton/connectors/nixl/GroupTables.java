package baton.connectors.nixl;

import baton.connectors.onesided.PromptProgress;
import baton.connectors.onesided.RemoteBlocks;
import baton.connectors.onesided.TransferPlan;
import baton.kv.KvGroups;
import baton.kv.connector.KvRequest;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.stream.IntStream;

/**
 * The block tables of a request's groups of layers, which connectors get one after the other in one array. At the beginning of a group with a
 * window are null blocks.
 */
record GroupTables(KvGroups groups, int blockSize) {
    /** Whether a reference's blocks are those of these groups. */
    boolean areOf(RemoteBlocks source) {
        return source.isAhead() || source.ofGroups().size() == groups.size();
    }

    /** A request's blocks of each group. */
    int size(int[] tables) {
        return tables.length / groups.size();
    }

    /** The blocks with the indices {@code [from, to)} of all groups, without null blocks. */
    int[] blocks(int[] tables, int from, int to) {
        return groups.blocks(tables, from, to).stream()
                .flatMapToInt(Arrays::stream)
                .toArray();
    }

    /** How many blocks of each group the token behind these attends to, and the last of these. */
    List<Integer> attended(int tokens) {
        int end = Math.ceilDiv(tokens, blockSize);
        return groups.groups().stream()
                .map(group -> end - group.firstOf(tokens - 1) / blockSize)
                .toList();
    }

    /** The {@link #attended} blocks, one group after the other; a placeholder for one that the tables have not yet. */
    int[] attendedBlocks(int[] tables, int tokens) {
        int end = Math.ceilDiv(tokens, blockSize);
        List<Integer> counts = attended(tokens);
        return IntStream.range(0, groups.size())
                .flatMap(group -> IntStream.range(end - counts.get(group), end)
                        .map(i -> i < size(tables) ? tables[group * size(tables) + i] : KvGroups.NULL_BLOCK))
                .toArray();
    }

    /** How far a step computes a request's prompt: its last token, if no other, as the step completes the blocks' checksums. */
    PromptProgress progress(KvRequest request, int[] tables, int before, int after, String digest) {
        int prompt = request.promptLength();
        return new PromptProgress(
                request.id(),
                attendedBlocks(tables, prompt),
                attended(prompt),
                Math.min(before, prompt - 1),
                Math.min(after, prompt),
                prompt,
                digest);
    }

    /** Whether windows have left {@link #attended} blocks behind. */
    boolean haveLeft(int[] tables, int tokens) {
        return groups.hasWindows()
                && Arrays.stream(attendedBlocks(tables, tokens)).anyMatch(groups::isNull);
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
        List<Integer> owners = source.isAhead() ? attended(firstToken + tokens) : source.ofGroups();
        int behind = source.isAhead() ? 0 : Math.ceilDiv(source.tokens(), blockSize) - end;
        List<Integer> sizes = groups.blocks(tables, first, end).stream()
                .map(blocks -> blocks.length)
                .toList();
        return TransferPlan.ofGroups(firstToken, tokens, blocks(tables, first, end), sizes, owners, behind);
    }
}
