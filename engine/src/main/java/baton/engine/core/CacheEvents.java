package baton.engine.core;

import baton.kv.BlockHash;
import baton.kv.KvEvent;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;

/**
 * What has changed in the prefix cache, in order, as vLLM tells it: blocks of a request that became known together are one event. The
 * scheduler's thread owns it.
 */
final class CacheEvents {
    private final boolean enabled;
    private final int blockSize;
    private final List<KvEvent> events = new ArrayList<>();

    /** @param enabled whether there are any; they cost nothing otherwise */
    CacheEvents(boolean enabled, int blockSize) {
        this.enabled = enabled;
        this.blockSize = blockSize;
    }

    /** None at all. */
    static CacheEvents disabled() {
        return new CacheEvents(false, 1);
    }

    /**
     * Blocks of a request are cached that were not.
     *
     * @param from index of the first in the request
     * @param to index behind the last
     */
    void stored(Request request, int from, int to) {
        if (!enabled || from == to) {
            return;
        }
        List<BlockHash> hashes = request.blockHashes();
        int[] tokens = request.tokens(from * blockSize, to * blockSize);
        Optional<List<List<String>>> extraKeys = Optional.empty();
        if (from == 0 && request.cacheSalt().isPresent()) {
            List<List<String>> keys =
                    new ArrayList<>(List.of(List.of(request.cacheSalt().get())));
            for (int i = 1; i < to; i++) {
                keys.add(List.of());
            }
            extraKeys = Optional.of(keys);
        }
        events.add(new KvEvent.BlockStored(
                hashes.subList(from, to),
                from == 0 ? Optional.empty() : Optional.of(hashes.get(from - 1)),
                Arrays.stream(tokens).boxed().toList(),
                blockSize,
                Optional.empty(),
                Optional.of(KvEvent.MEDIUM_GPU),
                new KvEvent.Details(
                        extraKeys, KvEvent.Place.UNKNOWN, Optional.empty(), Optional.empty(), Optional.empty())));
    }

    void removed(BlockHash hash) {
        if (enabled) {
            events.add(new KvEvent.BlockRemoved(List.of(hash), KvEvent.MEDIUM_GPU));
        }
    }

    void cleared() {
        if (enabled) {
            events.add(new KvEvent.AllBlocksCleared());
        }
    }

    /** Those since the last call, before those of a connector. */
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
