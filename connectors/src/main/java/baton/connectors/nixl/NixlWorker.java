package baton.connectors.nixl;

import baton.connectors.ConnectorRuntime;
import baton.connectors.onesided.BlockChecksums;
import baton.connectors.onesided.BlockInterior;
import baton.connectors.onesided.LayerRegions;
import baton.connectors.onesided.LeaseTable;
import baton.connectors.onesided.LoadRequest;
import baton.connectors.onesided.LoadTable;
import baton.connectors.onesided.Outbox;
import baton.connectors.onesided.PeerDirectory;
import baton.connectors.onesided.PeerHandshake;
import baton.connectors.onesided.PeerNotification;
import baton.connectors.onesided.PeerNotification.Completion;
import baton.connectors.onesided.PeerNotification.Heartbeat;
import baton.connectors.onesided.PeerNotification.PushAccepted;
import baton.connectors.onesided.PeerNotification.PushCancel;
import baton.connectors.onesided.PeerNotification.PushDone;
import baton.connectors.onesided.PeerNotification.PushFailed;
import baton.connectors.onesided.PeerNotification.PushOver;
import baton.connectors.onesided.PeerNotification.PushPart;
import baton.connectors.onesided.PeerNotification.PushRegistration;
import baton.connectors.onesided.PullLoads;
import baton.connectors.onesided.PushSender;
import baton.connectors.onesided.RankContext;
import baton.connectors.onesided.RankInfo;
import baton.connectors.onesided.TransferMode;
import baton.connectors.onesided.TransferStats;
import baton.kv.Bursts;
import baton.kv.ComputedLayers;
import baton.kv.ConfigException;
import baton.kv.InvalidFieldException;
import baton.kv.KvCache;
import baton.kv.KvDigest;
import baton.kv.KvFence;
import baton.kv.KvMemory;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.HandshakeMetadata;
import baton.kv.connector.Measurement;
import baton.kv.connector.Rank;
import baton.kv.connector.WorkerConnector;
import baton.kv.connector.WorkerReport;
import baton.transfer.Region;
import baton.transfer.TransferAgent;
import baton.transfer.TransferAgent.Notification;
import baton.transfer.TransferException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.Set;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/*
 * Which side moves the bytes is decided by each load's reference.
 *
 * Reader: PullLoads. A load reads the blocks, or registers a push, and compares them with the owner's checksums; however it ends, the
 * owner gets a completion. Owner of blocks that are read: LeaseTable. Owner of blocks that are pushed: PushSender.
 *
 * The pool is registered so that peers write to it with a permit only, where the agent has permits (NIXL has none).
 */

/** One rank's side of the connector: dispatches steps and notifications to the parts that move blocks. */
final class NixlWorker implements WorkerConnector {
    private static final Logger log = LoggerFactory.getLogger(NixlWorker.class);

    /** Prefix of vLLM's metrics. */
    private static final String METRICS = "vllm:nixl_";

    private static final String LABEL = "NIXL";

    private final ConnectorContext context;
    private final NixlSettings settings;
    private final ConnectorRuntime runtime;
    private final PeerHandshake handshake;
    private final Rank rank;
    private final TransferMode mode;
    private final TransferStats stats;
    /** Limits the log lines about notifications, as a peer may send many. */
    private final Bursts complaints;
    /** Bytes of peers' memory that were mapped when that was last reported. */
    private long reportedMapped;

    private @Nullable Parts parts;
    private Optional<BlockChecksums.Batch> completing = Optional.empty();
    /** Layers of this step that are being computed. */
    private final ComputedLayers computing = new ComputedLayers();

    /** When the step was computed, if it completed blocks that peers read. */
    private OptionalLong computed = OptionalLong.empty();

    /** The state that exists once the pool is registered. */
    private record Parts(
            RankContext context,
            ConnectorRuntime.Memory checksumMemory,
            BlockChecksums checksums,
            PeerDirectory peers,
            Outbox outbox,
            PushSender pushes,
            LeaseTable leases,
            PullLoads loads) {
        private static Parts of(RankContext context, ConnectorRuntime.Memory memory) {
            KvCache cache = context.cache();
            BlockChecksums checksums = new BlockChecksums(
                    memory.region().memory(), cache, context.self().digest());
            PeerDirectory peers = new PeerDirectory(context);
            Outbox outbox = new Outbox(context, peers);
            PushSender pushes = new PushSender(context, peers, checksums);
            return new Parts(
                    context,
                    memory,
                    checksums,
                    peers,
                    outbox,
                    pushes,
                    new LeaseTable(context, pushes),
                    new PullLoads(context, peers, outbox));
        }
    }

