package baton.connectors.nixl;

import baton.connectors.ConnectorRuntime;
import baton.connectors.ReachedPeers;
import baton.connectors.nixl.NixlConnectorMetadata.Lease;
import baton.connectors.nixl.NixlConnectorMetadata.Opened;
import baton.connectors.onesided.Incarnation;
import baton.connectors.onesided.LoadRequest;
import baton.connectors.onesided.LoadRequest.Refusal;
import baton.connectors.onesided.PromptProgress;
import baton.connectors.onesided.RankInfo;
import baton.connectors.onesided.Rejection;
import baton.connectors.onesided.RemoteBlocks;
import baton.connectors.onesided.SignedProof;
import baton.connectors.onesided.SuspectPeers;
import baton.connectors.onesided.TransferMode;
import baton.connectors.onesided.TransferPlan;
import baton.connectors.onesided.TransferStats;
import baton.kv.ConfigException;
import baton.kv.InvalidFieldException;
import baton.kv.JsonFields;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.HandshakeMetadata;
import baton.kv.connector.KvMatch;
import baton.kv.connector.KvRequest;
import baton.kv.connector.Measurement;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.WorkerReport;
import baton.messages.MessageException;
import baton.messages.PeerAddress;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalDouble;
import java.util.OptionalLong;
import java.util.Set;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/*
 * Reader (decode)
 *
 *   A request's reference is read once, when the request comes. If it names no blocks, the prefill request came at the same time, and
 *   the load registers a push with the prefill instance. While the request waits and while it loads, the owner of the blocks gets
 *   heartbeats. A reference is used by one load, or given back unused: when the whole prompt is here anyway, or when the request ends
 *   before it had blocks, or was refused. After a failed load a request never loads again.
 *
 * Owner (prefill)
 *
 *   Every block has a generation, which goes up before another request, or the same after a preemption, writes to it. The blocks
 *   of a request that a peer will read get their checksums as they fill up, so that with the prompt's last token all of them have
 *   checksums. The answer names blocks and generations. Afterwards the blocks are leased until the worker reports that they are free.
 */

/** Decides which blocks are loaded from which peer, and keeps the generations of this instance's blocks. */
final class NixlScheduler implements SchedulerConnector {
    private static final Logger log = LoggerFactory.getLogger(NixlScheduler.class);

    private static final int INDEX_BITS = 24;

    private final ConnectorContext context;
    private final NixlSettings settings;
    private final ConnectorRuntime runtime;
    private final TransferMode mode;
    private final int blockSize;
    private final GroupTables tables;
    private final Incarnation incarnation;
    /** Higher in each run on this host: vLLM's readers then forget an earlier run with the same {@code engine_id}. */
    private final long registrations;

    private Optional<HandshakeServer> server = Optional.empty();

    /** Live requests. */
    private final Map<String, Tracked> requests = new LinkedHashMap<>();
    /** For each block, its generation, and the serial of the request that wrote it with the block's index in the request. */
    private long[] generations = {};

    private long[] writers = {};
    private final BitSet checksummed = new BitSet();
    private long serials;

    /** Blocks that requests got since the last step: the next step writes to them. */
    private final List<Allocation> allocations = new ArrayList<>();

    private final List<LoadRequest> loads = new ArrayList<>();
    private final ReachedPeers<PeerAddress> reached = new ReachedPeers<>();
    private final SuspectPeers suspects = new SuspectPeers();
    private final List<RemoteBlocks> unused = new ArrayList<>();
    private final Set<String> cancelled = new LinkedHashSet<>();
    private final List<Lease> leases = new ArrayList<>();
    private final Set<String> abandoned = new LinkedHashSet<>();
    private final List<PromptProgress> progress = new ArrayList<>();
    private long lastHeartbeat;
    private long lastComputed;
    private boolean workersBusy = true;
    private final Map<Rejection, Integer> rejected = new HashMap<>();
    private final List<Measurement> phases = new ArrayList<>();
    private long lastStepDone;

    /** @param first index of the first of the blocks that it got */
    private record Allocation(Tracked request, int[] blockTable, int first) {}

    /** @param mode which side moves blocks that a reference names */
    NixlScheduler(ConnectorContext context, NixlSettings settings, ConnectorRuntime runtime, TransferMode mode) {
        this.context = context;
        this.mode = mode;
        this.settings = settings;
        this.runtime = runtime;
        this.blockSize = context.layout().blockSize();
        this.tables = new GroupTables(context.groups(), blockSize);
        this.incarnation =
                Incarnation.begin(context.config().engineId(), settings.access().secret());
        this.registrations = Math.max(1, context.ticker().nanos() / 1_000_000_000);
        this.lastHeartbeat = context.ticker().nanos();
        this.lastComputed = lastHeartbeat;
    }

