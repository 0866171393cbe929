package baton.connectors.mooncake;

import baton.connectors.ReachedPeers;
import baton.connectors.mooncake.MooncakeConnectorMetadata.Load;
import baton.connectors.mooncake.MooncakeConnectorMetadata.Ready;
import baton.connectors.mooncake.MooncakeConnectorMetadata.Source;
import baton.connectors.onesided.RequestIdMap;
import baton.connectors.onesided.SuspectPeers;
import baton.kv.ConfigException;
import baton.kv.Deadline;
import baton.kv.InvalidFieldException;
import baton.kv.JsonFields;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.HandshakeMetadata;
import baton.kv.connector.KvMatch;
import baton.kv.connector.KvRequest;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.WorkerReport;
import baton.messages.MessageException;
import baton.messages.PeerAddress;
import baton.messages.mooncake.MooncakeExchange;
import baton.messages.mooncake.RankRegistration;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeoutException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Decides which prompts are asked for and which are kept, and makes this instance known to a registry. A request's
 * {@code kv_transfer_params} are vLLM's: {@code do_remote_decode} or {@code do_remote_prefill}, {@code transfer_id}, and for a decode
 * request {@code remote_engine_id} and {@code remote_bootstrap_addr}.
 */
final class MooncakeScheduler implements SchedulerConnector {
    private static final Logger log = LoggerFactory.getLogger(MooncakeScheduler.class);
    static final String TRANSFER_ID = "transfer_id";
    private static final String ENGINE_ID = "remote_engine_id";
    private static final String BOOTSTRAP = "remote_bootstrap_addr";

    private final ConnectorContext context;
    private final MooncakeSettings settings;
    private final MooncakeExchange exchange;
    private final int blockSize;
    private Optional<PeerAddress> bootstrap = Optional.empty();

    private final Map<String, Tracked> requests = new LinkedHashMap<>();
    private final List<Load> loads = new ArrayList<>();
    /** By engine id and registry. */
    private final ReachedPeers<String> reached = new ReachedPeers<>();

    private final SuspectPeers suspects = new SuspectPeers();

    private final Set<String> cancelled = new LinkedHashSet<>();
    private final List<Ready> ready = new ArrayList<>();
    private final Set<String> abandoned = new LinkedHashSet<>();
    private final Set<String> unknown = new LinkedHashSet<>();
    private boolean workersBusy = true;

    MooncakeScheduler(ConnectorContext context, MooncakeSettings settings, MooncakeExchange exchange) {
        this.context = context;
        this.settings = settings;
        this.exchange = exchange;
        this.blockSize = context.layout().blockSize();
    }

    private static final class Tracked {
        private final long came;
        /** Of a prefill request that a decode instance waits for. */
        private Optional<String> keptAs = Optional.empty();
        /** Where a decode request's prompt is computed. */
        private Optional<Source> source = Optional.empty();
        /** The source was used, or notified that it is not needed. */
        private boolean settled;

        private boolean loading;
        /** Loads from the source, or has. */
        private boolean loads;

        private Tracked(long came) {
            this.came = came;
        }
    }

    @Override
    public void onHandshakeMetadata(Map<Rank, HandshakeMetadata> metadata) {
        if (!context.config().isProducer()) {
            return;
        }
        List<RankRegistration> ranks = new ArrayList<>();
        metadata.forEach((rank, own) -> {
            if (own instanceof MooncakeWorker.Listening listening) {
                ranks.add(new RankRegistration(
                        context.config().engineId(),
                        settings.dpRank(),
                        rank.tensor(),
                        rank.pipeline(),
                        listening.address()));
            }
        });
        try {
            if (settings.registry().isPresent()) {
                registerElsewhere(settings.registry().get(), ranks);
            } else {
                MooncakeExchange.Registry own = exchange.serve(settings.host(), settings.bootstrapPort());
                for (RankRegistration rank : ranks) {
                    own.register(rank);
                }
                bootstrap = Optional.of(new PeerAddress(settings.host(), own.port()));
                log.info("Mooncake Bootstrap Server started at {}:{}", settings.host(), own.port());
            }
        } catch (MessageException e) {
            throw new ConfigException(
                    MooncakeSettings.BOOTSTRAP_PORT,
                    e.getMessage() + "; another " + MooncakeSettings.BOOTSTRAP_PORT
                            + " or VLLM_MOONCAKE_BOOTSTRAP_PORT, or 0 for a free one, may do",
                    e);
        }
    }