    /**
     * @param handshake with peers
     * @param mode of vLLM's connector of the same name
     */
    NixlWorker(
            ConnectorContext context,
            NixlSettings settings,
            ConnectorRuntime runtime,
            PeerHandshake handshake,
            Rank rank,
            TransferMode mode) {
        this.mode = mode;
        this.context = context;
        this.settings = settings;
        this.runtime = runtime;
        this.handshake = handshake;
        this.rank = rank;
        this.stats = new TransferStats(METRICS, LABEL, true, context.ticker().nanos());
        this.complaints = new Bursts(1, Duration.ofSeconds(10), context.ticker());
    }

    @Override
    public void register(KvCache cache) {
        TransferAgent agent = TransferAgent.reaching(
                cache.memory(), runtime.transferAgent(settings.agent(), settings.host(), settings.access()));
        agent.onProgress(context.wake());
        KvDigest digest =
                settings.digest().orElse(cache.memory() instanceof KvMemory.Device ? KvDigest.SUM61 : KvDigest.CRC32C);
        ConnectorRuntime.Memory checksums =
                runtime.allocate(cache.blocks() * BlockChecksums.entryBytes(cache.layout(), digest), "block checksums");
        try {
            // Closing the agent ends these registrations.
            TransferAgent.Registration _ = agent.register(new Region(cache.memory(), true));
            // No peer ever gets a permit to write here.
            TransferAgent.Registration _ = agent.register(checksums.region().withPermitsOnly());
        } catch (TransferException e) {
            agent.close();
            checksums.close();
            throw new ConfigException("kv_connector", "the KV pool cannot be registered: " + e.getMessage(), e);
        }
        RankInfo info = new RankInfo(
                context.config().engineId(),
                Compatibility.hash(context),
                settings.vllm()
                        .map(vllm -> vllm.hashes(context.modelLayout(), mode))
                        .orElse(List.of()),
                context.model().digest(),
                rank,
                context.tensorParallelSize(),
                context.pipelineParallelSize(),
                agent.metadata(),
                cache.layout(),
                context.modelLayout().kvHeads(),
                LayerRegions.ofPool(cache.memory(), cache.layout()),
                // Regions of several groups have no names.
                context.groups().size() == 1 ? cache.layerNames() : List.of(),
                BlockInterior.HEADS,
                1,
                cache.blocks(),
                Optional.of(new BlockChecksums.Table(digest, checksums.region().address())),
                Optional.empty());
        RankContext shared = new RankContext(
                info,
                cache,
                agent,
                runtime,
                handshake,
                new NixlNotification(),
                settings.oneSided(),
                stats,
                context.ticker(),
                context.wake());
        Parts made = Parts.of(shared, checksums);
        parts = made;
        made.peers().connectAhead(settings.peers(), now());
    }

    @Override
    public Optional<HandshakeMetadata> handshakeMetadata() {
        return Optional.of(parts().context().self());
    }

    @Override
    public void startLoad(ConnectorMetadata metadata) {
        computing.drop();
        if (!(metadata instanceof NixlConnectorMetadata step)) {
            return;
        }
        long now = now();
        Parts own = parts();
        for (NixlConnectorMetadata.Opened opened : step.opened()) {
            own.checksums().open(opened.block(), opened.generation());
        }
        completing = step.completed().length == 0
                ? Optional.empty()
                : Optional.of(own.checksums().begin(step.completed()));
        for (NixlConnectorMetadata.Lease lease : step.leases()) {
            own.leases().open(lease.requestId(), now + lease.nanos());
        }
        own.loads().sideChannelPort(step.port());
        own.pushes().begin(step.progress(), step.preempted());
        step.abandoned().forEach(id -> own.leases().abandon(id, now));
        for (LoadRequest load : step.loads()) {
            own.loads().start(load, now);
        }
        step.cancelled().forEach(own.loads()::cancel);
        step.heartbeats().forEach(reference -> own.outbox().heartbeat(reference, now));
        step.unused().forEach(reference -> own.outbox().completion(reference, now));
        work();
    }

    @Override
    public void saveLayer(int layer, KvFence computed) {
        computing.add(layer, computed);
        computing.take(this::saveLayer);
    }

    @Override
    public void saveLayer(int layer) {
        PushSender pushes = parts().pushes();
        if (pushes.isFed()) {
            // A push that is registered after the step has begun need not wait for the step's end.
            takeNotifications(now());
            if (pushes.isBusy()) {
                work();
                pushes.layerIsDone(layer);
            }
        }
        if (context.groups().size() == 1) {
            completing.ifPresent(blocks -> blocks.complete(layer));
        }
    }

    @Override
    public void discardSaves(Set<String> requestIds) {
        parts().pushes().restart(requestIds);
    }