    @Override
    public void onHandshakeMetadata(Map<Rank, HandshakeMetadata> metadata) {
        Map<Rank, RankInfo> ranks = new HashMap<>();
        metadata.forEach((rank, own) -> {
            if (own instanceof RankInfo info) {
                ranks.put(rank, info.withIncarnation(Optional.of(incarnation)));
            }
        });
        RankInfo first = Optional.ofNullable(ranks.get(Rank.FIRST))
                .orElseThrow(() -> new IllegalStateException("no handshake metadata of the first rank: " + metadata));
        generations = new long[first.blocks()];
        writers = new long[first.blocks()];
        try {
            HandshakeServer listening = HandshakeServer.listen(
                    runtime, settings, context.ticker(), ranks, VllmMirror.of(context, settings, runtime, first));
            server = Optional.of(listening);
            listening.warmUp(runtime, settings, settings.vllmRank(context));
        } catch (MessageException e) {
            throw new ConfigException(
                    "side_channel_port",
                    "the side channel cannot listen on " + settings.host() + ":" + settings.port()
                            + "; another side_channel_port or VLLM_NIXL_SIDE_CHANNEL_PORT, or 0 for a free one, may do: "
                            + e.getMessage(),
                    e);
        }
    }

    @Override
    public Optional<JsonFields> advertisedKvTransferParams() {
        return context.config().isProducer()
                ? Optional.of(RemoteBlocks.ahead(
                        context.config().engineId(),
                        settings.host(),
                        port(),
                        context.tensorParallelSize(),
                        context.pipelineParallelSize()))
                : Optional.empty();
    }

    @Override
    public void onNewRequest(KvRequest request) {
        Tracked tracked = new Tracked();
        tracked.since = context.ticker().nanos();
        requests.put(request.id(), tracked);
        request.kvTransferParams().ifPresent(params -> {
            try {
                boolean decodesElsewhere = params.bool("do_remote_decode").orElse(false);
                boolean prefilledElsewhere = params.bool("do_remote_prefill").orElse(false);
                boolean earlierTurn = settings.bidirectional()
                        && decodesElsewhere
                        && params.value("remote_block_ids").isPresent();
                tracked.isForPeer = decodesElsewhere;
                if (decodesElsewhere) {
                    progress.add(tables.progress(request, new int[0], 0, 0, tracked.promptDigest(request)));
                }
                tracked.readerVersion = params.string("remote_vllm_version");
                tracked.nextTurn = settings.bidirectional() && prefilledElsewhere;
                if (prefilledElsewhere || earlierTurn) {
                    // Only leases of earlier turns are stamped by vLLM. A prefill request's is extended by heartbeats.
                    tracked.expiry = prefilledElsewhere
                            ? OptionalDouble.empty()
                            : params.number(RemoteBlocks.EXPIRY)
                                    .map(OptionalDouble::of)
                                    .orElseGet(OptionalDouble::empty);
                    tracked.leastTokens = prefilledElsewhere ? 1 : settings.recomputeThreshold() + 1;
                    // The blocks of an earlier turn are complete; no prefill request will push them.
                    accept(
                            request,
                            tracked,
                            RemoteBlocks.read(params, prefilledElsewhere ? mode : TransferMode.PULL, request.id()),
                            prefilledElsewhere);
                }
            } catch (InvalidFieldException e) {
                log.warn(
                        "Got invalid KVTransferParams: {} This request will not utilize KVTransfer: request {}, {}",
                        e.getMessage(),
                        request.id(),
                        brief(params));
            }
        });
    }

    @Override
    public void onRefused(String requestId, JsonFields params) {
        try {
            if (params.bool("do_remote_decode").orElse(false)) {
                abandoned.add(requestId);
            }
            if (params.bool("do_remote_prefill").orElse(false)) {
                RemoteBlocks source = RemoteBlocks.read(params, mode, requestId);
                // Blocks that are pushed for another sample are not unused.
                if (isAllowed(source)
                        && knowsTheSecret(source)
                        && (source.mode() == TransferMode.PULL || !isAwaited(source))) {
                    unused.add(source);
                }
            }
        } catch (InvalidFieldException e) {
            log.warn(
                    "request {} is refused, and its reference names no owner that could release the blocks: {}",
                    requestId,
                    e.getMessage());
        }
    }

