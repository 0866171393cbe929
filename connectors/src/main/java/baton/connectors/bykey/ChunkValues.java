package baton.connectors.bykey;

import baton.kv.BlockHash;
import baton.kv.KvGroups;
import baton.kv.KvGroups.Group;
import baton.kv.connector.KvRequest;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.stream.IntStream;
import java.util.stream.Stream;

/**
 * The values that chunks of a request's tokens have in a store: one for each group of layers. Of the first group that keeps all positions,
 * and so of the only one, the key is the chunk's.
 *
 * @param groups of the layers
 * @param chunkBlocks blocks in a chunk
 */
record ChunkValues(ChunkKeys keys, KvGroups groups, int blockSize, int chunkBlocks) {
    /**
     * A group's blocks of a chunk.
     *
     * @param chunk its index in the request
     */
    record Value(BlockHash key, int group, int chunk) {}

    private boolean hasWindow(int group) {
        return groups.groups().get(group).window().isPresent();
    }

    /** The first group that keeps all positions, or else the first. */
    private int groupOfChunks() {
        return IntStream.range(0, groups.size())
                .filter(group -> !hasWindow(group))
                .findFirst()
                .orElse(0);
    }

    int chunkTokens() {
        return blockSize * chunkBlocks;
    }

    /** Values of the chunks {@code [from, to)}, one chunk after the other. */
    List<Value> all(KvRequest request, int from, int to) {
        int plain = groupOfChunks();
        List<BlockHash> ofChunks = keys.keys(request, from, to);
        List<Value> values = new ArrayList<>();
        for (int chunk = from; chunk < to; chunk++) {
            for (int group = 0; group < groups.size(); group++) {
                values.add(new Value(ofChunks.get(chunk - from).ofShare(group ^ plain), group, chunk));
            }
        }
        return values;
    }

    static List<BlockHash> keysOf(List<Value> values) {
        return values.stream().map(Value::key).toList();
    }

    /** Chunks of which a store with that many values can load a prefix: of groups with a window it has those in the window only. */
    int mostChunks(int stored) {
        int plain = groups.size();
        int inWindows = 0;
        for (Group group : groups.groups()) {
            if (group.window().isPresent()) {
                plain--;
                inWindows += Math.ceilDiv(group.window().getAsInt(), chunkTokens());
            }
        }
        int behindWindows = plain > 0 ? (stored - inWindows) / plain : inWindows <= stored ? Integer.MAX_VALUE : 0;
        return Math.max(behindWindows, stored / groups.size());
    }

    /** One of each chunk. */
    List<Value> ofChunks(List<Value> values) {
        int group = groupOfChunks();
        return values.stream().filter(value -> value.group() == group).toList();
    }

    /**
     * Those of groups with a window, of the chunks before {@code end}.
     *
     * @param values of all chunks from {@code first} on
     */
    List<Value> withWindows(List<Value> values, int first, int end) {
        return values.subList(0, (end - first) * groups.size()).stream()
                .filter(value -> hasWindow(value.group()))
                .toList();
    }

    /** The values of groups that keep all positions. */
    List<Value> withoutWindows(List<Value> values) {
        return values.stream().filter(value -> !hasWindow(value.group())).toList();
    }

    /**
     * Those in the windows of the token behind the first {@code end} chunks, or of the request's last; the last chunk's first.
     *
     * @param values of all chunks from {@code first} on
     */
    Stream<Value> inWindows(List<Value> values, int first, int end, int length) {
        int next = Math.min(end * chunkTokens(), length - 1);
        int[] reached = groups.groups().stream()
                .mapToInt(group -> group.window().isEmpty() ? end : group.firstOf(next) / chunkTokens())
                .toArray();
        int lowest = Math.clamp(Arrays.stream(reached).min().orElse(end), first, end);
        return values.subList((lowest - first) * groups.size(), (end - first) * groups.size()).reversed().stream()
                .filter(value -> value.chunk() >= reached[value.group()]);
    }

    /**
     * A block of a value.
     *
     * @param tables of all groups, one after the other
     */
    int block(Value value, int index, int[] tables) {
        return tables[value.group() * (tables.length / groups.size()) + value.chunk() * chunkBlocks + index];
    }

    /** Whether the tables have all blocks of a value. */
    boolean has(Value value, int[] tables) {
        return IntStream.range(0, chunkBlocks).noneMatch(i -> groups.isNull(block(value, i, tables)));
    }
}