    @Override
    public void waitForSave() {
        computing.await(this::saveLayer);
        writeChecksums();
        parts().pushes().stepIsDone();
    }

    @Override
    public WorkerReport report(Set<String> finished) {
        computing.drop();
        // Also after a step that failed: blocks that were complete before it stay so.
        writeChecksums();
        work();
        long now = now();
        Parts own = parts();
        LoadTable.Finished loaded = own.loads().takeFinished(now);
        // Requests with a lease got it with this step's metadata.
        own.leases().finished(finished);
        Set<String> sent = own.leases().release(now);
        measure(now);
        boolean busy = !own.loads().isEmpty()
                || !own.outbox().isEmpty()
                || !own.leases().isEmpty()
                || own.pushes().isBusy()
                || own.peers().isPending();
        return new WorkerReport(sent, loaded.received(), loaded.invalid(), stats.take(), busy)
                .withUnverified(loaded.unverified());
    }

    private void measure(long now) {
        computed.ifPresent(since -> stats.handover("seal", Duration.ofNanos(now() - since)));
        computed = OptionalLong.empty();
        stats.log(now);
        long mapped = parts().context().agent().mappedPeerBytes();
        if (mapped != reportedMapped) {
            reportedMapped = mapped;
            stats.add(Measurement.gauge(
                    "baton:kv_peer_memory_mapped_bytes", mapped, "rank", rank.pipeline() + "." + rank.tensor()));
        }
        settings.access().takeRefusedMeasurement().ifPresent(stats::add);
    }

    private void writeChecksums() {
        completing.ifPresent(blocks -> {
            computed = OptionalLong.of(now());
            blocks.finish();
        });
        completing = Optional.empty();
    }

    private void work() {
        long now = now();
        Parts own = parts();
        takeNotifications(now);
        own.peers().poll(now);
        own.loads().advance(now);
        own.pushes().advance(now);
        own.pushes()
                .takeWritten()
                .forEach(push -> own.leases().completePushEarly(push.completion(), push.agent(), now));
        own.outbox().send(now);
        own.peers().closeUnused(now);
    }

    private void takeNotifications(long now) {
        RankContext shared = parts().context();
        for (Notification notification : shared.agent().takeNotifications()) {
            try {
                take(shared.codec().read(notification.message()), notification, now);
            } catch (InvalidFieldException e) {
                complaints.event(more ->
                        log.warn("A notification of {} is dropped: {}{}", notification.from(), e.getMessage(), more));
                stats.count("baton:kv_unknown_notifications");
            }
        }
    }

    private void take(PeerNotification notification, Notification raw, long now) {
        String from = raw.from();
        Parts own = parts();
        switch (notification) {
            case Heartbeat(List<String> ids) -> own.leases().extend(ids, from, now);
            case Completion completion -> {
                // A vLLM peer's end of a push has the same form, and may name the request by the common part of both
                // legs' ids.
                if (!own.leases().complete(completion, from)
                        && !own.loads().onCompletion(completion, from)
                        && !own.leases().completePush(completion, from)) {
                    own.leases().unknown(from, text(raw));
                }
            }
            case PushOver(Completion completion) -> own.leases().completePushEarly(completion, from, now);
            case PushRegistration registration -> own.pushes().register(registration, from);
            case PushCancel(String attempt) -> own.pushes().cancel(attempt, from);
            case PushAccepted(String attempt) -> own.loads().onAccepted(attempt, from);
            case PushPart part -> own.loads().onPart(part, from);
            case PushDone done -> {
                if (!own.loads().onDone(done, from)) {
                    endedAlready(done.attempt(), raw);
                }
            }
            case PushFailed failed -> {
                if (!own.loads().onFailed(failed, from)) {
                    endedAlready(failed.attempt(), raw);
                }
            }
        }
    }

    /** An attempt with a permit may end twice, and cannot be written to once its permit is closed. Without a permit it could be. */
    private void endedAlready(String attempt, Notification raw) {
        if (PushRegistration.hasPermit(attempt)) {
            log.debug("{} notifies the end of a push that is over: {}", raw.from(), attempt);
        } else {
            parts().leases().unknown(raw.from(), text(raw));
        }
    }

    private static String text(Notification raw) {
        return new String(raw.message(), StandardCharsets.UTF_8);
    }

    @Override
    public void close() {
        Parts last = parts;
        parts = null;
        if (last == null) {
            return;
        }
        last.context().agent().close();
        last.loads().close();
        last.peers().close();
        last.checksumMemory().close();
    }

    private Parts parts() {
        return Objects.requireNonNull(parts, "no pool is registered");
    }

    private long now() {
        return context.ticker().nanos();
    }
}
