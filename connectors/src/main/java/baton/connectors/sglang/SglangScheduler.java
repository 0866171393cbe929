package baton.connectors.sglang;

import baton.connectors.ReachedPeers;
import baton.connectors.onesided.SuspectPeers;
import baton.connectors.sglang.SglangMetadata.Ready;
import baton.connectors.sglang.SglangMetadata.Source;
import baton.connectors.sglang.SglangMetadata.Wish;
import baton.kv.ConfigException;
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
import baton.messages.sglang.PrefillTopology;
import baton.messages.sglang.SglangExchange;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ThreadLocalRandom;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Decides which prompts are wanted and which are kept. A request's {@code kv_transfer_params} are {@code bootstrap_host},
 * {@code bootstrap_port} and {@code bootstrap_room}, at either instance. A prefill request may have {@code do_remote_decode} instead, as
 * vLLM's routers send it: then the answer has these three.
 */
final class SglangScheduler implements SchedulerConnector {
    private static final Logger log = LoggerFactory.getLogger(SglangScheduler.class);
    private static final String HOST = "bootstrap_host";
    private static final String PORT = "bootstrap_port";
    private static final String ROOM = "bootstrap_room";
    private static final int DEFAULT_PORT = 8998;

    private final ConnectorContext context;
    private final SglangSettings settings;
    private final SglangExchange exchange;
    private final int blockSize;
    private Optional<PeerAddress> bootstrap = Optional.empty();

    private final Map<String, Tracked> requests = new LinkedHashMap<>();
    private final ReachedPeers<PeerAddress> reached = new ReachedPeers<>();
    private final SuspectPeers suspects = new SuspectPeers();
    private final List<Wish> wishes = new ArrayList<>();
    private final Set<String> cancelled = new LinkedHashSet<>();
    private final List<Ready> ready = new ArrayList<>();
    private final Set<Long> abandoned = new LinkedHashSet<>();
    /** Rooms of kept prompts that only the answer names, by request. */
    private final Map<String, Long> unnamed = new LinkedHashMap<>();

    private boolean workersBusy = true;

    SglangScheduler(ConnectorContext context, SglangSettings settings, SglangExchange exchange) {
        this.context = context;
        this.settings = settings;
        this.exchange = exchange;
        this.blockSize = context.layout().blockSize();
    }

    private static final class Tracked {
        /** Of a prefill request. */
        private Optional<Long> keptAs = Optional.empty();

        private int cached;
        /** Where a decode request's prompt is computed. */
        private Optional<Source> source = Optional.empty();
        /** The source was asked for the prompt, or notified that it is not needed. */
        private boolean settled;

        private boolean loading;
        /** Loads from the source, or has. */
        private boolean loads;
    }

    @Override
    public void onHandshakeMetadata(Map<Rank, HandshakeMetadata> metadata) {
        if (!context.config().isProducer()) {
            return;
        }
        Map<List<Integer>, PeerAddress> ranks = new LinkedHashMap<>();
        metadata.forEach((rank, own) -> {
            if (own instanceof SglangWorker.Listening listening) {
                ranks.put(List.of(rank.tensor(), rank.pipeline()), listening.address());
            }
        });
        PrefillTopology topology = new PrefillTopology(
                context.tensorParallelSize(),
                1,
                1,
                context.pipelineParallelSize(),
                Optional.of(blockSize),
                // SGLang compares settings and not types: "auto" differs from "bfloat16" there. Ranks compare the bytes
                // of a page.
                Optional.empty(),
                true,
                PrefillTopology.EARLY);
        try {
            int port = exchange.serve(settings.host(), settings.bootstrapPort(), topology, ranks);
            bootstrap = Optional.of(new PeerAddress(settings.host(), port));
            log.info("SGLang's bootstrap server is at {}:{}", settings.host(), port);
        } catch (MessageException e) {
            throw new ConfigException(
                    SglangSettings.BOOTSTRAP_PORT,
                    e.getMessage() + "; another " + SglangSettings.BOOTSTRAP_PORT + ", or 0 for a free one, may do",
                    e);
        }
    }

    @Override
    public void onNewRequest(KvRequest request) {
        Tracked tracked = new Tracked();
        request.kvTransferParams().ifPresent(params -> {
            if (context.config().isProducer()) {
                tracked.keptAs = kept(params);
                return;
            }
            Optional<Source> source = source(params);
            if (requests.values().stream().anyMatch(other -> source.isPresent() && other.source.equals(source))) {
                // A prompt is written once for each instance; other samples find it in the prefix cache.
                log.debug("request {}: another one has its room", request.id());
            } else {
                tracked.source = source;
            }
        });
        requests.put(request.id(), tracked);
    }

    /** The room of a prefill request, if a decode request is to follow. */
    private static Optional<Long> kept(JsonFields params) {
        Optional<Long> room = room(params);
        return room.isEmpty() && params.bool("do_remote_decode").orElse(false)
                ? Optional.of(ThreadLocalRandom.current().nextLong(Long.MAX_VALUE))
                : room;
    }

    /** As any number from 0 to 2^63 - 1, which a JSON number of other fields need not be. */
    private static Optional<Long> room(JsonFields params) {
        return params.value(ROOM).map(room -> {
            if (!room.isIntegralNumber() || !room.canConvertToLong() || room.asLong() < 0) {
                throw new InvalidFieldException(
                        params.field(ROOM),
                        "is " + PeerAddress.shown(room.toString()) + ", must be from 0 to 2^63 - 1");
            }
            return room.asLong();
        });
    }

