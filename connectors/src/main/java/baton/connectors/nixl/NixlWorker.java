package baton.connectors.nixl;

import baton.connectors.nixl.RemoteEngine.RemoteRank;
import baton.kv.ConfigException;
import baton.kv.KvCache;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.HandshakeMetadata;
import baton.kv.connector.Rank;
import baton.kv.connector.WorkerConnector;
import baton.kv.connector.WorkerReport;
import baton.transfer.Region;
import baton.transfer.TransferAgent;
import baton.transfer.TransferAgent.Notification;
import baton.transfer.TransferAgent.Peer;
import baton.transfer.TransferAgent.Registration;
import baton.transfer.TransferException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.Set;
import java.util.stream.Collectors;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/*
 * Reading: a load (Pull) waits for the handshake with the owner of the blocks, copies them, then copies their seals, then compares.
 * Each of these has a deadline. However it ends, the load is reported as received, what is not as it must be as invalid, and the
 * owner hears that its blocks are free. Nothing is reported while a transfer may still write here.
 *
 * Being read: the blocks of a finished request are held until all ranks that read them have said that they did, until the lease is
 * over, or until those who wanted them are gone. Who cannot be heard of any more cannot read.
 *
 * Messages: "<request>:<tensor parallel size of the reader>" when the reader is done; "HB:<request>,<request>" while it is not.
 */

/** One rank's transfers. */
final class NixlWorker implements WorkerConnector {
    private static final Logger log = LoggerFactory.getLogger(NixlWorker.class);

    static final String HEARTBEAT = "HB:";

    /** References whose owners are still to be told something; more are not kept. */
    private static final int MOST_MESSAGES = 10_000;

    private final ConnectorContext context;
    private final NixlSettings settings;
    private final Fabric fabric;
    private final Rank rank;
    private final TransferStats stats;

    private @Nullable Pool pool;

    private final Map<NixlSettings.Address, RemoteEngine> engines = new LinkedHashMap<>();
    /** Replaced by a later handshake, or given up; closed when no load uses them and their handshakes are over. */
    private final List<RemoteEngine> retired = new ArrayList<>();

    private final Map<String, Pull> pulls = new LinkedHashMap<>();
    private final List<Message> messages = new ArrayList<>();
    private final Map<String, Held> held = new LinkedHashMap<>();
    private int[] toSeal = {};

    /** What there is once the pool is known. */
    private record Pool(
            KvCache cache,
            TransferAgent agent,
            Registration registration,
            Fabric.Memory sealMemory,
            Registration sealRegistration,
            Seals seals,
            RankInfo info) {}

    /** Something to tell an owner as soon as we are connected. */
    private record Message(Reference about, boolean heartbeat, long since, long deadline) {}

    /** Blocks that others may read. */
    private static final class Held {
        private long until;
        /** Readers that are done. */
        private final Set<String> done = new HashSet<>();
        /** Readers that have given a sign of life. */
        private final Set<String> wantedBy = new HashSet<>();

        private Held(long until) {
            this.until = until;
        }
    }

    NixlWorker(ConnectorContext context, NixlSettings settings, Fabric fabric, Rank rank) {
        this.context = context;
        this.settings = settings;
        this.fabric = fabric;
        this.rank = rank;
        this.stats = new TransferStats(context.ticker().nanos());
    }

