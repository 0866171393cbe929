package baton.connectors.p2pnccl;

import baton.connectors.ConnectorRuntime;
import baton.connectors.p2pnccl.P2pNcclConnectorMetadata.Load;
import baton.connectors.p2pnccl.P2pNcclConnectorMetadata.Save;
import baton.kv.ConfigException;
import baton.kv.Deadline;
import baton.kv.KvCache;
import baton.kv.KvFence;
import baton.kv.KvMemory;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.HandshakeMetadata;
import baton.kv.connector.Measurement;
import baton.kv.connector.Rank;
import baton.kv.connector.WorkerConnector;
import baton.kv.connector.WorkerReport;
import baton.messages.PeerAddress;
import baton.messages.p2p.P2pMessage.Origin;
import baton.messages.p2p.P2pMessage.TensorHead;
import baton.messages.p2p.Registration;
import baton.pipe.p2p.P2pException;
import baton.pipe.p2p.P2pStats;
import baton.pipe.p2p.ProxyRegistration;
import baton.pipe.p2p.TensorExchange;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.locks.LockSupport;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The loads and saves of one rank, and its endpoint. A rank exchanges tensors with the same rank of another instance, at the port of the
 * request's id plus the rank.
 *
 * <p>Each load has a thread that copies layer after layer into the pool and then reports. Until then only this request uses its
 * blocks, so the load ends before anything else is written to them; a load that is not wanted any more ends at once, because its
 * tensors are refused.
 */
final class P2pNcclWorker implements WorkerConnector {
    private static final Logger log = LoggerFactory.getLogger(P2pNcclWorker.class);
    private static final Duration JOIN = Duration.ofSeconds(10);

    /** Nanoseconds between looks at tensors that are under way. */
    private static final long LOOK = 1_000_000;

    /** The digest of the last layer of a prompt with wrong KV: the load that takes it fails at once. */
    private static final String DISCARDED = "discarded";

    private final ConnectorContext context;
    private final P2pNcclSettings settings;
    private final Rank rank;
    private final TensorExchange endpoint;
    private final ThreadFactory threads;
    private final Optional<ProxyRegistration> registration;
    private final Set<Thread> loading = ConcurrentHashMap.newKeySet();
    private final Queue<Loaded> loaded = new ConcurrentLinkedQueue<>();
    private final List<Measurement> measurements = new ArrayList<>();
    private Optional<KvCache> cache = Optional.empty();
    private List<Save> saves = List.of();

    /** Requests of which, and peers to which, this step sends no more tensors. */
    private final Set<Object> givenUp = new HashSet<>();

    /** Passed when the layers so far of this step are in the pool. */
    private KvFence computed = KvFence.PASSED;

    /** Copies of this step from the pool. */
    private final List<KvFence> gathered = new ArrayList<>();

    /** Requests with wrong KV in this step. */
    private final Set<String> discarded = new HashSet<>();

    P2pNcclWorker(
            ConnectorContext context,
            P2pNcclSettings settings,
            Rank rank,
            TensorExchange endpoint,
            ConnectorRuntime runtime) {
        this.context = context;
        this.settings = settings;
        this.rank = rank;
        this.endpoint = endpoint;
        this.threads = runtime.threads();
        this.registration = settings.proxy()
                .filter(_ -> rank.equals(Rank.FIRST))
                .map(proxy -> ProxyRegistration.start(
                        runtime.peerChannel(),
                        proxy,
                        new Registration(
                                context.config().isProducer() ? Registration.Kind.PREFILL : Registration.Kind.DECODE,
                                settings.http().orElseThrow(),
                                endpoint.address())));
    }

    /** How a load ended. */
    private record Loaded(Load load, Optional<String> cause, boolean unverified, double seconds, long bytes) {}

    @Override
    public void register(KvCache pool) {
        cache = Optional.of(pool);
        boolean reached =
                endpoint.prepare(context.config().isProducer(), context.config().isConsumer(), pool.memory());
        if (!reached && pool.memory() instanceof KvMemory.Device device) {
            throw new ConfigException(
                    "kv_buffer_device",
                    "is %s, but transport=%s does not reach memory of %s: it must be cpu"
                            .formatted(context.config().bufferDevice(), settings.transport(), device.device()));
        }
    }