    /**
     * Takes a reference, or not if it leads to a host that is not connected to. A load from one that is wrong by itself fails; the worker checks the rest
     * with the owner.
     *
     * @param isWhole the blocks are of the whole prompt, and not of its beginning
     */
    private void accept(KvRequest request, Tracked tracked, RemoteBlocks source, boolean isWhole) {
        if (!isAllowed(source)) {
            rejected.merge(Rejection.NOT_ALLOWED, 1, Integer::sum);
            settings.access()
                    .refuse(
                            source.host() + ":" + source.port(),
                            "request " + request.id()
                                    + " names it, and it is not an allowed peer; the prompt is computed here. allowed_peers are "
                                    + settings.access().allowed());
            return;
        }
        if (!knowsTheSecret(source)) {
            rejected.merge(Rejection.FORGED, 1, Integer::sum);
            log.warn(
                    "request {}: the reference to the blocks of request {} of engine {} has no signature, and peers have a secret here;"
                            + " the prompt is computed here",
                    request.id(),
                    source.requestId(),
                    source.engineId());
            return;
        }
        tracked.refused = refusal(request, source, isWhole);
        if (tracked.refused.isEmpty() && source.mode() == TransferMode.PUSH && isAwaited(source)) {
            log.info(
                    "request {}: another one has the blocks of request {} of engine {} written; the prompt is computed here",
                    request.id(),
                    source.requestId(),
                    source.engineId());
        } else {
            tracked.source = Optional.of(source);
        }
    }

    /** References come from clients: a host that is not an allowed peer is not connected to for any purpose. */
    private boolean isAllowed(RemoteBlocks source) {
        return settings.access().mayConnect(source.host());
    }

    /**
     * False if the owner is no instance that knows the secret. It is not connected to for any purpose: the messages that show the secret
     * end vLLM's side channel for good.
     */
    private boolean knowsTheSecret(RemoteBlocks source) {
        return settings.access().secret().isEmpty() || source.proof().isPresent() || source.mode() == TransferMode.PUSH;
    }

    /** Whether another sample of the request has its blocks pushed: the owner pushes them once for each instance. */
    private boolean isAwaited(RemoteBlocks pushed) {
        return requests.values().stream()
                .flatMap(other -> other.source.stream())
                .anyMatch(other -> other.mode() == TransferMode.PUSH
                        && other.requestId().equals(pushed.requestId())
                        && other.engineId().equals(pushed.engineId()));
    }

    /** @param isWhole the blocks are of the whole prompt, and not of its beginning */
    private Optional<Refusal> refusal(KvRequest request, RemoteBlocks source, boolean isWhole) {
        int length = request.promptLength();
        if (new HashSet<>(Arrays.stream(source.blocks()).boxed().toList()).size() < source.blocks().length) {
            return Optional.of(new Refusal(Rejection.INVALID, "a block is named twice"));
        }
        if (source.saysItsTokens()
                && (source.tokens() > length || (isWhole && source.proof().isEmpty() && source.tokens() < length))) {
            return Optional.of(new Refusal(
                    Rejection.MISMATCH,
                    "remote_num_tokens is %d, and the prompt has %d tokens here: the two instances do not have the same prompt"
                            .formatted(source.tokens(), length)));
        }
        if (!tables.areOf(source)) {
            return Optional.of(new Refusal(
                    Rejection.MISMATCH,
                    "remote_block_ids has blocks of %d groups of layers, and the model has %d here"
                            .formatted(
                                    source.ofGroups().size(), context.groups().size())));
        }
        if (source.proof().isEmpty()) {
            return Optional.empty();
        }
        SignedProof proof = source.proof().get();
        if (proof.generations().length != source.blocks().length) {
            return Optional.of(new Refusal(Rejection.TRUNCATED, "blocks are named without their generations"));
        }
        return proof.model().equals(context.model().digest())
                        && proof.prompt().equals(request.digest(context.model(), Math.min(source.tokens(), length)))
                ? Optional.empty()
                : Optional.of(new Refusal(Rejection.MISMATCH, "they are of another prompt or model"));
    }