    @Override
    public void register(KvCache cache) {
        TransferAgent agent = fabric.agent(settings);
        Fabric.Memory sealMemory =
                fabric.allocate(cache.blocks() * Seals.entryBytes(cache.layout().kvHeads()));
        try {
            Registration registration = agent.register(new Region(cache.memory(), Optional.empty()));
            Registration sealRegistration = agent.register(sealMemory.region());
            RankInfo info = new RankInfo(
                    context.config().engineId(),
                    Compatibility.hash(context),
                    rank,
                    context.tensorParallelSize(),
                    context.pipelineParallelSize(),
                    agent.metadata(),
                    cache.layout(),
                    context.modelLayout().kvHeads(),
                    cache.memory().address(),
                    cache.blocks(),
                    OptionalLong.of(sealMemory.region().memory().address()),
                    Optional.empty());
            pool = new Pool(
                    cache,
                    agent,
                    registration,
                    sealMemory,
                    sealRegistration,
                    new Seals(sealMemory.region().memory(), cache.memory(), cache.layout()),
                    info);
        } catch (TransferException e) {
            agent.close();
            sealMemory.close();
            throw new ConfigException("kv_connector", "the KV pool cannot be registered: " + e.getMessage(), e);
        }
        long now = now();
        for (NixlSettings.Address peer : settings.peers()) {
            engines.put(peer, meet(peer, Optional.empty(), now));
        }
    }

    @Override
    public Optional<HandshakeMetadata> handshakeMetadata() {
        return Optional.of(pool().info());
    }

    // ---- the step

    @Override
    public void startLoad(ConnectorMetadata metadata) {
        if (!(metadata instanceof NixlStep step)) {
            return;
        }
        long now = now();
        for (NixlStep.Opened opened : step.opened()) {
            pool().seals().open(opened.block(), opened.generation());
        }
        toSeal = step.sealed();
        for (NixlStep.Lease lease : step.leases()) {
            held.put(lease.requestId(), new Held(now + lease.nanos()));
        }
        for (NixlStep.Load load : step.loads()) {
            pulls.put(load.requestId(), new Pull(load, now));
        }
        for (String cancelled : step.cancelled()) {
            Pull pull = pulls.get(cancelled);
            if (pull != null) {
                pull.cancel();
            }
        }
        step.heartbeats().forEach(reference -> queue(reference, true, now));
        step.unused().forEach(reference -> queue(reference, false, now));
        work();
    }

    @Override
    public void waitForSave() {
        seal();
    }

    @Override
    public WorkerReport report(Set<String> finished) {
        // Also after a step that failed: what was complete before it stays so.
        seal();
        work();
        long now = now();
        Set<String> received = new LinkedHashSet<>();
        Set<Integer> invalid = new LinkedHashSet<>();
        for (Iterator<Pull> all = pulls.values().iterator(); all.hasNext(); ) {
            Pull pull = all.next();
            if (pull.isOver()) {
                all.remove();
                received.add(pull.load.requestId());
                invalid.addAll(pull.invalid);
                pull.settle(now);
            }
        }
        Set<String> sent = release(now);
        stats.log(now);
        boolean busy = !pulls.isEmpty()
                || !messages.isEmpty()
                || !held.isEmpty()
                || engines.values().stream().anyMatch(RemoteEngine::isPending);
        return new WorkerReport(sent, received, invalid, stats.take(), busy);
    }

    private void seal() {
        for (int block : toSeal) {
            pool().seals().seal(block);
        }
        toSeal = new int[0];
    }

    private void work() {
        long now = now();
        for (Notification notification : pool().agent().takeNotifications()) {
            take(notification, now);
        }
        engines.values().forEach(engine -> engine.poll(now));
        boolean moved = true;
        while (moved) {
            moved = false;
            for (Pull pull : pulls.values()) {
                moved |= pull.advance(now);
            }
        }
        sendMessages(now);
        forgetEngines(now);
    }

    // ---- being read

    private void take(Notification notification, long now) {
        String text = new String(notification.message(), StandardCharsets.UTF_8);
        if (text.startsWith(HEARTBEAT)) {
            for (String id : text.substring(HEARTBEAT.length()).split(",")) {
                Held lease = held.get(id);
                if (lease != null) {
                    long extended = now + settings.leaseExtension().toNanos();
                    lease.until = extended - lease.until > 0 ? extended : lease.until;
                    lease.wantedBy.add(notification.from());
                }
            }
            return;
        }
        int colon = text.lastIndexOf(':');
        Held lease = colon > 0 ? held.get(text.substring(0, colon)) : null;
        int readers = colon > 0 ? parallelSize(text.substring(colon + 1)) : 0;
        if (lease == null || readers == 0) {
            log.warn(
                    "Potentially invalid KV blocks for unrecognized request {} were retrieved by {}. They may have expired.",
                    text.length() <= 200 ? text : text.substring(0, 200),
                    notification.from());
            stats.count("baton:kv_unknown_notifications");
            return;
        }
        lease.done.add(notification.from());
        if (lease.done.size() >= Math.max(1, readers / context.tensorParallelSize())) {
            lease.until = now;
            lease.wantedBy.clear();
            released.add(text.substring(0, colon));
            held.remove(text.substring(0, colon));
        }
    }

