package baton.connectors.sharedstorage;

import baton.connectors.sharedstorage.EntryLookups.Lookup;
import baton.connectors.sharedstorage.EntryLookups.State;
import baton.connectors.sharedstorage.SharedStorageConnectorMetadata.Load;
import baton.connectors.sharedstorage.SharedStorageConnectorMetadata.Save;
import baton.connectors.sharedstorage.StorageSearch.Outcome;
import baton.connectors.sharedstorage.StorageSearch.Saved;
import baton.kv.Deadline;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.Counts;
import baton.kv.connector.HandshakeMetadata;
import baton.kv.connector.KvMatch;
import baton.kv.connector.KvRequest;
import baton.kv.connector.Measurement;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.WorkerReport;
import baton.store.FileOperations;
import baton.store.IoThreads;
import baton.store.prompt.SharedStorage;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;

/**
 * Decides which prompts to load and to save.
 *
 * <p>A prompt is saved in the step at the end of which the KV of all its full blocks is in the pool: computed in this step or in
 * earlier ones, from the prefix cache, or in part from this storage. It is not saved if all of it came from this storage, or if its
 * entry exists.
 *
 * <p>A request waits for its load, which takes place between steps. A request that had a load fail does not load again, so that recomputing
 * it ends; the entry is not used for a while.
 *
 * <p>The scheduler's thread uses no file. Whether there is an entry to load, and whether the one to be saved exists, is looked up beside
 * it before the request is scheduled; the request waits for that, at most {@link EntryLookups#TIMEOUT}. The result is kept until the
 * request is scheduled, so {@link #match} gives the same answer until then. Without a result nothing is loaded or saved.
 */
final class SharedStorageScheduler implements SchedulerConnector {
    private static final String FOREIGN = "baton:kv_foreign_entries";

    private final ConnectorContext context;
    private final SharedStorageSettings settings;
    private final FileOperations files;
    private final EntryLookups lookups;
    private final int blockSize;
    private final Map<String, RequestState> requests = new HashMap<>();
    private Optional<SharedStorage> storage = Optional.empty();
    private final List<Load> plannedLoads = new ArrayList<>();
    /** The unfinished loads by request, which may have ended. */
    private final Map<String, Load> loading = new HashMap<>();

    private final Counts counts = new Counts();

    SharedStorageScheduler(
            ConnectorContext context, SharedStorageSettings settings, IoThreads threads, FileOperations files) {
        this.context = context;
        this.settings = settings;
        this.files = files;
        this.lookups = new EntryLookups(threads, context.ticker(), context.wake());
        this.blockSize = context.layout().blockSize();
    }

    @Override
    public void onHandshakeMetadata(Map<Rank, HandshakeMetadata> metadata) {
        List<String> names = new ArrayList<>();
        for (int stage = 0; stage < context.pipelineParallelSize(); stage++) {
            if (!(metadata.get(new Rank(stage, 0)) instanceof SharedStorageConnector.LayerNames layers)) {
                throw new IllegalStateException("a worker's handshake metadata is missing: " + metadata);
            }
            names.addAll(layers.names());
        }
        storage = Optional.of(new SharedStorage(
                settings.root(),
                SharedStorageConnector.format(context, names),
                settings.layouts(),
                context.ticker(),
                files));
    }

    @Override
    public KvMatch match(KvRequest request, int computedTokens) {
        RequestState state = state(request);
        if (state.query.isEmpty() || state.query.get().computedTokens != computedTokens) {
            state.query.ifPresent(old -> supersede(state, old));
            state.query = startQuery(request, state, computedTokens);
        }
        return state.query.isEmpty() ? new KvMatch.None() : answer(state, state.query.get());
    }

    /** Ends a look-up for other computed tokens. A storage that has answered it in time has the full time for the next one. */
    private void supersede(RequestState state, Query old) {
        if (lookups.state(old.lookup) instanceof State.Done<Outcome>(Outcome outcome)) {
            count(state, old, outcome);
            state.deadline = Optional.empty();
        } else {
            lookups.cancel(old.lookup);
        }
    }