    private Optional<Source> source(JsonFields params) {
        return room(params).map(room -> {
            String host = params.string(HOST)
                    .orElseThrow(() -> new InvalidFieldException(
                            params.field(HOST), "is missing, must be the host of the prefill instance"));
            int port = params.integerAtLeast(PORT, 1).orElse(DEFAULT_PORT);
            PeerAddress address = PeerAddress.find(host, port)
                    .orElseThrow(() -> new InvalidFieldException(
                            params.field(HOST),
                            "is '" + PeerAddress.shown(host) + "' with " + PORT + " " + port
                                    + ", must be the address of a bootstrap server"));
            if (!settings.access().mayConnect(address.host())) {
                settings.access().refuse(address.toString(), settings.access().notAllowed());
                throw new InvalidFieldException(
                        params.field(HOST), "is " + settings.access().notAllowed());
            }
            return new Source(address, room);
        });
    }

    @Override
    public boolean isPrefilledElsewhere(KvRequest request) {
        return context.config().isConsumer()
                && request.kvTransferParams()
                        .flatMap(params -> params.value(ROOM))
                        .isPresent();
    }

    @Override
    public void onRefused(String requestId, JsonFields params) {
        try {
            if (context.config().isProducer()) {
                room(params).ifPresent(abandoned::add);
            } else {
                source(params).ifPresent(source -> release(requestId, source, 0));
            }
        } catch (InvalidFieldException e) {
            log.warn("request {} is refused, and names no prompt: {}", requestId, e.getMessage());
        }
    }

    private void release(String requestId, Source source, int prefix) {
        wishes.add(Wish.release(requestId, source, prefix));
    }

    @Override
    public KvMatch match(KvRequest request, int computedTokens) {
        Tracked tracked = requests.get(request.id());
        return tracked == null
                        || tracked.source.isEmpty()
                        || tracked.settled
                        || suspects.contains(
                                tracked.source.get().bootstrap().toString(),
                                request,
                                context.ticker().nanos())
                ? new KvMatch.None()
                : reached.match(request, computedTokens, tracked.source.get().bootstrap());
    }

    @Override
    public void onAllocated(KvRequest request, int[] blockTable, int computedTokens, int externalTokens) {
        Tracked tracked = requests.get(request.id());
        if (tracked == null) {
            return;
        }
        if (tracked.keptAs.isPresent()) {
            tracked.cached = computedTokens;
        }
        if (tracked.source.isEmpty() || tracked.settled) {
            return;
        }
        tracked.settled = true;
        Source source = tracked.source.get();
        if (externalTokens == 0) {
            release(request.id(), source, computedTokens);
            return;
        }
        tracked.loading = true;
        tracked.loads = true;
        int end = Math.ceilDiv(computedTokens + externalTokens, blockSize);
        int[] blocks = Arrays.copyOfRange(blockTable, computedTokens / blockSize, end);
        reached.loads(request.id(), source.bootstrap(), blocks);
        wishes.add(new Wish(
                request.id(), source, blocks, computedTokens, request.digest(context.model(), request.promptLength())));
    }

    @Override
    public ConnectorMetadata buildMetadata(ScheduledStep step) {
        SglangMetadata plan = new SglangMetadata(wishes, cancelled, ready, abandoned);
        wishes.clear();
        cancelled.clear();
        ready.clear();
        abandoned.clear();
        return plan;
    }

    @Override
    public void onStepDone(WorkerReport report) {
        workersBusy = report.busy();
        reached.learn(report);
        unnamed.keySet().removeAll(report.sent());
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
        tracked.source.filter(_ -> !tracked.settled).ifPresent(source -> release(request.id(), source, 0));
        if (tracked.keptAs.isEmpty()) {
            return Release.NOW;
        }
        long room = tracked.keptAs.get();
        boolean complete = end == RequestEnd.LENGTH || end == RequestEnd.STOPPED;
        int prompt = request.promptLength();
        if (!complete || blockTable.length == 0) {
            abandoned.add(room);
            return Release.NOW;
        }
        int[] blocks = Arrays.copyOf(blockTable, Math.ceilDiv(prompt, blockSize));
        if (request.kvTransferParams().flatMap(SglangScheduler::room).isEmpty()) {
            unnamed.put(request.id(), room);
        }
        int token = request.length() > prompt ? request.tokens(prompt, prompt + 1)[0] : 0;
        ready.add(new Ready(
                request.id(),
                room,
                blocks,
                token,
                tracked.cached,
                request.digest(context.model(), request.promptLength())));
        return new Release(
                true,
                bootstrap.map(address -> JsonFields.of(
                        "kv_transfer_params",
                        JsonFields.empty("kv_transfer_params")
                                .toJson()
                                .put("do_remote_prefill", true)
                                .put(HOST, address.host())
                                .put(PORT, address.port())
                                .put(ROOM, room))));
    }

    @Override
    public void onWrongLoad(KvRequest request) {
        Optional.ofNullable(requests.get(request.id()))
                .filter(tracked -> tracked.loads)
                .flatMap(tracked -> tracked.source)
                .ifPresent(source -> suspects.add(
                        source.bootstrap().toString(), request, context.ticker().nanos()));
    }

    @Override
    public void onAnswerLost(String requestId) {
        Optional.ofNullable(unnamed.remove(requestId)).ifPresent(abandoned::add);
    }

    @Override
    public boolean hasPendingWork() {
        return workersBusy || !wishes.isEmpty() || !cancelled.isEmpty() || !ready.isEmpty() || !abandoned.isEmpty();
    }

    @Override
    public void close() {
        exchange.close();
        requests.clear();
    }
}