    private final Set<String> released = new LinkedHashSet<>();

    private static int parallelSize(String text) {
        try {
            int size = Integer.parseInt(text);
            return size > 0 ? size : 0;
        } catch (NumberFormatException e) {
            return 0;
        }
    }

    /** Requests whose blocks nobody needs any more. */
    private Set<String> release(long now) {
        Set<String> sent = new LinkedHashSet<>(released);
        released.clear();
        for (Iterator<Map.Entry<String, Held>> all = held.entrySet().iterator(); all.hasNext(); ) {
            Map.Entry<String, Held> each = all.next();
            Held lease = each.getValue();
            boolean orphaned = !lease.wantedBy.isEmpty()
                    && lease.wantedBy.stream().allMatch(pool().agent()::isGone);
            if (orphaned) {
                log.warn(
                        "Releasing KV blocks for request {}: {}, which wanted them, is gone.",
                        each.getKey(),
                        String.join(", ", lease.wantedBy));
                stats.count("baton:kv_orphaned_leases");
            } else if (now - lease.until >= 0) {
                log.warn(
                        "Releasing expired KV blocks for request {} which were retrieved by {} remote worker(s) before lease expired.",
                        each.getKey(),
                        lease.done.size());
                stats.count("vllm:nixl_num_kv_expired_reqs");
            } else {
                continue;
            }
            sent.add(each.getKey());
            all.remove();
        }
        return sent;
    }

    // ---- peers

    private RemoteEngine meet(NixlSettings.Address address, Optional<Integer> tensorParallelSize, long now) {
        return RemoteEngine.meet(address, tensorParallelSize, pool().info(), settings, fabric, pool().agent(), now);
    }

    /** The owner of the reference: met anew if it is not the one we know, or gone, and was met before {@code since}. */
    private RemoteEngine engine(Reference reference, long since, long now) {
        NixlSettings.Address address = new NixlSettings.Address(reference.host(), reference.port());
        RemoteEngine known = engines.get(address);
        if (known != null
                && (known.isPending()
                        || known.started() - since >= 0
                        || (known.isConnected() && known.isOwnerOf(reference)))) {
            return known;
        }
        RemoteEngine met = meet(address, Optional.of(reference.tensorParallelSize()), now);
        met.poll(now);
        engines.put(address, met);
        if (known != null) {
            retired.add(known);
        }
        return met;
    }

    private void forgetEngines(long now) {
        long ttl = settings.engineTtl().toNanos();
        for (Iterator<RemoteEngine> all = engines.values().iterator(); all.hasNext(); ) {
            RemoteEngine engine = all.next();
            boolean idle = ttl > 0 && !engine.isPending() && now - engine.lastUsed() >= ttl;
            if (!engine.isUsed() && (idle || (engine.failure().isPresent() && now - engine.lastUsed() > 0))) {
                all.remove();
                retired.add(engine);
            }
        }
        retired.removeIf(engine -> {
            if (engine.isUsed() || engine.isAbandoned()) {
                return false;
            }
            engine.poll(now);
            if (engine.isPending()) {
                return false;
            }
            engine.close(peersInUse());
            return true;
        });
    }

    private List<Peer> peersInUse() {
        return engines.values().stream()
                .flatMap(engine -> engine.ranks().stream())
                .map(RemoteRank::peer)
                .toList();
    }

