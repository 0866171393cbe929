package baton.connectors.sharedstorage;

import baton.kv.connector.ConnectorContext;
import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.HandshakeMetadata;
import baton.kv.connector.KvMatch;
import baton.kv.connector.KvRequest;
import baton.kv.connector.Measurement;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.WorkerReport;
import baton.store.prompt.FileOperations;
import baton.store.prompt.SharedStorage;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Decides what to load and what to save.
 *
 * <p>A prompt is saved in the step at whose end the KV of all its full blocks is in the pool, wherever it came from: this
 * step, earlier chunks, the prefix cache, or in part from here. It is not saved if all of it came from here, or if its entry is
 * there already.
 *
 * <p>A request whose load failed never loads again, so that recomputing it ends; its entry is left alone for a while.
 */
final class SharedStorageScheduler implements SchedulerConnector {
    private static final Logger log = LoggerFactory.getLogger(SharedStorageScheduler.class);

    private static final String FOREIGN = "baton:kv_foreign_entries";

    /** Looking for shorter and shorter prefixes may not hold up the scheduler on a slow file system. */
    private static final long SEARCH_NANOS = Duration.ofMillis(100).toNanos();

    private final ConnectorContext context;
    private final SharedStorageConnector.Settings settings;
    private final int blockSize;
    private final Map<String, RequestState> requests = new HashMap<>();
    private Optional<SharedStorage> storage = Optional.empty();
    private SharedStorageConnectorMetadata lastPlan = new SharedStorageConnectorMetadata(List.of(), List.of());
    private int incompatible;
    private int foreignRefused;
    private int foreignTaken;
    private int broken;