    /** Counts, once, a look-up's findings beside an entry to load. */
    private void count(RequestState state, Query query, Outcome outcome) {
        if (!query.counted) {
            query.counted = true;
            counts.add("baton:kv_incompatible_entries", outcome.incompatible());
            counts.add(FOREIGN, outcome.foreign(), "outcome", "refused");
            counts.add("baton:kv_broken_entries", outcome.broken());
            if (query.saves) {
                state.saved = outcome.saved();
            }
        }
    }

    /** Starts to look up the entries that the request may load and save; empty if there are none, or they are known. */
    private Optional<Query> startQuery(KvRequest request, RequestState state, int computedTokens) {
        int aligned = EntryNames.aligned(request.promptLength(), blockSize);
        boolean loads = context.config().isConsumer() && !state.loadFailed && aligned > computedTokens;
        int saved = EntryNames.aligned(request.promptLength(), settings.storedBlockSize());
        boolean saves = context.config().isProducer() && state.saved == Saved.UNKNOWN && saved > 0;
        if (!loads && !saves) {
            return Optional.empty();
        }
        // The request's tokens may be read by this thread only.
        StorageSearch search = new StorageSearch(
                storage(),
                request.id(),
                loads ? EntryNames.candidates(request, computedTokens, aligned, blockSize) : List.of(),
                saves ? Optional.of(new EntryNames.Candidate(EntryNames.of(request, saved), saved)) : Optional.empty());
        Deadline deadline = state.deadline.orElseGet(lookups::deadline);
        state.deadline = Optional.of(deadline);
        return Optional.of(new Query(
                computedTokens, saves, lookups.start(request.id(), deadline, () -> search.run(context.ticker()))));
    }

    private KvMatch answer(RequestState state, Query query) {
        switch (lookups.state(query.lookup)) {
            case State.Pending<Outcome> _ -> {
                return new KvMatch.Pending();
            }
            case State.Missed<Outcome> _ -> {
                if (query.saves) {
                    state.saved = Saved.NOT_IN_TIME;
                }
                return new KvMatch.None();
            }
            case State.Done<Outcome>(Outcome outcome) -> {
                count(state, query, outcome);
                return outcome.entry()
                        .<KvMatch>map(entry -> new KvMatch.Tokens(entry.tokens() - query.computedTokens, true))
                        .orElseGet(KvMatch.None::new);
            }
        }
    }

    @Override
    public void onAllocated(KvRequest request, int[] blockTable, int computedTokens, int externalTokens) {
        RequestState state = state(request);
        if (externalTokens > 0) {
            SharedStorage.Entry entry = state.query
                    .flatMap(query -> found(query.lookup))
                    .filter(found -> computedTokens + externalTokens <= found.tokens())
                    .orElseThrow(() -> new IllegalStateException(
                            "request %s: externalTokens=%d after computedTokens=%d were never matched"
                                    .formatted(request.id(), externalTokens, computedTokens)));
            int end = computedTokens + externalTokens;
            int[] blocks = Arrays.copyOfRange(blockTable, computedTokens / blockSize, Math.ceilDiv(end, blockSize));
            counts.add(FOREIGN, entry.proven() ? 0 : 1, "outcome", "taken");
            Load load = new Load(request.id(), entry, computedTokens, blocks);
            plannedLoads.add(load);
            loading.put(request.id(), load);
            state.loadedTokens = end;
        }
        forgetQuery(state);
    }

    private Optional<SharedStorage.Entry> found(Lookup<Outcome> lookup) {
        return lookups.state(lookup) instanceof State.Done<Outcome>(Outcome outcome)
                ? outcome.entry()
                : Optional.empty();
    }

    private void forgetQuery(RequestState state) {
        state.query.ifPresent(query -> lookups.cancel(query.lookup));
        state.query = Optional.empty();
        state.deadline = Optional.empty();
    }