    @Override
    public Optional<HandshakeMetadata> handshakeMetadata() {
        return Optional.of(new P2pNcclScheduler.Listening(endpoint.address()));
    }

    @Override
    public void startLoad(ConnectorMetadata metadata) {
        givenUp.clear();
        discarded.clear();
        saves = List.of();
        if (metadata instanceof P2pNcclConnectorMetadata step) {
            saves = step.saves();
            step.dropped().forEach(endpoint::dropUnsent);
            step.loads().forEach(this::start);
            // Last, so that a load of a request that has ended meanwhile ends too.
            step.unwanted().forEach(endpoint::forget);
        }
    }

    private void start(Load load) {
        Thread thread = threads.newThread(() -> load(load));
        thread.setName("p2p-load-" + load.requestId());
        loading.add(thread);
        thread.start();
    }

    private void load(Load load) {
        long start = context.ticker().nanos();
        Deadline deadline = Deadline.after(context.ticker(), settings.load());
        Optional<String> cause = Optional.of("internal");
        long bytes = 0;
        boolean unverified = false;
        try {
            PeerAddress peer = load.id().id().prefill().above(rank.tensor());
            KvCache pool = pool();
            Optional<String> problem = Optional.empty();
            for (int layer = 0; layer < pool.layerNames().size() && problem.isEmpty(); layer++) {
                String tensorId = load.id().tensorId(pool.layerNames().get(layer));
                try (TensorExchange.Received tensor = endpoint.receive(peer, tensorId, deadline.remaining())) {
                    problem = take(load, pool, layer, tensor);
                    bytes += tensor.data().byteSize();
                    unverified |= tensor.head().origin().isEmpty();
                }
            }
            // Only here, so that a load counts as failed whatever is thrown.
            cause = problem;
        } catch (P2pException e) {
            cause = Optional.of(e.fault().label());
            if (e.fault() != P2pException.Fault.CANCELLED) {
                log.warn("request {}: loading its KV failed: {}", load.requestId(), e.getMessage());
            }
        } catch (RuntimeException | Error e) {
            log.error("request {}: loading its KV failed", load.requestId(), e);
        } finally {
            // Other tensors of the request, and later ones, are of no use.
            endpoint.forget(load.id().shared());
            loaded.add(new Loaded(load, cause, unverified, (context.ticker().nanos() - start) / 1e9, bytes));
            loading.remove(Thread.currentThread());
            context.wake().run();
        }
    }

    /** @return the problem for which the tensor was refused */
    private Optional<String> take(Load load, KvCache pool, int layer, TensorExchange.Received tensor) {
        Optional<String[]> problem = PromptTensor.problem(
                tensor.head(),
                pool.layout(),
                load.endToken(),
                origin(load.digest()),
                settings.access().secret().isPresent());
        if (problem.isPresent()) {
            log.warn(
                    "request {}: the KV of {} cannot be used: {}",
                    load.requestId(),
                    pool.layerNames().get(layer),
                    problem.get()[1]);
            return Optional.of(problem.get()[0]);
        }
        PromptTensor.scatter(
                tensor.head(), tensor.data(), pool, layer, load.blocks(), load.firstToken(), load.endToken());
        return Optional.empty();
    }

    @Override
    public void saveLayer(int layer) {
        saveLayer(layer, KvFence.PASSED);
    }

    /** The last layer waits for {@link #waitForSave}, as a load is complete with it. */
    @Override
    public void saveLayer(int layer, KvFence inPool) {
        computed = inPool;
        if (layer < pool().layerNames().size() - 1) {
            send(layer);
        }
    }

    @Override
    public void discardSaves(Set<String> requestIds) {
        discarded.addAll(requestIds);
    }

    @Override
    public void waitForSave() {
        if (!saves.isEmpty()) {
            send(pool().layerNames().size() - 1);
        }
        gathered.forEach(KvFence::await);
        gathered.clear();
        saves = List.of();
        discarded.clear();
    }

