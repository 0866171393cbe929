package baton.connectors.p2pnccl;

import baton.connectors.ReachedPeers;
import baton.connectors.p2pnccl.P2pNcclConnectorMetadata.Load;
import baton.connectors.p2pnccl.P2pNcclConnectorMetadata.Save;
import baton.kv.Bursts;
import baton.kv.InvalidFieldException;
import baton.kv.Sha256;
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
import baton.messages.PeerAddress;
import baton.messages.p2p.P2pRequestId;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Decides which prompts are saved and loaded. A request's id contains the peers' addresses; a request with an ordinary id is
 * computed here. Of several sequences of a request only the first one loads, because a prompt's tensors can be taken once; the
 * other ones find its blocks in the prefix cache.
 *
 * <p>A prompt is sent in the step that computes its last token: each layer when it has been computed, all chunks at once.
 */
final class P2pNcclScheduler implements SchedulerConnector {
    private static final Logger log = LoggerFactory.getLogger(P2pNcclScheduler.class);
    private static final Duration BETWEEN_LINES = Duration.ofSeconds(10);

    private final ConnectorContext context;
    private final P2pNcclSettings settings;
    private final int blockSize;
    private final Bursts complaints;
    private final Map<String, Tracked> requests = new HashMap<>();
    private final List<Load> loads = new ArrayList<>();
    private final ReachedPeers<PeerAddress> reached = new ReachedPeers<>();
    private final List<String> dropped = new ArrayList<>();
    private final List<String> unwanted = new ArrayList<>();
    private Optional<PeerAddress> self = Optional.empty();
    /** Whether workers load or send; their reports tell. */
    private boolean workersBusy;

    private final Counts counts = new Counts();

    P2pNcclScheduler(ConnectorContext context, P2pNcclSettings settings) {
        this.context = context;
        this.settings = settings;
        this.blockSize = context.layout().blockSize();
        this.complaints = new Bursts(1, BETWEEN_LINES, context.ticker());
    }

    /** A worker's control address. */
    record Listening(PeerAddress address) implements HandshakeMetadata {}

    private static final class Tracked {
        private final P2pRequestId.Found id;
        private final boolean sends;
        private final boolean receives;
        private boolean sent;
        /** Whether the prompt was loaded: its tensors can be taken once. */
        private boolean loaded;

        private Tracked(P2pRequestId.Found id, boolean sends, boolean receives) {
            this.id = id;
            this.sends = sends;
            this.receives = receives;
        }
    }

    @Override
    public void onHandshakeMetadata(Map<Rank, HandshakeMetadata> metadata) {
        if (metadata.get(Rank.FIRST) instanceof Listening first) {
            self = Optional.of(first.address);
        }
    }

    @Override
    public void onNewRequest(KvRequest request) {
        try {
            Optional<P2pRequestId.Found> found = P2pRequestId.find(request.id()).filter(each -> each.sequence() == 0);
            if (found.isEmpty()) {
                return;
            }
            P2pRequestId id = found.get().id();
            // Every rank needs a port.
            PeerAddress _ = id.prefill().above(context.tensorParallelSize() - 1);
            PeerAddress _ = id.decode().above(context.tensorParallelSize() - 1);
            // An instance with both roles has, for each request, that of the request's id.
            boolean sends = context.config().isProducer() && !self.equals(Optional.of(id.decode()));
            boolean receives = context.config().isConsumer() && !self.equals(Optional.of(id.prefill()));
            sends = sends && allowed(request, id.decode());
            receives = receives && allowed(request, id.prefill());
            requests.put(request.id(), new Tracked(found.get(), sends, receives));
        } catch (InvalidFieldException e) {
            counts.add("baton:p2p_bad_request_ids", 1);
            complaints.event(more -> log.warn("a request is computed here: {}{}", e.getMessage(), more));
        }
    }

    private boolean allowed(KvRequest request, PeerAddress peer) {
        if (settings.access().mayConnect(peer.host())) {
            return true;
        }
        counts.add("baton:p2p_refused_peers", 1);
        settings.access()
                .refuse(
                        peer.toString(),
                        "it is not an allowed peer, so the request that names it neither gets nor sends KV: "
                                + request.id());
        return false;
    }