    @Override
    public ConnectorMetadata buildMetadata(ScheduledStep step) {
        for (String preempted : step.preempted()) {
            RequestState state = requests.get(preempted);
            if (state != null) {
                forgetQuery(state);
                state.loadedTokens = 0;
            }
        }
        List<Save> saves = new ArrayList<>();
        Set<String> names = new HashSet<>();
        for (ScheduledRequest scheduled : step.requests()) {
            RequestState state = state(scheduled.request());
            if (context.config().isProducer()) {
                save(scheduled, state).filter(save -> names.add(save.name())).ifPresent(saves::add);
            }
        }
        SharedStorageConnectorMetadata plan = new SharedStorageConnectorMetadata(plannedLoads, saves);
        plannedLoads.clear();
        return plan;
    }

    @Override
    public void onStepDone(WorkerReport report) {
        Set<Integer> invalid = report.invalidBlocks();
        if (!invalid.isEmpty()) {
            loading.values().stream()
                    .filter(load -> !Collections.disjoint(invalid, load.blockSet()))
                    .forEach(this::failed);
        }
        report.received().forEach(loading::remove);
    }

    private void failed(Load load) {
        storage().distrust(load.entry());
        RequestState state = requests.get(load.requestId());
        if (state != null) {
            state.loadFailed = true;
            state.loadedTokens = 0;
            state.saveDecided = false;
            state.saved = Saved.NO;
        }
    }

    @Override
    public Release onFinished(KvRequest request, RequestEnd end, int[] blockTable) {
        RequestState state = requests.remove(request.id());
        if (state != null) {
            forgetQuery(state);
        }
        return Release.NOW;
    }

    @Override
    public boolean hasPendingWork() {
        return !plannedLoads.isEmpty() || !loading.isEmpty();
    }

    @Override
    public List<Measurement> takeMeasurements() {
        counts.add("baton:kv_lookup_timeouts", lookups.takeTimeouts());
        return counts.take();
    }

    @Override
    public void close() {
        requests.values().forEach(this::forgetQuery);
        requests.clear();
    }

    private Optional<Save> save(ScheduledRequest scheduled, RequestState state) {
        KvRequest request = scheduled.request();
        int aligned = EntryNames.aligned(request.promptLength(), settings.storedBlockSize());
        if (aligned == 0 || state.saveDecided || scheduled.computedTokens() + scheduled.scheduledTokens() < aligned) {
            return Optional.empty();
        }
        state.saveDecided = true;
        if (state.loadedTokens >= aligned || state.saved == Saved.YES) {
            return Optional.empty();
        }
        if (state.saved == Saved.NOT_IN_TIME || lookups.isStuck()) {
            counts.add("baton:kv_save_failures", 1, "cause", "timeout");
            return Optional.empty();
        }
        // If it is not known whether the entry exists, it is written, and discarded if it does.
        return Optional.of(new Save(
                request.id(),
                EntryNames.of(request, aligned),
                aligned,
                Arrays.copyOf(scheduled.blockTable(), aligned / blockSize)));
    }

    private SharedStorage storage() {
        return storage.orElseThrow(
                () -> new IllegalStateException("onHandshakeMetadata must come before the first request"));
    }

    private RequestState state(KvRequest request) {
        return requests.computeIfAbsent(request.id(), _ -> new RequestState());
    }

    private static final class RequestState {
        /** The result of {@code match}, until the request is allocated. */
        Optional<Query> query = Optional.empty();

        /** The deadline of queries; from the first one until the request is allocated. */
        Optional<Deadline> deadline = Optional.empty();

        /** The prompt's tokens up to here were loaded or computed before the load. */
        int loadedTokens;

        boolean loadFailed;
        boolean saveDecided;

        /** Whether the entry that the request would be saved as exists. Unknown also if the engine never asks for a match. */
        Saved saved = Saved.UNKNOWN;
    }

    /** A look-up for a request that has this many tokens in the pool. */
    private static final class Query {
        final int computedTokens;
        /** Whether it finds out as well if the request's entry exists. */
        final boolean saves;

        final Lookup<Outcome> lookup;
        boolean counted;

        Query(int computedTokens, boolean saves, Lookup<Outcome> lookup) {
            this.computedTokens = computedTokens;
            this.saves = saves;
            this.lookup = lookup;
        }
    }
}