    private void queue(Reference about, boolean heartbeat, long now) {
        if (messages.size() < MOST_MESSAGES) {
            messages.add(new Message(
                    about,
                    heartbeat,
                    now,
                    now + settings.handshakeTimeout().multipliedBy(2).toNanos()));
        }
    }

    private void sendMessages(long now) {
        Map<RemoteEngine, List<String>> beats = new LinkedHashMap<>();
        for (Iterator<Message> all = messages.iterator(); all.hasNext(); ) {
            Message message = all.next();
            RemoteEngine engine = engine(message.about(), message.since(), now);
            if (engine.isPending() && now - message.deadline() < 0) {
                continue;
            }
            all.remove();
            if (engine.isConnected()
                    && engine.isOwnerOf(message.about())
                    && engine.hasSigned(message.about())) {
                if (message.heartbeat()) {
                    beats.computeIfAbsent(engine, _ -> new ArrayList<>())
                            .add(message.about().requestId());
                } else {
                    tell(engine, message.about().requestId() + ":" + context.tensorParallelSize());
                }
            }
        }
        beats.forEach((engine, ids) -> tell(engine, HEARTBEAT + String.join(",", ids)));
    }

    private void tell(RemoteEngine engine, String text) {
        for (RemoteRank remote : engine.ranks()) {
            try {
                pool().agent().notify(remote.peer(), text.getBytes(StandardCharsets.UTF_8));
            } catch (TransferException e) {
                stats.count("vllm:nixl_num_failed_notifications");
                failure("notification_failed", e.getMessage(), Map.of("to", remote.peer().name(), "message", text));
            }
        }
    }

    private void failure(String type, @Nullable String message, Map<String, Object> about) {
        log.warn(
                "NIXL transfer failure: {}. {} | Context: {}",
                type,
                message,
                new java.util.TreeMap<>(about).entrySet().stream()
                        .map(entry -> entry.getKey() + "=" + entry.getValue())
                        .collect(Collectors.joining(", ", "{", "}")));
    }

    // ---- reading

    private final class Pull {
        private final NixlStep.Load load;
        private final long since;
        private final long deadline;
        private Optional<RemoteEngine> engine = Optional.empty();
        private Optional<PullTransfers> transfers = Optional.empty();
        private boolean cancelled;
        private boolean over;
        private boolean ownerKnows;
        private final Set<Integer> invalid = new LinkedHashSet<>();

        private Pull(NixlStep.Load load, long now) {
            this.load = load;
            this.since = now;
            this.deadline = now + settings.transferTimeout().toNanos();
        }

        private boolean isOver() {
            return over;
        }

        private void cancel() {
            cancelled = true;
            transfers.ifPresent(PullTransfers::cancel);
        }

        /** True if it has come further. */
        private boolean advance(long now) {
            if (over) {
                return false;
            }
            return transfers.isEmpty() ? connect(now) : transfer(transfers.get(), now);
        }

        private boolean connect(long now) {
            if (cancelled) {
                // Nothing was read, but the owner waits to hear of it.
                queue(load.source(), false, since);
                ownerKnows = true;
                over = true;
                return true;
            }
            RemoteEngine owner = engine(load.source(), since, now);
            if (owner.isPending()) {
                if (now - deadline >= 0) {
                    fail("handshake_failed", "no handshake in time", now);
                    return true;
                }
                return false;
            }
            if (owner.failure().isPresent()) {
                ownerKnows = true;
                fail("handshake_failed", owner.failure().get(), now);
            } else if (!owner.isConnected()) {
                ownerKnows = true;
                fail("handshake_failed", "the peer is gone", now);
            } else if (!owner.isOwnerOf(load.source())) {
                ownerKnows = true;
                reject(Rejection.STALE, "the peer at " + owner.address() + " is another instance, or in another life");
            } else if (!owner.hasSigned(load.source())) {
                ownerKnows = true;
                reject(Rejection.FORGED, "the reference is not as its owner made it");
            } else {
                begin(owner, now);
            }
            return true;
        }

