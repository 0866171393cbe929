package baton.connectors.sharedstorage;

import baton.kv.Ticker;
import baton.store.prompt.SharedStorage;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Looks for the entries of one request. Runs on any thread.
 *
 * @param requestId for logs
 * @param candidates entries that could be loaded; the first one found is taken
 * @param save the entry that the request would be saved as
 */
record StorageSearch(
        SharedStorage storage,
        String requestId,
        List<EntryNames.Candidate> candidates,
        Optional<EntryNames.Candidate> save) {
    private static final Logger log = LoggerFactory.getLogger(StorageSearch.class);

    /** Looking for shorter and shorter prefixes may not hold up the request on a slow file system. */
    private static final long SEARCH_NANOS = Duration.ofMillis(100).toNanos();

    /** Whether the entry that a request would be saved as exists. */
    enum Saved {
        /** The entry was not looked up. */
        UNKNOWN,
        /** The storage has not answered in time. */
        NOT_IN_TIME,
        NO,
        /** The entry exists, or another one is in its place that must stay. */
        YES
    }

    /**
     * The results of a search.
     * @param entry to load
     * @param saved {@link Saved#UNKNOWN} if that was not asked
     * @param incompatible entries of another model, element type or layout
     * @param foreign entries without a description of their content
     * @param broken candidates that are incomplete or malformed
     */
    record Outcome(Optional<SharedStorage.Entry> entry, Saved saved, int incompatible, int foreign, int broken) {}

    Outcome run(Ticker ticker) {
        int incompatible = 0;
        int foreign = 0;
        int broken = 0;
        Optional<SharedStorage.Entry> found = Optional.empty();
        long start = ticker.nanos();
        for (EntryNames.Candidate candidate : candidates) {
            if (storage.exists(candidate.name())) {
                switch (storage.find(candidate.name(), candidate.tokens())) {
                    case SharedStorage.Lookup.Found(SharedStorage.Entry entry) -> found = Optional.of(entry);
                    case SharedStorage.Lookup.Broken(String reason) -> {
                        broken++;
                        log.warn("request {}: KV cache entry {} is broken: {}", requestId, candidate.name(), reason);
                    }
                    case SharedStorage.Lookup.Incompatible _ -> incompatible++;
                    case SharedStorage.Lookup.Foreign _ -> foreign++;
                    case SharedStorage.Lookup.Absent _ -> {}
                }
            }
            if (found.isPresent() || ticker.nanos() - start > SEARCH_NANOS) {
                break;
            }
        }
        Saved saved = Saved.UNKNOWN;
        if (save.isPresent()) {
            int tokens = save.get().tokens();
            if (found.filter(entry -> entry.tokens() >= tokens).isPresent()) {
                saved = Saved.YES;
            } else {
                SharedStorage.Lookup lookup = storage.find(save.get().name(), tokens);
                incompatible += lookup instanceof SharedStorage.Lookup.Incompatible ? 1 : 0;
                foreign += lookup instanceof SharedStorage.Lookup.Foreign ? 1 : 0;
                saved = switch (lookup) {
                    case SharedStorage.Lookup.Found _,
                            SharedStorage.Lookup.Incompatible _,
                            SharedStorage.Lookup.Foreign _ -> Saved.YES;
                    case SharedStorage.Lookup.Absent _, SharedStorage.Lookup.Broken _ -> Saved.NO;
                };
            }
        }
        return new Outcome(found, saved, incompatible, foreign, broken);
    }
}
