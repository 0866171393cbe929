package baton.connectors.bykey;

import baton.connectors.bykey.ChunkValues.Value;
import baton.connectors.bykey.StoreConnectorMetadata.Load;
import baton.kv.BlockHash;
import baton.store.tiered.Acquired;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.function.Function;
import java.util.stream.IntStream;

/*
 *   groups without windows: all chunks from the first on ----> groups with windows: chunks before the end, the last first ----> ready
 *                                                                |         ^
 *                                                                +---------+  a chunk is missing: the prefix ends before it
 */

/**
 * The longest stored prefix of a request behind the chunks that the engine has, pinned: of groups of layers that keep all positions it has all
 * chunks, of groups with a window those that the token behind it attends to.
 */
final class StoredPrefix {
    private final ChunkValues chunks;
    private final int first;
    private final int length;
    private final List<Value> values;
    private final Function<List<BlockHash>, Acquired> acquire;
    private final List<Part> pinned = new ArrayList<>();
    private Optional<Part> asked;
    private int end;

    private record Part(List<Value> values, boolean ofWindows, Acquired acquired) {}

    /**
     * @param first chunk behind those that the engine has
     * @param end of the longest prefix that may be loaded
     * @param length of the request
     * @param values of these chunks
     * @param acquire pins values in the store
     */
    StoredPrefix(
            ChunkValues chunks,
            int first,
            int end,
            int length,
            List<Value> values,
            Function<List<BlockHash>, Acquired> acquire) {
        this.chunks = chunks;
        this.first = first;
        this.end = end;
        this.length = length;
        this.values = values;
        this.acquire = acquire;
        this.asked = ask(chunks.withoutWindows(values), false).or(this::askWindows);
    }

    private Optional<Part> ask(List<Value> wanted, boolean ofWindows) {
        List<BlockHash> keys = wanted.stream().map(Value::key).toList();
        return keys.isEmpty() ? Optional.empty() : Optional.of(new Part(wanted, ofWindows, acquire.apply(keys)));
    }

    private Optional<Part> askWindows() {
        return ask(chunks.inWindows(values, first, end, length), true);
    }

    int first() {
        return first;
    }

    /** The chunk behind the prefix. */
    int end() {
        return end;
    }

    boolean isReady() {
        while (asked.isPresent() && asked.get().acquired().isReady()) {
            Part part = asked.get();
            int found = part.acquired().fromFront();
            boolean isWhole = found == part.values().size();
            if (!isWhole) {
                end = part.values().get(found).chunk();
            }
            if (part.ofWindows() && !isWhole) {
                part.acquired().release();
            } else {
                pinned.add(part);
            }
            asked = part.ofWindows() && isWhole ? Optional.empty() : askWindows();
        }
        return asked.isEmpty();
    }

    /**
     * A load of the prefix.
     *
     * @param tables the request's block tables
     * @param firstBlock of those that are filled
     * @param endBlock behind them
     */
    Load load(String requestId, int[] tables, int firstBlock, int endBlock) {
        int chunkBlocks = chunks.chunkBlocks();
        List<BlockHash> keys = new ArrayList<>();
        IntStream.Builder places = IntStream.builder();
        IntStream.Builder blocks = IntStream.builder();
        for (Part part : pinned) {
            for (Value value : part.values()) {
                int before = value.chunk() * chunkBlocks;
                int behind = Math.min(chunkBlocks, Math.min(endBlock, end * chunkBlocks) - before);
                int[] wanted = IntStream.range(Math.max(0, firstBlock - before), behind)
                        .filter(i -> !chunks.groups().isNull(chunks.block(value, i, tables)))
                        .toArray();
                for (int i : wanted) {
                    places.add(keys.size() * chunkBlocks + i);
                    blocks.add(chunks.block(value, i, tables));
                }
                if (wanted.length > 0) {
                    keys.add(value.key());
                }
            }
        }
        return new Load(
                requestId, keys, places.build().toArray(), blocks.build().toArray());
    }

    /** Gives all pins back. */
    void release() {
        pinned.forEach(part -> part.acquired().release());
        asked.ifPresent(part -> part.acquired().release());
    }
}
