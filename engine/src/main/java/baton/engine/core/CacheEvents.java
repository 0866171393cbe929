package baton.engine.core;

import baton.kv.BlockHash;
import baton.kv.KvEvent;
import baton.kv.KvGroups;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import java.util.OptionalInt;

/**
 * Changes of the prefix cache, in order, as vLLM reports them: blocks of a request that became known together are one event. The
 * scheduler's thread owns it.
 */
final class CacheEvents {

    private final boolean enabled;
    private final int blockSize;
    private final KvGroups groups;
    private final List<KvEvent> events = new ArrayList<>();

    /** @param enabled whether there are any; they cost nothing otherwise */
    CacheEvents(boolean enabled, int blockSize, KvGroups groups) {
        this.enabled = enabled;
        this.blockSize = blockSize;
        this.groups = groups;
    }

    /** A source without events. */
    static CacheEvents disabled() {
        return new CacheEvents(false, 1, KvGroups.one(1));
    }

    /**
     * Blocks of a request are cached that were not.
     *
     * @param group of the blocks
     * @param from index of the first in the request
     * @param to index behind the last
     */
    void stored(Request request, int group, int from, int to) {
        if (!enabled || from == to) {
            return;
        }
        List<BlockHash> hashes = request.blockHashes();
        int[] tokens = request.tokens(from * blockSize, to * blockSize);
        List<List<String>> extraKeys = new ArrayList<>(Collections.nCopies(to - from, List.of()));
        if (from == 0) {
            extraKeys.set(
                    0,
                    request.cacheSalt().filter(salt -> !salt.isEmpty()).stream().toList());
        }
        OptionalInt window = groups.groups().get(group).window();
        events.add(new KvEvent.BlockStored(
                hashes.subList(from, to),
                from == 0 ? Optional.empty() : Optional.of(hashes.get(from - 1)),
                Arrays.stream(tokens).boxed().toList(),
                blockSize,
                Optional.empty(),
                Optional.of(KvEvent.MEDIUM_GPU),
                new KvEvent.Details(
                        Optional.of(extraKeys),
                        KvEvent.Place.of(group),
                        Optional.of(window.isPresent() ? "sliding_window" : "full_attention"),
                        window.isPresent() ? Optional.of(window.getAsInt()) : Optional.empty(),
                        Optional.empty())));
    }

    void removed(int group, BlockHash hash) {
        if (enabled) {
            events.add(
                    new KvEvent.BlockRemoved(List.of(hash), Optional.of(KvEvent.MEDIUM_GPU), KvEvent.Place.of(group)));
        }
    }

    void cleared() {
        if (enabled) {
            events.add(new KvEvent.AllBlocksCleared());
        }
    }

    /** Whether {@link #take} would return any. */
    boolean any() {
        return !events.isEmpty();
    }

    /** The events since the last call, followed by a connector's. */
    List<KvEvent> take(List<KvEvent> ofConnector) {
        if (events.isEmpty()) {
            return ofConnector;
        }
        List<KvEvent> all = new ArrayList<>(events);
        events.clear();
        all.addAll(ofConnector);
        return List.copyOf(all);
    }
}