        private void begin(RemoteEngine owner, long now) {
            engine = Optional.of(owner);
            owner.use(now);
            BlockMap map = new BlockMap(
                    load,
                    pool().info(),
                    owner.ranks().stream().map(RemoteRank::info).toList());
            Optional<Rejection> wrong = map.wrong();
            if (wrong.isPresent()) {
                reject(wrong.get(), "the reference does not name the blocks of its tokens");
                return;
            }
            try {
                transfers = Optional.of(new PullTransfers(
                        map,
                        owner.ranks(),
                        pool().cache(),
                        pool().agent(),
                        fabric,
                        stats,
                        context.ticker(),
                        Duration.ofNanos(Math.max(1, deadline - now))));
            } catch (TransferException | RuntimeException e) {
                fail("transfer_setup_failed", String.valueOf(e.getMessage()), now);
            }
        }

        private boolean transfer(PullTransfers moving, long now) {
            boolean moved = moving.advance(Duration.ofNanos(Math.max(1, deadline - now)));
            Optional<PullTransfers.Result> result = moving.result();
            if (result.isEmpty()) {
                return moved;
            }
            switch (result.get()) {
                case PullTransfers.Result.Good() -> over = true;
                case PullTransfers.Result.Bad(Map<Integer, Rejection> blocks) -> {
                    blocks.values().stream().distinct().forEach(this::count);
                    log.warn(
                            "request {}: {} of {} blocks of request {} of engine {} are not what was promised ({}) and are not used",
                            load.requestId(),
                            blocks.size(),
                            load.blocks().length,
                            load.source().requestId(),
                            load.source().engineId(),
                            blocks.values().stream()
                                    .map(Rejection::label)
                                    .distinct()
                                    .sorted()
                                    .collect(Collectors.joining(", ")));
                    invalid.addAll(blocks.keySet());
                    over = true;
                }
                case PullTransfers.Result.Failed(String message) -> {
                    if (cancelled) {
                        over = true;
                    } else {
                        fail("transfer_failed", message, now);
                    }
                }
            }
            return true;
        }

        private void count(Rejection cause) {
            stats.add(NixlScheduler.rejected(cause, 1));
        }

        private void reject(Rejection cause, String why) {
            count(cause);
            log.warn(
                    "request {}: the blocks of request {} of engine {} are refused ({}): {}",
                    load.requestId(),
                    load.source().requestId(),
                    load.source().engineId(),
                    cause.label(),
                    why);
            allInvalid();
        }

        private void fail(String type, String message, long now) {
            stats.count("vllm:nixl_num_failed_transfers");
            failure(
                    type,
                    message,
                    Map.of(
                            "request_id", load.requestId(),
                            "remote_request_id", load.source().requestId(),
                            "remote_engine_id", load.source().engineId(),
                            "remote", load.source().host() + ":" + load.source().port(),
                            "tokens", load.tokens(),
                            "after_ms", (now - since) / 1_000_000));
            allInvalid();
        }

        private void allInvalid() {
            for (int block : load.blocks()) {
                invalid.add(block);
            }
            over = true;
        }

        /** The owner may have its blocks back. */
        private void settle(long now) {
            engine.ifPresent(owner -> {
                owner.release(now);
                if (!ownerKnows && owner.isConnected()) {
                    tell(owner, load.source().requestId() + ":" + context.tensorParallelSize());
                }
            });
        }
    }

    // ---- the end

    @Override
    public void close() {
        Pool last = pool;
        pool = null;
        if (last == null) {
            return;
        }
        last.agent().close();
        for (Pull pull : pulls.values()) {
            pull.transfers.ifPresent(PullTransfers::awaitCheck);
        }
        pulls.clear();
        engines.values().forEach(engine -> engine.close(List.of()));
        retired.forEach(engine -> engine.close(List.of()));
        engines.clear();
        retired.clear();
        last.sealMemory().close();
    }

    private Pool pool() {
        return Objects.requireNonNull(pool, "no pool is registered");
    }

    private long now() {
        return context.ticker().nanos();
    }
}
