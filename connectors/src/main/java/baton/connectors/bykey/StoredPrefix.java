package baton.connectors.bykey;

import baton.connectors.bykey.ChunkValues.Value;
import baton.connectors.bykey.StoreConnectorMetadata.Load;
import baton.kv.BlockHash;
import baton.kv.Deadline;
import baton.store.StoreTask;
import baton.store.tiered.Acquired;
import baton.store.tiered.TieredStore;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.stream.IntStream;

/*
 *   groups without windows: all chunks from the first on ----> groups with windows: chunks before the end, the last first ----> ready
 *                                                                |         ^
 *                            a chunk is missing: the prefix ends |         | the prefix ends before
 *                            before it                           v         | all that are missing
 *                                                              groups with windows: which chunks are in the store
 *
 * A second chunk that is missing was not read in time, or has no room. Then the prefix is one that is in memory. So a prefix takes few
 * operations of slow tiers, however long the prompt is.
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
    private final List<Part> pinned = new ArrayList<>();
    private Source source;
    private boolean hasLookedUp;
    private Optional<Step> awaited;
    private int end;

    /**
     * The store, for a request.
     *
     * @param others whether tiers beside the memory are asked
     * @param ready called when an answer is there
     */
    record Source(TieredStore store, boolean others, Deadline deadline, Runnable ready) {
        private Source inMemory() {
            return new Source(store, false, deadline, ready);
        }

        private Acquired acquire(List<BlockHash> keys) {
            return store.acquire(keys, others, deadline, ready);
        }

        private StoreTask contains(List<BlockHash> keys) {
            StoreTask task = (others ? store : store.memory()).contains(keys, deadline);
            task.onDone(ready);
            return task;
        }
    }

    private sealed interface Step {
        boolean isReady();

        void release();
    }

    private record Part(List<Value> values, boolean ofWindows, Acquired acquired) implements Step {
        @Override
        public boolean isReady() {
            return acquired.isReady();
        }

        @Override
        public void release() {
            acquired.release();
        }
    }

    private record Lookup(List<BlockHash> keys, StoreTask task) implements Step {
        @Override
        public boolean isReady() {
            return task.isDone();
        }

        @Override
        public void release() {
            task.cancel();
        }
    }

    /**
     * @param first chunk behind those that the engine has
     * @param end of the longest prefix that may be loaded
     * @param length of the request
     * @param values of these chunks
     */
    StoredPrefix(ChunkValues chunks, int first, int end, int length, List<Value> values, Source source) {
        this.chunks = chunks;
        this.first = first;
        this.end = end;
        this.length = length;
        this.values = values;
        this.source = source;
        this.awaited = ask(chunks.withoutWindows(values), false).or(this::askWindows);
    }

    private Optional<Step> ask(List<Value> wanted, boolean ofWindows) {
        return wanted.isEmpty()
                ? Optional.empty()
                : Optional.of(new Part(wanted, ofWindows, source.acquire(ChunkValues.keysOf(wanted))));
    }

    private Optional<Step> askWindows() {
        return ask(chunks.inWindows(values, first, end, length).toList(), true);
    }

    private Optional<Step> lookUp() {
        List<BlockHash> keys = ChunkValues.keysOf(chunks.withWindows(values, first, end));
        return keys.isEmpty() ? Optional.empty() : Optional.of(new Lookup(keys, source.contains(keys)));
    }

    int first() {
        return first;
    }

    /** The chunk behind the prefix. */
    int end() {
        return end;
    }

    boolean isReady() {
        while (awaited.isPresent() && awaited.get().isReady()) {
            awaited = switch (awaited.get()) {
                case Part part -> acquired(part);
                case Lookup lookup -> lookedUp(lookup);
            };
        }
        return awaited.isEmpty();
    }

    private Optional<Step> acquired(Part part) {
        int found = part.acquired().fromFront();
        boolean isWhole = found == part.values().size();
        if (!isWhole) {
            end = part.values().get(found).chunk();
        }
        if (!part.ofWindows()) {
            pinned.add(part);
            return askWindows();
        }
        if (isWhole) {
            pinned.add(part);
            return Optional.empty();
        }
        part.release();
        if (hasLookedUp) {
            source = source.inMemory();
        }
        hasLookedUp = true;
        return lookUp();
    }

    private Optional<Step> lookedUp(Lookup lookup) {
        Set<BlockHash> present = new HashSet<>();
        for (int i = 0; i < lookup.keys().size(); i++) {
            if (lookup.task().succeeded(i)) {
                present.add(lookup.keys().get(i));
            }
        }
        int longest;
        do {
            longest = end;
            end = chunks.inWindows(values, first, longest, length)
                    .filter(value -> !present.contains(value.key()))
                    .findFirst()
                    .map(Value::chunk)
                    .orElse(longest);
        } while (end < longest);
        return askWindows();
    }

    /**
     * A load of the prefix.
     *
     * @param tables the request's block tables
     * @param firstBlock of those that are filled
     * @param endBlock behind them
     */
    Load load(String requestId, int[] tables, int firstBlock, int endBlock, boolean withinStep) {
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
                requestId, keys, places.build().toArray(), blocks.build().toArray(), withinStep);
    }

    /** Gives all pins back. */
    void release() {
        pinned.forEach(Part::release);
        awaited.ifPresent(Step::release);
    }
}