    SharedStorageScheduler(ConnectorContext context, SharedStorageConnector.Settings settings) {
        this.context = context;
        this.settings = settings;
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
                FileOperations.SYSTEM));
    }

    @Override
    public KvMatch match(KvRequest request, int computedTokens) {
        if (!context.config().isConsumer()) {
            return new KvMatch.None();
        }
        RequestState state = state(request);
        int aligned = EntryNames.aligned(request.promptLength(), blockSize);
        if (state.loadFailed || aligned <= computedTokens) {
            return new KvMatch.None();
        }
        if (state.answer.isEmpty() || state.answer.get().computedTokens != computedTokens) {
            state.answer = Optional.of(new Answer(computedTokens, search(request, computedTokens, aligned)));
        }
        return state.answer
                .flatMap(Answer::entry)
                .<KvMatch>map(entry -> new KvMatch.Tokens(entry.tokens() - computedTokens, false))
                .orElseGet(KvMatch.None::new);
    }

    @Override
    public void onAllocated(KvRequest request, int[] blockTable, int computedTokens, int externalTokens) {
        RequestState state = state(request);
        if (externalTokens > 0) {
            SharedStorage.Entry entry = state.answer
                    .flatMap(Answer::entry)
                    .filter(found -> computedTokens + externalTokens <= found.tokens())
                    .orElseThrow(() -> new IllegalStateException(
                            "request %s: externalTokens=%d after computedTokens=%d were never matched"
                                    .formatted(request.id(), externalTokens, computedTokens)));
            int end = computedTokens + externalTokens;
            int[] blocks = Arrays.copyOfRange(blockTable, computedTokens / blockSize, Math.ceilDiv(end, blockSize));
            foreignTaken += entry.proven() ? 0 : 1;
            state.load =
                    Optional.of(new SharedStorageConnectorMetadata.Load(request.id(), entry, computedTokens, blocks));
            state.loadedTokens = end;
        }
        state.answer = Optional.empty();
    }

    @Override
    public ConnectorMetadata buildMetadata(ScheduledStep step) {
        for (String preempted : step.preempted()) {
            RequestState state = requests.get(preempted);
            if (state != null) {
                state.answer = Optional.empty();
                state.load = Optional.empty();
                state.loadedTokens = 0;
            }
        }
        List<SharedStorageConnectorMetadata.Load> loads = new ArrayList<>();
        List<SharedStorageConnectorMetadata.Save> saves = new ArrayList<>();
        Set<String> names = new HashSet<>();
        for (ScheduledRequest scheduled : step.requests()) {
            RequestState state = state(scheduled.request());
            state.load.ifPresent(loads::add);
            state.load = Optional.empty();
            if (context.config().isProducer()) {
                save(scheduled, state).filter(save -> names.add(save.name())).ifPresent(saves::add);
            }
        }
        lastPlan = new SharedStorageConnectorMetadata(loads, saves);
        return lastPlan;
    }

    @Override
    public void onStepDone(WorkerReport report) {
        Set<Integer> invalid = report.invalidBlocks();
        if (invalid.isEmpty()) {
            return;
        }
        for (SharedStorageConnectorMetadata.Load load : lastPlan.loads()) {
            RequestState state = requests.get(load.requestId());
            if (!Collections.disjoint(invalid, load.blockSet())) {
                storage().distrust(load.entry());
                if (state != null) {
                    state.loadFailed = true;
                    state.loadedTokens = 0;
                    state.saveDecided = false;
                }
            }
        }
        for (SharedStorageConnectorMetadata.Save save : lastPlan.saves()) {
            RequestState state = requests.get(save.requestId());
            if (state != null && !Collections.disjoint(invalid, save.blockSet())) {
                state.saveDecided = false;
            }
        }
    }

    @Override
    public Release onFinished(KvRequest request, RequestEnd end, int[] blockTable) {
        requests.remove(request.id());
        return Release.NOW;
    }

    @Override
    public List<Measurement> takeMeasurements() {
        List<Measurement> taken = new ArrayList<>();
        if (incompatible > 0) {
            taken.add(Measurement.count("baton:kv_incompatible_entries", incompatible));
        }
        if (broken > 0) {
            taken.add(Measurement.count("baton:kv_broken_entries", broken));
        }
        if (foreignRefused > 0) {
            taken.add(Measurement.count(FOREIGN, foreignRefused, "outcome", "refused"));
        }
        if (foreignTaken > 0) {
            taken.add(Measurement.count(FOREIGN, foreignTaken, "outcome", "taken"));
        }
        incompatible = 0;
        broken = 0;
        foreignRefused = 0;
        foreignTaken = 0;
        return taken;
    }

    @Override
    public void close() {
        requests.clear();
    }

    private Optional<SharedStorage.Entry> search(KvRequest request, int computedTokens, int aligned) {
        long start = context.ticker().nanos();
        for (EntryNames.Candidate candidate : EntryNames.candidates(request, computedTokens, aligned, blockSize)) {
            if (storage().exists(candidate.name())) {
                switch (find(candidate.name(), candidate.tokens())) {
                    case SharedStorage.Lookup.Found(SharedStorage.Entry entry) -> {
                        return Optional.of(entry);
                    }
                    case SharedStorage.Lookup.Broken(String reason) -> {
                        broken++;
                        log.warn("request {}: KV cache entry {} is broken: {}", request.id(), candidate.name(), reason);
                    }
                    case SharedStorage.Lookup.Absent _,
                            SharedStorage.Lookup.Incompatible _,
                            SharedStorage.Lookup.Foreign _ -> {}
                }
            }
            if (context.ticker().nanos() - start > SEARCH_NANOS) {
                break;
            }
        }
        return Optional.empty();
    }

    private Optional<SharedStorageConnectorMetadata.Save> save(ScheduledRequest scheduled, RequestState state) {
        KvRequest request = scheduled.request();
        int aligned = EntryNames.aligned(request.promptLength(), settings.storedBlockSize());
        if (aligned == 0 || state.saveDecided || scheduled.computedTokens() + scheduled.scheduledTokens() < aligned) {
            return Optional.empty();
        }
        state.saveDecided = true;
        if (state.loadedTokens >= aligned) {
            return Optional.empty();
        }
        String name = EntryNames.of(request, aligned);
        return switch (find(name, aligned)) {
            case SharedStorage.Lookup.Found _, SharedStorage.Lookup.Incompatible _, SharedStorage.Lookup.Foreign _ ->
                Optional.empty();
            case SharedStorage.Lookup.Absent _, SharedStorage.Lookup.Broken _ ->
                Optional.of(new SharedStorageConnectorMetadata.Save(
                        request.id(), name, aligned, Arrays.copyOf(scheduled.blockTable(), aligned / blockSize)));
        };
    }

    private SharedStorage.Lookup find(String name, int tokens) {
        SharedStorage.Lookup lookup = storage().find(name, tokens);
        switch (lookup) {
            case SharedStorage.Lookup.Incompatible _ -> incompatible++;
            case SharedStorage.Lookup.Foreign _ -> foreignRefused++;
            case SharedStorage.Lookup.Found _, SharedStorage.Lookup.Broken _, SharedStorage.Lookup.Absent _ -> {}
        }
        return lookup;
    }

    private SharedStorage storage() {
        return storage.orElseThrow(
                () -> new IllegalStateException("onHandshakeMetadata must come before the first request"));
    }

    private RequestState state(KvRequest request) {
        return requests.computeIfAbsent(request.id(), _ -> new RequestState());
    }

    private static final class RequestState {
        /** The last answer to {@code match}, until the request is allocated. */
        Optional<Answer> answer = Optional.empty();

        /** To be handed to the worker in the next step. */
        Optional<SharedStorageConnectorMetadata.Load> load = Optional.empty();

        /** The prompt's tokens up to here were loaded or computed before the load. */
        int loadedTokens;

        boolean loadFailed;
        boolean saveDecided;
    }

    private record Answer(int computedTokens, Optional<SharedStorage.Entry> entry) {}
}