    private void registerElsewhere(PeerAddress registry, List<RankRegistration> ranks) {
        Duration timeout = settings.timeouts().handshake();
        Deadline deadline = Deadline.after(context.ticker(), timeout.multipliedBy(4));
        try {
            Void _ = deadline.get(exchange.register(registry, ranks, timeout));
            bootstrap = Optional.of(registry);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new ConfigException("bootstrap_server_address", "interrupted", e);
        } catch (ExecutionException | TimeoutException e) {
            throw new ConfigException(
                    "bootstrap_server_address",
                    "is " + registry + ", which does not register this instance: "
                            + (e.getCause() == null ? e : e.getCause()).getMessage(),
                    e);
        }
    }

    /** The source of a decode request's blocks, beside its {@code transfer_id}. */
    @Override
    public Optional<JsonFields> advertisedKvTransferParams() {
        return bootstrap.map(address -> JsonFields.of("kv_transfer_params", params(address)));
    }

    private tools.jackson.databind.node.ObjectNode params(PeerAddress address) {
        return JsonFields.empty("kv_transfer_params")
                .toJson()
                .put("do_remote_prefill", true)
                .put("do_remote_decode", false)
                .put(ENGINE_ID, context.config().engineId())
                .put(BOOTSTRAP, "http://" + address);
    }

    @Override
    public void onNewRequest(KvRequest request) {
        Tracked tracked = new Tracked(context.ticker().nanos());
        requests.put(request.id(), tracked);
        request.kvTransferParams().ifPresent(params -> {
            try {
                if (params.bool("do_remote_prefill").orElse(false)) {
                    Source source = source(request.id(), params);
                    boolean awaited =
                            requests.values().stream().anyMatch(other -> other.source.equals(Optional.of(source)));
                    if (awaited) {
                        // A prompt is written once for each instance; other samples find it in the prefix cache.
                        log.debug("request {}: another one has transfer {}", request.id(), source.transferId());
                    } else {
                        tracked.source = Optional.of(source);
                    }
                } else if (params.bool("do_remote_decode").orElse(false)
                        && context.config().isProducer()) {
                    tracked.keptAs = Optional.of(transferId(request.id(), params));
                }
            } catch (InvalidFieldException e) {
                log.warn(
                        "Got invalid KVTransferParams: {} This request will not utilize KVTransfer: {}",
                        e.getMessage(),
                        request.id());
            }
        });
    }

    /** @throws InvalidFieldException if a decode request's parameters name no prompt */
    private Source source(String requestId, JsonFields params) {
        if (!context.config().isConsumer()) {
            throw new InvalidFieldException("do_remote_prefill", "is true, and this instance only prefills");
        }
        String registry = text(params, BOOTSTRAP);
        String[] parts = registry.split("//", 2);
        Optional<PeerAddress> address = parts.length == 2 && parts[0].equals("http:")
                ? PeerAddress.find(parts[1].replaceFirst("/+$", ""))
                : Optional.empty();
        if (address.isEmpty()) {
            throw new InvalidFieldException(
                    BOOTSTRAP, "is '" + PeerAddress.shown(registry) + "', must be http://host:port");
        }
        if (!settings.access().mayConnect(address.get().host())) {
            settings.access().refuse(address.get().toString(), settings.access().notAllowed());
            throw new InvalidFieldException(BOOTSTRAP, "is " + settings.access().notAllowed());
        }
        return new Source(transferId(requestId, params), text(params, ENGINE_ID), "http://" + address.get());
    }

    /** Without one, as no proxy of vLLM's sends it, it is what the ids of both requests have in common. */
    private static String transferId(String requestId, JsonFields params) {
        return params.string(TRANSFER_ID).filter(id -> !id.isBlank()).orElseGet(() -> RequestIdMap.commonId(requestId));
    }

    private static String text(JsonFields params, String name) {
        return params.string(name)
                .filter(value -> !value.isBlank())
                .orElseThrow(() -> new InvalidFieldException(name, "is missing"));
    }