    private void send(int layer) {
        for (Save save : saves) {
            PeerAddress peer = save.id().id().decode().above(rank.tensor());
            if (givenUp.contains(save.requestId()) || givenUp.contains(peer)) {
                continue;
            }
            KvCache pool = pool();
            String tensorId = save.id().tensorId(pool.layerNames().get(layer));
            String digest = discarded.contains(save.requestId()) ? DISCARDED : save.digest();
            TensorHead head = pool.memory() instanceof KvMemory.Device
                    ? PromptTensor.headOfTokens(pool.layout(), save.tokens(), origin(digest))
                    : PromptTensor.head(pool.layout(), save.blocks().length, origin(digest));
            try {
                endpoint.send(peer, tensorId, head, data -> {
                    gathered.add(PromptTensor.gather(pool, layer, save.blocks(), save.tokens(), data, computed));
                    return gathered.getLast();
                });
            } catch (P2pException e) {
                giveUp(save, peer, e);
            }
        }
    }

    /** A step waits at most once for a peer. A tensor that was refused without a wait is no reason to give up the peer. */
    private void giveUp(Save save, PeerAddress peer, P2pException e) {
        givenUp.add(save.requestId());
        if (e.fault() != P2pException.Fault.GIVEN_UP) {
            givenUp.add(peer);
        }
        endpoint.dropUnsent(save.id().shared());
        measurements.add(Measurement.count(
                "baton:kv_save_failures", 1, "cause", e.fault().label()));
        log.warn("request {}: its KV is not sent to {}: {}", save.requestId(), peer, e.getMessage());
    }

    private Origin origin(String digest) {
        return new Origin(context.tensorParallelSize(), digest);
    }

    @Override
    public WorkerReport report(Set<String> finished) {
        // Before the counters are read: tensors that are sent later are in the next report.
        boolean busy = !loading.isEmpty() || endpoint.isSending();
        Set<String> received = new HashSet<>();
        Set<Integer> invalid = new HashSet<>();
        Set<String> unverified = new HashSet<>();
        List<Measurement> taken = new ArrayList<>(measurements);
        measurements.clear();
        for (Loaded done = loaded.poll(); done != null; done = loaded.poll()) {
            received.add(done.load.requestId());
            if (done.unverified) {
                unverified.add(done.load.requestId());
            }
            if (done.cause.isPresent()) {
                for (int block : done.load.blocks()) {
                    invalid.add(block);
                }
                taken.add(Measurement.count("baton:kv_load_failures", 1, "cause", done.cause.get()));
            } else {
                taken.add(Measurement.count("baton:kv_load_bytes", done.bytes));
                taken.add(Measurement.seconds("baton:kv_load", done.seconds));
                taken.add(Measurement.bytes("baton:p2p_buffer_use", endpoint.heldBytes()));
            }
        }
        P2pStats stats = endpoint.stats();
        for (P2pStats.Count count : P2pStats.Count.values()) {
            long value = stats.take(count);
            if (value > 0) {
                taken.add(Measurement.count("baton:p2p_" + count.name().toLowerCase(Locale.ROOT), value));
            }
        }
        return new WorkerReport(Set.of(), received, invalid, taken, busy).withUnverified(unverified);
    }

    private KvCache pool() {
        return cache.orElseThrow(() -> new IllegalStateException("register must come first"));
    }

    /** Returns when no thread uses the pool any more, and its device has no tensors. */
    @Override
    public void close() {
        registration.ifPresent(ProxyRegistration::close);
        endpoint.close();
        Deadline deadline = Deadline.after(context.ticker(), JOIN);
        boolean onDevice =
                cache.filter(pool -> pool.memory() instanceof KvMemory.Device).isPresent();
        while (onDevice && (endpoint.isSending() || endpoint.heldBytes() > 0) && !deadline.isOver()) {
            LockSupport.parkNanos(LOOK);
        }
        if (onDevice && (endpoint.isSending() || endpoint.heldBytes() > 0)) {
            log.warn("tensors in memory of the device are still in use");
        }
        for (Thread thread : loading) {
            try {
                if (!thread.join(deadline.remaining())) {
                    log.warn("{} has not ended in time", thread.getName());
                }
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                return;
            }
        }
    }
}
