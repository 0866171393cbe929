package baton.connectors.onesided;

import baton.connectors.ReachedPeers;
import baton.connectors.onesided.PromptPlan.Ready;
import baton.connectors.onesided.PromptPlan.Source;
import baton.connectors.onesided.PromptPlan.Wish;
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
import baton.messages.PeerAddress;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import tools.jackson.databind.node.ObjectNode;

/**
 * Decides which prompts are wanted and which are kept, where a prefill instance keeps a whole prompt under a key until a decode instance has
 * it written to its blocks. The parameters of requests and the registry are those of a subclass.
 */
public abstract class PromptScheduler implements SchedulerConnector {
    private static final Logger log = LoggerFactory.getLogger(PromptScheduler.class);

    protected final ConnectorContext context;
    private final int blockSize;
    private final Map<String, Tracked> requests = new LinkedHashMap<>();
    /** Peers by {@link Source#instance}. */
    private final ReachedPeers<String> reached = new ReachedPeers<>();

    private final SuspectPeers suspects = new SuspectPeers();
    private final List<Wish> wishes = new ArrayList<>();
    private final Set<String> cancelled = new LinkedHashSet<>();
    private final List<Ready> ready = new ArrayList<>();
    private final Set<String> abandoned = new LinkedHashSet<>();
    private final Set<String> unknown = new LinkedHashSet<>();
    private boolean workersBusy = true;

    protected PromptScheduler(ConnectorContext context) {
        this.context = context;
        this.blockSize = context.layout().blockSize();
    }

    /** Where a rank's worker listens. */
    public record Listening(PeerAddress address) implements HandshakeMetadata {}

    /**
     * A request's part in a hand-over.
     *
     * @param keptAs key of the prompt of a prefill request that a decode instance waits for
     * @param source where a decode request's prompt is computed
     */
    public record Leg(Optional<String> keptAs, Optional<Source> source) {
        public static final Leg NONE = new Leg(Optional.empty(), Optional.empty());
    }

    private static final class Tracked {
        private final long came;
        private final Optional<String> keptAs;
        private Optional<Source> source;
        /** Tokens of a prefill request that were here before. */
        private int cached;
        /** The source was asked for the prompt, or notified that it is not needed. */
        private boolean settled;

        private boolean loading;
        /** Loads from the source, or has. */
        private boolean loads;

        private Tracked(long came, Leg leg) {
            this.came = came;
            this.keptAs = leg.keptAs;
            this.source = leg.source;
        }
    }

    /** Makes the addresses of a prefill instance's ranks known to decode instances. */
    protected abstract void publish(Map<Rank, PeerAddress> ranks);

    /** @throws InvalidFieldException if the parameters cannot be used */
    protected abstract Leg leg(String requestId, JsonFields params);

    /** The parameters of the decode request of a prompt that is kept; empty if this instance publishes no ranks. */
    protected abstract Optional<ObjectNode> answer(String key);

    @Override
    public final void onHandshakeMetadata(Map<Rank, HandshakeMetadata> metadata) {
        if (context.config().isProducer()) {
            Map<Rank, PeerAddress> ranks = new LinkedHashMap<>();
            metadata.forEach((rank, own) -> {
                if (own instanceof Listening listening) {
                    ranks.put(rank, listening.address);
                }
            });
            publish(ranks);
        }
    }

    @Override
    public final void onNewRequest(KvRequest request) {
        Tracked tracked = new Tracked(
                context.ticker().nanos(),
                request.kvTransferParams()
                        .map(params -> leg(request.id(), params))
                        .orElse(Leg.NONE));
        if (tracked.source.isPresent()
                && requests.values().stream().anyMatch(other -> other.source.equals(tracked.source))) {
            // A prompt is written once for each instance; other samples find it in the prefix cache.
            log.debug("request {}: another one loads {}", request.id(), tracked.source.get());
            tracked.source = Optional.empty();
        }
        requests.put(request.id(), tracked);
    }

    @Override
    public void onRefused(String requestId, JsonFields params) {
        try {
            Leg leg = leg(requestId, params);
            leg.keptAs.ifPresent(abandoned::add);
            leg.source.ifPresent(source -> release(requestId, source, 0));
        } catch (InvalidFieldException e) {
            log.warn("request {} is refused, and names no prompt: {}", requestId, e.getMessage());
        }
    }

    private void release(String requestId, Source source, int prefix) {
        wishes.add(Wish.release(requestId, source, prefix, context.ticker().nanos()));
    }

    @Override
    public final KvMatch match(KvRequest request, int computedTokens) {
        Tracked tracked = requests.get(request.id());
        if (tracked == null || tracked.source.isEmpty() || tracked.settled) {
            return new KvMatch.None();
        }
        String instance = tracked.source.get().instance();
        return suspects.contains(instance, request, context.ticker().nanos())
                ? new KvMatch.None()
                : reached.match(request, computedTokens, instance);
    }

    @Override
    public final void onAllocated(KvRequest request, int[] blockTable, int computedTokens, int externalTokens) {
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
        reached.loads(request.id(), source.instance(), blocks);
        wishes.add(new Wish(
                request.id(),
                source,
                blocks,
                computedTokens,
                request.digest(context.model(), request.promptLength()),
                reached.contains(source.instance()) ? context.ticker().nanos() : tracked.came));
    }

    @Override
    public final ConnectorMetadata buildMetadata(ScheduledStep step) {
        PromptPlan plan = new PromptPlan(wishes, cancelled, ready, abandoned, unknown);
        wishes.clear();
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
        tracked.source.filter(_ -> !tracked.settled).ifPresent(source -> release(request.id(), source, 0));
        if (tracked.keptAs.isEmpty()) {
            return Release.NOW;
        }
        String key = tracked.keptAs.get();
        boolean complete = end == RequestEnd.LENGTH || end == RequestEnd.STOPPED;
        if (!complete || blockTable.length == 0) {
            abandoned.add(key);
            return Release.NOW;
        }
        int prompt = request.promptLength();
        ready.add(new Ready(
                request.id(),
                key,
                Arrays.copyOf(blockTable, Math.ceilDiv(prompt, blockSize)),
                request.length() > prompt ? request.tokens(prompt, prompt + 1)[0] : 0,
                tracked.cached,
                request.digest(context.model(), prompt)));
        return new Release(true, answer(key).map(params -> JsonFields.of("kv_transfer_params", params)));
    }

    @Override
    public final void onWrongLoad(KvRequest request) {
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
    public final boolean hasPendingWork() {
        return workersBusy
                || !wishes.isEmpty()
                || !cancelled.isEmpty()
                || !ready.isEmpty()
                || !abandoned.isEmpty()
                || !unknown.isEmpty();
    }

    @Override
    public void close() {
        requests.clear();
    }
}