    @Override
    public void onRefused(String requestId, JsonFields params) {
        try {
            if (params.bool("do_remote_decode").orElse(false)) {
                abandoned.add(transferId(requestId, params));
            } else if (params.bool("do_remote_prefill").orElse(false)) {
                release(requestId, source(requestId, params));
            }
        } catch (InvalidFieldException e) {
            log.warn(
                    "request {} is refused, and names no prompt that could be released: {}", requestId, e.getMessage());
        }
    }

    private void release(String requestId, Source source) {
        loads.add(new Load(requestId, source, new int[0], "", context.ticker().nanos()));
    }

    @Override
    public KvMatch match(KvRequest request, int computedTokens) {
        Tracked tracked = requests.get(request.id());
        return tracked == null
                        || tracked.source.isEmpty()
                        || tracked.settled
                        || suspects.contains(
                                tracked.source.get().instance(),
                                request,
                                context.ticker().nanos())
                ? new KvMatch.None()
                : reached.match(request, computedTokens, tracked.source.get().instance());
    }

    @Override
    public void onAllocated(KvRequest request, int[] blockTable, int computedTokens, int externalTokens) {
        Tracked tracked = requests.get(request.id());
        if (tracked == null || tracked.source.isEmpty() || tracked.settled) {
            return;
        }
        tracked.settled = true;
        if (externalTokens == 0) {
            release(request.id(), tracked.source.get());
            return;
        }
        tracked.loading = true;
        tracked.loads = true;
        int end = Math.ceilDiv(computedTokens + externalTokens, blockSize);
        int[] blocks = Arrays.copyOfRange(blockTable, computedTokens / blockSize, end);
        reached.loads(request.id(), tracked.source.get().instance(), blocks);
        long waitsSince = reached.contains(tracked.source.get().instance())
                ? context.ticker().nanos()
                : tracked.came;
        loads.add(new Load(
                request.id(),
                tracked.source.get(),
                blocks,
                request.digest(context.model(), request.promptLength()),
                waitsSince));
    }

    @Override
    public ConnectorMetadata buildMetadata(ScheduledStep step) {
        MooncakeConnectorMetadata plan = new MooncakeConnectorMetadata(loads, cancelled, ready, abandoned, unknown);
        loads.clear();
        cancelled.clear();
        ready.clear();
        abandoned.clear();
        unknown.clear();
        return plan;
    }

    @Override
    public void onStepDone(WorkerReport report) {
        workersBusy = report.busy();
        reached.learn(report);
        for (String id : report.received()) {
            Tracked tracked = requests.get(id);
            if (tracked != null) {
                tracked.loading = false;
            }
        }
    }

    @Override
    public Release onFinished(KvRequest request, RequestEnd end, int[] blockTable) {
        Tracked tracked = requests.remove(request.id());
        if (tracked == null) {
            return Release.NOW;
        }
        if (tracked.loading) {
            reached.forget(request.id());
            cancelled.add(request.id());
        }
        tracked.source.filter(_ -> !tracked.settled).ifPresent(source -> release(request.id(), source));
        if (tracked.keptAs.isEmpty()) {
            return Release.NOW;
        }
        String transferId = tracked.keptAs.get();
        boolean complete = end == RequestEnd.LENGTH || end == RequestEnd.STOPPED;
        if (!complete || blockTable.length == 0) {
            abandoned.add(transferId);
            return Release.NOW;
        }
        int[] blocks = Arrays.copyOf(blockTable, Math.ceilDiv(request.promptLength(), blockSize));
        ready.add(new Ready(request.id(), transferId, blocks, request.digest(context.model(), request.promptLength())));
        return new Release(
                true,
                bootstrap.map(address ->
                        JsonFields.of("kv_transfer_params", params(address).put(TRANSFER_ID, transferId))));
    }

    @Override
    public void onWrongLoad(KvRequest request) {
        Optional.ofNullable(requests.get(request.id()))
                .filter(tracked -> tracked.loads)
                .flatMap(tracked -> tracked.source)
                .ifPresent(source -> suspects.add(
                        source.instance(), request, context.ticker().nanos()));
    }

    @Override
    public void onAnswerLost(String requestId) {
        unknown.add(requestId);
    }

    @Override
    public boolean hasPendingWork() {
        return workersBusy
                || !loads.isEmpty()
                || !cancelled.isEmpty()
                || !ready.isEmpty()
                || !abandoned.isEmpty()
                || !unknown.isEmpty();
    }

    @Override
    public void close() {
        exchange.close();
        requests.clear();
    }
}