    @Override
    public KvMatch match(KvRequest request, int computedTokens) {
        Tracked tracked = tracked(request);
        if (tracked.source.isEmpty() || tracked.settled) {
            return new KvMatch.None();
        }
        RemoteBlocks source = tracked.source.get();
        if (suspects.contains(source.engineId(), request, context.ticker().nanos())) {
            return new KvMatch.None();
        }
        int end = Math.min(source.tokens(), request.promptLength());
        // The prompt's last token is computed here in any case, for its logits.
        int useful = Math.min(end, request.promptLength() - 1) - computedTokens;
        return useful >= tracked.leastTokens
                ? new KvMatch.Tokens(
                        end - computedTokens, true, tracked.refused.isPresent() || reached.contains(source.address()))
                : new KvMatch.None();
    }

    @Override
    public void onAllocated(KvRequest request, int[] blockTable, int computedTokens, int externalTokens) {
        Tracked tracked = tracked(request);
        allocations.add(new Allocation(tracked, blockTable, computedTokens / blockSize));
        tracked.allocated = true;
        tracked.checksummedBlocks = 0;
        if (tracked.source.isEmpty() || tracked.settled) {
            return;
        }
        tracked.settled = true;
        RemoteBlocks source = tracked.source.get();
        if (externalTokens == 0) {
            unused.add(source);
            return;
        }
        tracked.loading = true;
        phase("queue", tracked);
        TransferPlan plan = tables.plan(source, blockTable, computedTokens, externalTokens)
                .orElseGet(() -> {
                    tracked.refused = tracked.refused.or(() -> Optional.of(
                            new Refusal(Rejection.TRUNCATED, "the reference does not name the blocks of its tokens")));
                    int end = Math.ceilDiv(computedTokens + externalTokens, blockSize);
                    return new TransferPlan(
                            computedTokens, externalTokens, tables.blocks(blockTable, computedTokens / blockSize, end));
                });
        OptionalLong waitsSince =
                reached.contains(source.address()) ? OptionalLong.empty() : OptionalLong.of(tracked.since);
        if (tracked.refused.isEmpty()) {
            reached.loads(request.id(), source.address(), plan.blocks());
        }
        loads.add(new LoadRequest(
                request.id(),
                source,
                plan,
                waitsSince,
                tracked.expiry,
                source.proof().isEmpty() && source.mode() == TransferMode.PUSH
                        ? Optional.of(tracked.promptDigest(request))
                        : Optional.empty(),
                tracked.refused));
    }

    @Override
    public ConnectorMetadata buildMetadata(ScheduledStep step) {
        for (String id : step.preempted()) {
            Tracked tracked = requests.get(id);
            if (tracked != null) {
                tracked.serial = ++serials;
                tracked.hasLeft = false;
            }
        }
        List<Opened> opened = new ArrayList<>();
        for (Allocation each : allocations) {
            for (int i = each.first(); i < tables.size(each.blockTable()); i++) {
                open(each.request(), each.blockTable(), i, opened);
            }
        }
        lastComputed =
                step.requests().isEmpty() ? lastComputed : context.ticker().nanos();
        List<Integer> complete = new ArrayList<>();
        for (ScheduledRequest scheduled : step.requests()) {
            Tracked tracked = tracked(scheduled.request());
            if (tracked.received) {
                tracked.received = false;
                phase("start", tracked);
            }
            int[] table = scheduled.blockTable();
            int end = scheduled.computedTokens() + scheduled.scheduledTokens();
            for (int i = scheduled.computedTokens() / blockSize; i < Math.ceilDiv(end, blockSize); i++) {
                open(tracked, table, i, opened);
                tracked.checksummedBlocks = Math.min(tracked.checksummedBlocks, i);
            }
            // After a preemption the whole prompt may be in the prefix cache.
            boolean begins = tracked.allocated;
            tracked.allocated = false;
            completeBlocks(scheduled, tracked, complete);
            int prompt = scheduled.request().promptLength();
            boolean computes = scheduled.computedTokens() < prompt;
            if (tracked.isForPeer && !computes && !tracked.hasLeft && tables.haveLeft(table, prompt)) {
                // Other requests write to blocks that windows have left, so it is not pushed any more.
                tracked.hasLeft = true;
                abandoned.add(scheduled.request().id());
            } else if (tracked.isForPeer && (computes || begins)) {
                String digest = tracked.promptDigest(scheduled.request());
                progress.add(tables.progress(scheduled.request(), table, scheduled.computedTokens(), end, digest));
            }
        }
        NixlConnectorMetadata plan = new NixlConnectorMetadata(
                opened,
                complete.stream().mapToInt(block -> block).toArray(),
                List.copyOf(loads),
                List.copyOf(unused),
                Set.copyOf(cancelled),
                heartbeats(),
                List.copyOf(leases),
                Set.copyOf(step.preempted()),
                Set.copyOf(abandoned),
                port(),
                List.copyOf(progress));
        progress.clear();
        allocations.clear();
        loads.clear();
        unused.clear();
        cancelled.clear();
        leases.clear();
        abandoned.clear();
        return plan;
    }