    @Override
    public KvMatch match(KvRequest request, int computedTokens) {
        Tracked tracked = requests.get(request.id());
        int count = request.promptLength() - 1 - computedTokens;
        if (tracked == null || !tracked.receives || tracked.loaded || count <= 0) {
            return new KvMatch.None();
        }
        return new KvMatch.Tokens(count, true, reached.contains(tracked.id.id().prefill()));
    }

    @Override
    public void onAllocated(KvRequest request, int[] blockTable, int computedTokens, int externalTokens) {
        Tracked tracked = requests.get(request.id());
        if (tracked == null || externalTokens <= 0) {
            return;
        }
        int end = computedTokens + externalTokens;
        int[] blocks = Arrays.copyOfRange(blockTable, computedTokens / blockSize, Math.ceilDiv(end, blockSize));
        Load load = new Load(request.id(), tracked.id, computedTokens, end, blocks, digest(request));
        tracked.loaded = true;
        reached.loads(request.id(), tracked.id.id().prefill(), blocks);
        loads.add(load);
    }

    @Override
    public ConnectorMetadata buildMetadata(ScheduledStep step) {
        List<Save> saves = new ArrayList<>();
        for (ScheduledRequest scheduled : step.requests()) {
            KvRequest request = scheduled.request();
            Tracked tracked = requests.get(request.id());
            int prompt = request.promptLength();
            if (tracked != null
                    && tracked.sends
                    && !tracked.sent
                    && scheduled.computedTokens() + scheduled.scheduledTokens() >= prompt) {
                tracked.sent = true;
                int[] blocks = Arrays.copyOf(scheduled.blockTable(), Math.ceilDiv(prompt, blockSize));
                saves.add(new Save(request.id(), tracked.id, prompt, blocks, digest(request)));
            }
        }
        P2pNcclConnectorMetadata built = new P2pNcclConnectorMetadata(loads, saves, dropped, unwanted);
        loads.clear();
        dropped.clear();
        unwanted.clear();
        return built;
    }

    @Override
    public Release onFinished(KvRequest request, RequestEnd end, int[] blockTable) {
        Tracked tracked = requests.remove(request.id());
        reached.forget(request.id());
        if (tracked != null) {
            if (tracked.receives) {
                unwanted.add(tracked.id.shared());
            }
            boolean wanted = end == RequestEnd.LENGTH || end == RequestEnd.STOPPED;
            if (tracked.sends && !wanted) {
                dropped.add(tracked.id.shared());
            }
        }
        return Release.NOW;
    }

    @Override
    public boolean hasPendingWork() {
        return !dropped.isEmpty() || !unwanted.isEmpty() || !loads.isEmpty() || workersBusy;
    }

    @Override
    public void onStepDone(WorkerReport report) {
        workersBusy = report.busy();
        reached.learn(report);
    }

    @Override
    public List<Measurement> takeMeasurements() {
        return counts.take();
    }

    @Override
    public void close() {
        requests.clear();
    }

    /**
     * A digest of the properties that must be equal on both sides: model, layers, prompt, LoRA adapter and cache salt. Part of the wire
     * format.
     */
    private String digest(KvRequest request) {
        MessageDigest sha = Sha256.begin();
        String head = String.join(
                "\n",
                context.model().digest(),
                "layers=" + context.modelLayout().layers(),
                "lora=" + request.loraId().map(id -> id.length() + ":" + id).orElse(""),
                "salt="
                        + request.cacheSalt()
                                .map(salt -> salt.length() + ":" + salt)
                                .orElse(""),
                "");
        sha.update(head.getBytes(StandardCharsets.UTF_8));
        int[] tokens = request.tokens(0, request.promptLength());
        ByteBuffer bytes = ByteBuffer.allocate(tokens.length * Integer.BYTES);
        bytes.asIntBuffer().put(tokens);
        sha.update(bytes);
        return HexFormat.of().formatHex(sha.digest(), 0, 16);
    }
}
