package baton.connectors.bykey;

import baton.connectors.bykey.ChunkValues.Value;
import baton.connectors.bykey.StoreConnectorMetadata.Load;
import baton.connectors.bykey.StoreConnectorMetadata.Save;
import baton.kv.BlockHash;
import baton.kv.Deadline;
import baton.kv.InvalidFieldException;
import baton.kv.JsonFields;
import baton.kv.KvEvent;
import baton.kv.OwnerThread;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.Counts;
import baton.kv.connector.KvMatch;
import baton.kv.connector.KvRequest;
import baton.kv.connector.Measurement;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.WorkerMetadata;
import baton.kv.connector.WorkerReport;
import baton.store.BlockStore;
import baton.store.StoreEvent;
import baton.store.memory.ReuseFilter;
import baton.store.tiered.Tier;
import baton.store.tiered.TieredStore;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.function.BooleanSupplier;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The scheduler side of a connector over a store of chunks: which are loaded, and which are stored.
 *
 * <p>A request that comes in pins the longest stored prefix behind the blocks that the engine has, and waits until the rest has been read
 * into memory, or its deadline is over. Only values pinned in memory are promised to the engine, so a store that fails causes misses and no
 * failed loads. Pins are given back when the load is over or the request ends. A small load is part of the step that schedules the request.
 *
 * <p>A chunk is stored when the step that computed the last of its tokens is over. A request that ends while chunks of it are being copied
 * into memory keeps its blocks until then.
 *
 * <p>A request with {@code remote_prefiller}, of a router that sends both legs at once, waits as long for chunks that are not stored yet.
 *
 * <p>Where other instances look for chunks, the answer to a request waits until its prompt's are in all stores: an instance that is asked
 * next finds them. It waits up to {@link StorePolicy#acquire}; after that answers wait for no store until one has taken something.
 */
public final class StoreScheduler implements SchedulerConnector {
    private static final String MAX_OFFLOAD_TOKENS = "max_offload_tokens";
    private static final String MAX_LOAD_TOKENS = "max_load_tokens";
    private static final String LOAD_TIERS = "kv_load_tiers";
    private static final String REMOTE_PREFILLER = "remote_prefiller";

    /** How often it looks for chunks that another instance computes. */
    private static final long LOOK_AGAIN_NANOS = 5_000_000;

    private static final Logger log = LoggerFactory.getLogger(StoreScheduler.class);

    private static final String LOOKUP_DELAY = "vllm:kv_offload_lookup_async_delay_seconds";

    private final ConnectorContext context;
    private final StoreSession session;
    private final TieredStore store;
    private final StorePolicy policy;
    private final ReuseFilter filter;
    private final Optional<TenantShares> shares;
    private final int blockSize;
    private final int blocksPerChunk;
    private final ChunkKeys keys;
    private final ChunkValues values;
    /** Chunks of a prefix that is loaded at once. */
    private final int mostChunks;

    private final OwnerThread owner = OwnerThread.firstToCheck();

    private final Map<String, State> requests = new HashMap<>();
    /** Pins of loads under way. */
    private final Map<String, StoredPrefix> loading = new HashMap<>();
    /** For each save, the request, which may have ended, and the keys. */
    private final Map<Long, Save> saves = new HashMap<>();

    private final Set<BlockHash> saving = new HashSet<>();
    /** The save that reads each block, where windows may leave blocks before a save of them is over. */
    private final Map<Integer, Save> read = new HashMap<>();
    /** Requests with saves that read blocks which the next step may write to. */
    private final Set<String> overtaken = new HashSet<>();
    /** The number of unfinished saves of each request. */
    private final Map<String, Integer> savesOf = new HashMap<>();

    private final Set<String> awaitingSaves = new HashSet<>();
    /** Blocks that other tiers had taken when an answer had waited in vain; -1 before that. */
    private long writtenWhenLate = -1;

    private final Counts counts = new Counts();
    private final Set<String> released = new HashSet<>();
    /** Requests with loads that fit into the next step, and the bytes of these loads on a rank. */
    private final Set<String> matchedWithinStep = new HashSet<>();

    private long bytesWithinStep;
    /** Requests with a load in the step that is computed. */
    private final Set<String> loadingWithinStep = new HashSet<>();

    private final List<Load> plannedLoads = new ArrayList<>();
    private final List<Measurement> measurements = new ArrayList<>();
    private long nextSave;
    private boolean closed;

    /** The state of a request. */
    private static final class State {
        final long maxOffload;
        final long maxLoad;
        final boolean fromMemory;
        final boolean fromOthers;
        Optional<StoredPrefix> stored = Optional.empty();
        /** Whether another instance computes the prompt at the same time. */
        boolean prefilledElsewhere;

        boolean waits;
        long waitingSince;
        long lookedAt;
        /** Chunks from the front that are stored, being stored, or not to be stored. */
        int savedChunks;

        State(long maxOffload, long maxLoad, boolean fromMemory, boolean fromOthers) {
            this.maxOffload = maxOffload;
            this.maxLoad = maxLoad;
            this.fromMemory = fromMemory;
            this.fromOthers = fromOthers;
        }
    }

    /** Whether chunks of a request that has ended are on their way to stores, and its answer waits for them. */
    private final class AwaitedWrites implements BooleanSupplier {
        private final String requestId;
        /** Keys of chunks that may be under way; finished ones are removed from the front. */
        private final Deque<BlockHash> left;

        private final Deadline deadline = Deadline.after(context.ticker(), policy.acquire());

        private AwaitedWrites(String requestId, List<BlockHash> keys) {
            this.requestId = requestId;
            this.left = new ArrayDeque<>(keys);
        }

        @Override
        public boolean getAsBoolean() {
            owner.check();
            while (!left.isEmpty() && !saving.contains(left.getFirst()) && !store.isWriting(left.getFirst())) {
                left.removeFirst();
            }
            long written = store.written();
            if (left.isEmpty() || written == writtenWhenLate) {
                return false;
            }
            if (deadline.isOver()) {
                writtenWhenLate = written;
                counts.add("baton:kv_write_timeouts", 1);
                log.warn(
                        "request {}: {} of its chunks are not stored after {} ms; its answer does not wait for them",
                        requestId,
                        left.size(),
                        policy.acquire().toMillis());
            }
            return !deadline.isOver();
        }
    }

    /** Makes a scheduler with keys by block hashes. */
    public StoreScheduler(ConnectorContext context, StoreSession session) {
        this(context, session, ChunkKeys.blockHashes(session.store().format().blocksPerChunk()));
    }

    public StoreScheduler(ConnectorContext context, StoreSession session, ChunkKeys keys) {
        this.context = context;
        this.keys = keys;
        this.session = session;
        this.store = session.store();
        this.policy = session.policy();
        this.filter = new ReuseFilter(policy.storeThreshold(), policy.trackedKeys());
        this.shares = Optional.of(policy.tenantShare())
                .filter(share -> share < 1)
                .map(share -> new TenantShares(share, store.memory().slots()));
        this.blockSize = context.layout().blockSize();
        this.blocksPerChunk = store.format().blocksPerChunk();
        this.values = new ChunkValues(keys, context.groups(), blockSize, blocksPerChunk);
        this.mostChunks = values.mostChunks(store.memory().slots());
        session.sideOpened();
    }

    @Override
    public void onNewRequest(KvRequest request) {
        State state = state(request.kvTransferParams());
        keys.begin(request);
        requests.put(request.id(), state);
    }

    private static State state(Optional<JsonFields> params) {
        if (params.isEmpty()) {
            return new State(Long.MAX_VALUE, Long.MAX_VALUE, true, true);
        }
        JsonFields fields = params.get();
        boolean memory = true;
        boolean others = true;
        Optional<List<JsonFields>> tiers = fields.objects(LOAD_TIERS);
        if (tiers.isPresent()) {
            memory = false;
            others = false;
            for (JsonFields tier : tiers.get()) {
                Optional<String> medium = tier.string("medium");
                memory |= medium.map(KvEvent.MEDIUM_CPU::equalsIgnoreCase).orElse(true);
                others |= medium.map(KvEvent.MEDIUM_STORAGE::equalsIgnoreCase).orElse(true);
            }
        }
        State state = new State(limit(fields, MAX_OFFLOAD_TOKENS), limit(fields, MAX_LOAD_TOKENS), memory, others);
        state.prefilledElsewhere = fields.object(REMOTE_PREFILLER).isPresent();
        return state;
    }

    private static long limit(JsonFields params, String name) {
        return params.integer(name)
                .map(value -> {
                    if (value < 0) {
                        throw new InvalidFieldException(params.field(name), "is " + value + ", must be at least 0");
                    }
                    return value;
                })
                .orElse(Long.MAX_VALUE);
    }

    @Override
    public KvMatch match(KvRequest request, int computedTokens) {
        owner.check();
        State state = requests.get(request.id());
        if (state == null || !state.fromMemory || !keys.loads(request)) {
            return new KvMatch.None();
        }
        int perChunk = blockSize * blocksPerChunk;
        int first = computedTokens / perChunk;
        long most = Math.min(request.length(), computedTokens + Math.min(state.maxLoad, request.length()));
        int chunks = Math.toIntExact(Math.min(most / perChunk, (long) first + mostChunks));
        if (chunks <= first) {
            giveBack(state);
            return new KvMatch.None();
        }
        if (state.stored.filter(prefix -> prefix.first() == first).isEmpty()) {
            giveBack(state);
            if (state.prefilledElsewhere
                    && state.waits
                    && context.ticker().nanos() - state.lookedAt < LOOK_AGAIN_NANOS) {
                return new KvMatch.Pending();
            }
            List<Value> wanted = values.all(request, first, chunks);
            if (awaitsSave(state, ChunkValues.keysOf(values.ofChunks(wanted)))) {
                return new KvMatch.Pending();
            }
            Deadline deadline = Deadline.after(context.ticker(), policy.acquire());
            state.stored = Optional.of(new StoredPrefix(
                    values,
                    first,
                    chunks,
                    request.length(),
                    wanted,
                    new StoredPrefix.Source(store, state.fromOthers, deadline, context.wake())));
        }
        StoredPrefix stored = state.stored.get();
        if (!stored.isReady()) {
            startWaiting(state);
            return new KvMatch.Pending();
        }
        if (state.prefilledElsewhere && stored.end() < chunks) {
            startWaiting(state);
            state.lookedAt = context.ticker().nanos();
            state.prefilledElsewhere = mayWait(state);
            if (state.prefilledElsewhere) {
                giveBack(state);
                return new KvMatch.Pending();
            }
        }
        // A request that is preempted later has tokens that no other instance stores.
        state.prefilledElsewhere = false;
        if (state.waits) {
            state.waits = false;
            measurements.add(Measurement.seconds(LOOKUP_DELAY, (context.ticker().nanos() - state.waitingSince) / 1e9)
                    .of(request.id()));
        }
        int tokens = stored.end() * perChunk - computedTokens;
        return tokens >= keys.leastLoad()
                ? new KvMatch.Tokens(tokens, !fitsIntoStep(request, computedTokens, tokens))
                : new KvMatch.None();
    }

    /** Takes the bytes from the budget of the next step, if it has them. A step computes at least one token of each of its requests. */
    private boolean fitsIntoStep(KvRequest request, int computed, int tokens) {
        matchedWithinStep.remove(request.id());
        long bytes = context.layout().blockBytes() / blockSize * tokens;
        if (computed + tokens >= request.length() || bytesWithinStep + bytes > policy.loadBytesWithinStep()) {
            return false;
        }
        bytesWithinStep += bytes;
        matchedWithinStep.add(request.id());
        return true;
    }

    /** Whether the prefix goes on in a chunk that is just being stored for another request: that is a matter of milliseconds. */
    private boolean awaitsSave(State state, List<BlockHash> wanted) {
        if (saving.isEmpty()) {
            return false;
        }
        int present = store.memory().presentFromFront(wanted);
        if (present == wanted.size() || !saving.contains(wanted.get(present))) {
            return false;
        }
        startWaiting(state);
        return mayWait(state);
    }

    private void startWaiting(State state) {
        if (!state.waits) {
            state.waits = true;
            state.waitingSince = context.ticker().nanos();
        }
    }

    private boolean mayWait(State state) {
        return context.ticker().nanos() - state.waitingSince < policy.acquire().toNanos();
    }

    private static void giveBack(State state) {
        state.stored.ifPresent(StoredPrefix::release);
        state.stored = Optional.empty();
    }

    @Override
    public void onAllocated(KvRequest request, int[] blockTable, int localTokens, int externalTokens) {
        owner.check();
        int firstBlock = localTokens / blockSize;
        overtake(blockTable, firstBlock);
        State state = requests.get(request.id());
        if (state == null || state.stored.isEmpty()) {
            return;
        }
        StoredPrefix stored = state.stored.get();
        if (externalTokens == 0 || !stored.isReady()) {
            giveBack(state);
            return;
        }
        state.stored = Optional.empty();
        int endBlock = Math.ceilDiv(localTokens + externalTokens, blockSize);
        boolean withinStep = matchedWithinStep.contains(request.id());
        plannedLoads.add(stored.load(request.id(), blockTable, firstBlock, endBlock, withinStep));
        if (withinStep) {
            loadingWithinStep.add(request.id());
        }
        loading.put(request.id(), stored);
    }

    /** Blocks from that one on are about to be written: saves that still read them are ended before. */
    private void overtake(int[] blockTable, int firstBlock) {
        if (!read.isEmpty()) {
            context
                    .groups()
                    .blocks(
                            blockTable,
                            firstBlock,
                            blockTable.length / context.groups().size())
                    .stream()
                    .flatMapToInt(Arrays::stream)
                    .mapToObj(read::get)
                    .filter(Objects::nonNull)
                    .map(Save::requestId)
                    .forEach(overtaken::add);
        }
    }

    @Override
    public ConnectorMetadata buildMetadata(ScheduledStep step) {
        owner.check();
        matchedWithinStep.clear();
        bytesWithinStep = 0;
        List<Save> planned = new ArrayList<>();
        for (ScheduledRequest scheduled : step.requests()) {
            overtake(scheduled.blockTable(), scheduled.computedTokens() / blockSize);
        }
        Set<String> flush = new HashSet<>(step.preempted());
        flush.addAll(overtaken);
        overtaken.clear();
        for (ScheduledRequest scheduled : step.requests()) {
            State state = requests.get(scheduled.request().id());
            if (state != null) {
                plan(scheduled, state).ifPresent(planned::add);
            }
        }
        for (String preempted : step.preempted()) {
            State state = requests.get(preempted);
            if (state != null) {
                state.savedChunks = 0;
            }
        }
        if (plannedLoads.isEmpty() && planned.isEmpty() && flush.isEmpty() && released.isEmpty()) {
            return StoreConnectorMetadata.NOTHING;
        }
        StoreConnectorMetadata metadata =
                new StoreConnectorMetadata(plannedLoads, planned, flush, Set.copyOf(released));
        plannedLoads.clear();
        released.clear();
        return metadata;
    }

    private Optional<Save> plan(ScheduledRequest scheduled, State state) {
        KvRequest request = scheduled.request();
        long end = Math.min(scheduled.computedTokens() + scheduled.scheduledTokens(), state.maxOffload);
        if (policy.promptOnly()) {
            end = Math.min(end, request.promptLength());
        }
        int chunks = Math.toIntExact(end / blockSize / blocksPerChunk);
        if (chunks <= state.savedChunks || !keys.stores(request)) {
            return Optional.empty();
        }
        int from = state.savedChunks;
        state.savedChunks = chunks;
        int[] table = scheduled.blockTable();
        List<Value> absent = values.all(request, from, chunks).stream()
                .filter(value -> values.has(value, table))
                .filter(value -> !store.memory().isPresent(value.key()) && !saving.contains(value.key()))
                .toList();
        Set<BlockHash> admitted = absent.isEmpty() ? Set.of() : new HashSet<>(filter.offer(ChunkValues.keysOf(absent)));
        // A key may be there twice.
        List<Value> stored = absent.stream()
                .filter(value -> admitted.contains(value.key()) && saving.add(value.key()))
                .toList();
        if (stored.isEmpty()) {
            return Optional.empty();
        }
        int[] blocks = stored.stream()
                .flatMapToInt(value -> IntStream.range(0, blocksPerChunk).map(i -> values.block(value, i, table)))
                .toArray();
        Save save = new Save(nextSave++, request.id(), ChunkValues.keysOf(stored), blocks);
        if (context.groups().hasWindows()) {
            Arrays.stream(blocks).forEach(block -> read.put(block, save));
        }
        saves.put(save.id(), save);
        savesOf.merge(request.id(), 1, Integer::sum);
        return Optional.of(save);
    }

    @Override
    public void onStepDone(WorkerReport report, Map<Rank, WorkerMetadata> metadata) {
        owner.check();
        report.received().forEach(this::loaded);
        loadingWithinStep.forEach(this::loaded);
        loadingWithinStep.clear();
        if (metadata.get(Rank.FIRST) instanceof SavesDone(List<Long> done)) {
            for (long id : done) {
                saved(saves.remove(id));
            }
        }
    }

    private void loaded(String requestId) {
        Optional.ofNullable(loading.remove(requestId)).ifPresent(StoredPrefix::release);
    }

    private void saved(@Nullable Save save) {
        if (save == null) {
            return;
        }
        save.keys().forEach(saving::remove);
        Arrays.stream(save.blocks()).forEach(block -> read.remove(block, save));
        int left = savesOf.merge(save.requestId(), -1, Integer::sum);
        if (left == 0) {
            savesOf.remove(save.requestId());
            if (awaitingSaves.remove(save.requestId())) {
                released.add(save.requestId());
                keys.saved(save.requestId());
            }
        }
    }

    @Override
    public Release onFinished(KvRequest request, RequestEnd end, int[] blockTable) {
        owner.check();
        State state = requests.remove(request.id());
        BooleanSupplier answerIsHeld = Release.ANSWER_AT_ONCE;
        if (state != null) {
            giveBack(state);
            shares.ifPresent(each -> store.memory()
                    .drop(each.used(request.tenant(), ChunkValues.keysOf(values.all(request, 0, state.savedChunks)))));
            int chunks = Math.min(state.savedChunks, request.promptLength() / blockSize / blocksPerChunk);
            if (policy.answersWait() && chunks > 0 && (end == RequestEnd.STOPPED || end == RequestEnd.LENGTH)) {
                answerIsHeld = new AwaitedWrites(request.id(), ChunkValues.keysOf(values.all(request, 0, chunks)));
            }
        }
        Optional<JsonFields> params = keys.forget(request, end);
        boolean isSaving = savesOf.containsKey(request.id());
        if (isSaving) {
            awaitingSaves.add(request.id());
        } else {
            keys.saved(request.id());
        }
        return new Release(isSaving, params, Optional.empty(), answerIsHeld);
    }

    @Override
    public boolean hasPendingWork() {
        return !released.isEmpty() || !loading.isEmpty() || isStoring();
    }

    @Override
    public boolean isStoring() {
        return !saves.isEmpty() || store.isWriting();
    }

    /** Drops the values in memory. Other tiers keep their values. */
    @Override
    public boolean resetCache() {
        return store.reset();
    }

    @Override
    public List<Measurement> takeMeasurements() {
        List<Measurement> all = new ArrayList<>(measurements);
        measurements.clear();
        counts.add("vllm:kv_offload_stores_skipped", filter.takeSkipped());
        all.addAll(counts.take());
        all.addAll(session.takeMeasurements());
        return all;
    }

    @Override
    public List<KvEvent> takeEvents() {
        List<KvEvent> events = new ArrayList<>();
        add(events, store, KvEvent.MEDIUM_CPU);
        for (Tier tier : store.tiers()) {
            if (tier.tellsEvents()) {
                add(events, tier.store(), KvEvent.MEDIUM_STORAGE);
            } else {
                tier.store().takeEvents();
            }
        }
        return events;
    }

    private void add(List<KvEvent> events, BlockStore from, String medium) {
        for (StoreEvent event : from.takeEvents()) {
            events.add(
                    event.stored()
                            ? new KvEvent.BlockStored(
                                    event.keys(),
                                    Optional.empty(),
                                    List.of(),
                                    0,
                                    Optional.empty(),
                                    Optional.of(medium),
                                    KvEvent.Details.OF_ONLY_GROUP)
                            : new KvEvent.BlockRemoved(event.keys(), Optional.of(medium), KvEvent.Place.ONLY_GROUP));
        }
    }

    @Override
    public void close() {
        if (!closed) {
            closed = true;
            requests.values().forEach(StoreScheduler::giveBack);
            loading.values().forEach(StoredPrefix::release);
            session.sideClosed();
        }
    }
}