    /** Before a request writes to blocks that it has not written to before. It may get one again that its window has left behind. */
    private void open(Tracked tracked, int[] blockTable, int index, List<Opened> opened) {
        long writer = tracked.serial << INDEX_BITS | index;
        for (int block : tables.blocks(blockTable, index, index + 1)) {
            if (writers[block] != writer) {
                writers[block] = writer;
                checksummed.clear(block);
                opened.add(new Opened(block, ++generations[block]));
            }
        }
    }

    /** Blocks for peers get their checksums: full blocks when they are full, the last one with each token after the prompt's last. */
    private void completeBlocks(ScheduledRequest scheduled, Tracked tracked, List<Integer> complete) {
        if (!tracked.isForPeer && !tracked.nextTurn) {
            return;
        }
        int end = scheduled.computedTokens() + scheduled.scheduledTokens();
        int full = end / blockSize;
        boolean last = tracked.isForPeer && end >= scheduled.request().promptLength();
        for (int i = tracked.checksummedBlocks; i < (last ? Math.ceilDiv(end, blockSize) : full); i++) {
            for (int block : tables.blocks(scheduled.blockTable(), i, i + 1)) {
                if (!checksummed.get(block)) {
                    complete.add(block);
                    checksummed.set(block, i < full);
                }
            }
        }
        tracked.checksummedBlocks = full;
    }

    private List<RemoteBlocks> heartbeats() {
        long now = context.ticker().nanos();
        boolean all =
                now - lastHeartbeat >= settings.oneSided().heartbeatInterval().toNanos();
        lastHeartbeat = all ? now : lastHeartbeat;
        // Where nothing is computed for a lease, those with the blocks here may wait for the leases of those without.
        long lease = settings.lease().toNanos();
        // The first is sent at once: it names the agents that want the blocks.
        List<Tracked> wanting = requests.values().stream()
                .filter(each -> (all || !each.announced) && each.source.isPresent())
                .filter(each -> each.loading
                        || (!each.settled
                                && (!each.announced || now - each.since < lease || now - lastComputed < lease)))
                .toList();
        wanting.forEach(each -> each.announced = true);
        return wanting.stream().map(each -> each.source.orElseThrow()).toList();
    }

    @Override
    public void onStepDone(WorkerReport report) {
        workersBusy = report.busy();
        lastStepDone = context.ticker().nanos();
        reached.learn(report);
        for (int block : report.invalidBlocks()) {
            if (block >= 0 && block < writers.length) {
                writers[block] = 0;
            }
        }
        for (String id : report.received()) {
            Tracked tracked = requests.get(id);
            if (tracked != null) {
                tracked.loading = false;
                tracked.received = true;
                tracked.hasLoaded = true;
                tracked.since = lastStepDone;
            }
        }
    }

    @Override
    public void onWrongLoad(KvRequest request) {
        if (tracked(request).hasLoaded) {
            suspects.add(tracked(request).source.orElseThrow().engineId(), request, lastStepDone);
        }
    }

    /** Measures a phase that began when the request came, or when it had loaded. */
    private void phase(String name, Tracked tracked) {
        phases.add(TransferStats.handoverPhase(name, context.ticker().nanos() - tracked.since));
    }

    @Override
    public Release onFinished(KvRequest request, RequestEnd end, int[] blockTable) {
        Tracked tracked = tracked(request);
        requests.remove(request.id());
        if (tracked.loading) {
            reached.forget(request.id());
            cancelled.add(request.id());
        }
        tracked.source.filter(_ -> !tracked.settled).ifPresent(unused::add);
        boolean complete = end == RequestEnd.LENGTH || end == RequestEnd.STOPPED;
        if (!complete || blockTable.length == 0) {
            if (tracked.isForPeer) {
                abandoned.add(request.id());
            }
            return Release.NOW;
        }
        if (tracked.isForPeer) {
            return lease(request, tracked, blockTable, request.promptLength(), mode, settings.lease());
        }
        // The last token was sampled, not computed; and of a turn only full blocks have checksums.
        int tokens = (request.length() - 1) / blockSize * blockSize;
        return tracked.nextTurn && tokens > 0
                ? lease(request, tracked, blockTable, tokens, TransferMode.PULL, settings.decoderBlocksTtl())
                : Release.NOW;
    }

    @Override
    public void onAnswerLost(String requestId) {
        abandoned.add(requestId);
    }

    private Release lease(
            KvRequest request, Tracked tracked, int[] blockTable, int tokens, TransferMode taken, Duration time) {
        int[] blocks = tables.attendedBlocks(blockTable, tokens);
        if (tables.haveLeft(blockTable, tokens)) {
            log.warn("{} is not handed over: its windows have left blocks that the prompt's end needs", request.id());
            abandoned.add(request.id());
            return Release.NOW;
        }
        leases.add(new Lease(request.id(), time.toNanos()));
        RemoteBlocks reference = new RemoteBlocks(
                        context.config().engineId(),
                        request.id(),
                        settings.host(),
                        tracked.readerVersion
                                .flatMap(version -> server.map(listening -> listening.port(version, settings)))
                                .orElseGet(this::port),
                        context.tensorParallelSize(),
                        blocks,
                        tables.attended(tokens),
                        tokens,
                        registrations,
                        taken,
                        Optional.empty())
                .proven(
                        incarnation.epoch(),
                        context.model().digest(),
                        Arrays.stream(blocks)
                                .mapToLong(block -> generations[block])
                                .toArray(),
                        tokens == request.promptLength()
                                ? tracked.promptDigest(request)
                                : request.digest(context.model(), tokens),
                        incarnation.key());
        long now = context.ticker().nanos();
        JsonFields params = reference.toParams((now + time.toNanos()) / 1e9, context.pipelineParallelSize());
        phases.add(TransferStats.handoverPhase("answer", context.ticker().nanos() - lastStepDone));
        return new Release(true, Optional.of(params));
    }

    private int port() {
        return server.map(HandshakeServer::port).orElse(settings.port());
    }

    @Override
    public boolean hasPendingWork() {
        return workersBusy
                || !unused.isEmpty()
                || !cancelled.isEmpty()
                || !leases.isEmpty()
                || !abandoned.isEmpty()
                || !loads.isEmpty();
    }

    @Override
    public List<Measurement> takeMeasurements() {
        List<Measurement> taken = new ArrayList<>(phases);
        phases.clear();
        rejected.forEach((cause, count) -> taken.add(cause.measurement(count)));
        rejected.clear();
        settings.access().takeRefusedMeasurement().ifPresent(taken::add);
        return taken;
    }

    @Override
    public void close() {
        server.ifPresent(HandshakeServer::close);
        server = Optional.empty();
        requests.clear();
    }

    private Tracked tracked(KvRequest request) {
        return requests.computeIfAbsent(request.id(), _ -> new Tracked());
    }

    private static String brief(JsonFields params) {
        String text = params.toString();
        return text.length() <= 300 ? text : text.substring(0, 300) + "...";
    }

    private final class Tracked {
        /** Identifies the writer of blocks; a new one after a preemption. */
        private long serial = ++serials;

        /** Where the prompt's blocks are. */
        private Optional<RemoteBlocks> source = Optional.empty();

        private Optional<Refusal> refused = Optional.empty();

        /** The expiry of the source's lease, by the owner's clock. */
        private OptionalDouble expiry = OptionalDouble.empty();

        /** Fewer tokens are not worth a load. */
        private int leastTokens = 1;

        /** A heartbeat was sent. */
        private boolean announced;
        /** The source was used, or given back. */
        private boolean settled;

        private boolean loading;
        private boolean hasLoaded;
        /** Whether the request has loaded and was not scheduled since. */
        private boolean received;
        /** When it came, or had loaded. */
        private long since;

        /** Peers will read this request's blocks. */
        private boolean isForPeer;
        /** {@code remote_vllm_version} of the decode instance, as the router knows it. */
        private Optional<String> readerVersion = Optional.empty();
        /** The prefill instance may read this request's blocks in the next turn. */
        private boolean nextTurn;
        /** Windows have left blocks behind that the prompt's end needs. */
        private boolean hasLeft;
        /** Whether the request has new blocks and was not scheduled since. */
        private boolean allocated;
        /** The blocks up to here have their checksums. */
        private int checksummedBlocks;

        private Optional<String> digest = Optional.empty();

        private String promptDigest(KvRequest request) {
            digest = digest.or(() -> Optional.of(request.digest(context.model(), request.promptLength())));
            return digest.get();
        }
    }
}
