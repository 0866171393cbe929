package baton.connectors.nixl;

import baton.connectors.ConnectorRuntime;
import baton.connectors.nixl.PeerEngine.RemoteRank;
import baton.kv.ConfigException;
import baton.kv.KvCache;
import baton.kv.KvLayout;
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
import baton.transfer.TransferAgent.Peer;
import baton.transfer.TransferAgent.Permit;
import baton.transfer.TransferAgent.Registration;
import baton.transfer.TransferException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
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
import java.util.TreeMap;
import java.util.function.Predicate;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/*
 * Reading: a load (Pull) waits for the handshake with the owner of the blocks, copies them, then copies their seals, then compares.
 * Each of these has a deadline. However it ends, the load is reported as received, what is not as it must be as invalid, and the
 * owner hears that its blocks are free. Nothing is reported while a transfer may still write here.
 *
 * Who moves the bytes is said by each load's reference.
 *
 * Being read: the blocks of a finished request are held until all ranks that read them have said that they did, until the lease is
 * over, or until those who wanted them are gone. Who cannot be heard of any more cannot read.
 *
 * Being written: peers write to the pool with a permit only. A load gives one for its blocks, registers it with the owner of what it
 * wants and waits to hear that this is here. However it ends, the permit is closed then, by which writes end that the owner may still be
 * doing, and later ones are refused; it goes on as if it had read what has come, or, if it was given up before, reports its blocks at
 * once. The owner is told so, but need not hear it: what it does for this load ends with its first write that is refused.
 *
 * Where the agent has no permits (NIXL) nothing is reported, and so no block freed, until the owner has said that it does not write any
 * more, or is gone, or must have stopped long ago if its time limits are ours.
 *
 * Messages: those of Notice, and between ours, about what is written, PushedDigests.Part, "PUSH_DONE:<attempt>:<digest of the
 * prompt>:<block>=<generation>,...", "PUSH_FAILED:<attempt>", "PUSH_CANCEL:<attempt>" and "PUSH_OVER:" with a Completion, of which
 * those that are not ours are told the Completion only. An attempt is one registration of a request. In these a request may be known
 * only by what both legs' ids have in common, and may be yet to come; what is read is known by its exact id.
 */

/** One rank's transfers. */
final class NixlWorker implements WorkerConnector {
    private static final Logger log = LoggerFactory.getLogger(NixlWorker.class);

    private static final String PUSH_CANCEL = "PUSH_CANCEL:";
    private static final String PUSH_OVER = "PUSH_OVER:";

    /** In which a load comes, if not more than {@link #MANY_LOADS} are under way: agents bound the transfers of a peer. */
    private static final int PARTS = 8;

    private static final int MANY_LOADS = 32;

    /** References whose owners are still to be told something, and what readers said too early; more are not kept. */
    private static final int MOST_MESSAGES = 10_000;

    private final ConnectorContext context;
    private final NixlSettings settings;
    private final ConnectorRuntime runtime;
    private final PeerHandshake handshake;
    private final Rank rank;
    private final TransferStats stats;
    /** Bytes of peers' memory that were mapped when that was last reported. */
    private long reportedMapped;

    private @Nullable Pool pool;

    private final Map<NixlSettings.Address, PeerEngine> engines = new LinkedHashMap<>();
    /** Replaced by a later handshake, or given up; closed when no load uses them and their handshakes are over. */
    private final List<PeerEngine> retired = new ArrayList<>();

    private final Map<String, Pull> pulls = new LinkedHashMap<>();
    private final List<Message> messages = new ArrayList<>();
    private final RequestIdMap<Held> held = new RequestIdMap<>();
    /**
     * What those that are written to have said of requests that are still running, or are yet to come: they need nothing, or all that
     * they need was written. By the id that they know.
     */
    private final Map<String, Held> early = new HashMap<>();

    private Optional<BlockChecksums.Sealing> sealing = Optional.empty();
    /** When the step was computed, if it completed what others read. */
    private OptionalLong computed = OptionalLong.empty();

    private int sideChannelPort;
    /** The agent tells of blocks while they come, so that they need not come in parts to be digested meanwhile. */
    private boolean agentTells;

    /** What there is once the pool is known. */
    private record Pool(
            KvCache cache,
            TransferAgent agent,
            Registration registration,
            ConnectorRuntime.Memory sealMemory,
            Registration sealRegistration,
            BlockChecksums seals,
            RankInfo info,
            PushSender pushes) {}

    /** Something to tell an owner as soon as we are connected. */
    private record Message(RemoteBlocks about, boolean heartbeat, long since, long deadline) {}

    /** Blocks that others may read. */
    private static final class Held {
        private final String requestId;
        private long until;
        /** Readers that are done, and how many there are. */
        private final Set<String> done = new HashSet<>();

        private int readers = Integer.MAX_VALUE;
        /** Readers that have given a sign of life. */
        private final Set<String> wantedBy = new HashSet<>();

        private Held(String requestId, long until) {
            this.requestId = requestId;
            this.until = until;
        }
    }

    NixlWorker(
            ConnectorContext context,
            NixlSettings settings,
            ConnectorRuntime runtime,
            PeerHandshake handshake,
            Rank rank) {
        this.context = context;
        this.settings = settings;
        this.runtime = runtime;
        this.handshake = handshake;
        this.rank = rank;
        this.stats = new TransferStats(context.ticker().nanos());
    }

    @Override
    public void register(KvCache cache) {
        TransferAgent agent = runtime.transferAgent(settings.agent(), settings.host(), settings.access());
        agent.onProgress(context.wake());
        ConnectorRuntime.Memory sealMemory =
                runtime.allocate(cache.blocks() * BlockChecksums.entryBytes(cache.layout()), "kv seals");
        try {
            Registration registration = agent.register(new Region(cache.memory(), cache.file()).withPermitsOnly());
            // Nobody is ever given one.
            Registration sealRegistration = agent.register(sealMemory.region().withPermitsOnly());
            RankInfo info = new RankInfo(
                    context.config().engineId(),
                    Compatibility.hash(context),
                    context.model().digest(),
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
            BlockChecksums seals = new BlockChecksums(sealMemory.region().memory(), cache.memory(), cache.layout());
            pool = new Pool(
                    cache,
                    agent,
                    registration,
                    sealMemory,
                    sealRegistration,
                    seals,
                    info,
                    new PushSender(info, seals, agent, settings, stats, context.ticker()));
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
        if (!(metadata instanceof NixlConnectorMetadata step)) {
            return;
        }
        long now = now();
        for (NixlConnectorMetadata.Opened opened : step.opened()) {
            pool().seals().open(opened.block(), opened.generation());
        }
        sealing = step.sealed().length == 0
                ? Optional.empty()
                : Optional.of(pool().seals().begin(step.sealed()));
        for (NixlConnectorMetadata.Lease lease : step.leases()) {
            Held kept = new Held(lease.requestId(), now + lease.nanos());
            takeEarly(lease.requestId()).ifPresent(said -> {
                kept.done.addAll(said.done);
                kept.readers = said.readers;
            });
            held.put(lease.requestId(), kept);
        }
        sideChannelPort = step.port();
        step.abandoned().forEach(id -> pool().pushes().giveUp(id, now));
        pool().pushes().begin(step.written(), step.preempted());
        for (NixlConnectorMetadata.Load load : step.loads()) {
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
    public void saveLayer(int layer) {
        PushSender pushes = pool().pushes();
        if (pushes.isFed()) {
            // Whoever asks for the blocks after the step has begun need not wait for its end.
            takeNotifications(now());
            if (pushes.isBusy()) {
                work();
                pushes.layerIsDone(layer);
            }
        }
        sealing.ifPresent(blocks -> blocks.complete(layer));
    }

    @Override
    public void waitForSave() {
        seal();
        pool().pushes().stepIsDone();
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
        for (String id : finished) {
            // Those that are read by others came with their lease.
            if (held.get(id) == null) {
                takeEarly(id);
            }
        }
        Set<String> sent = release(now);
        computed.ifPresent(since -> stats.handover("seal", Duration.ofNanos(now() - since)));
        computed = OptionalLong.empty();
        stats.log(now);
        long mapped = pool().agent().mappedPeerBytes();
        if (mapped != reportedMapped) {
            reportedMapped = mapped;
            stats.add(Measurement.gauge(
                    "baton:kv_peer_memory_mapped_bytes", mapped, "rank", rank.pipeline() + "." + rank.tensor()));
        }
        settings.access().takeRefusedMeasurement().ifPresent(stats::add);
        boolean busy = !pulls.isEmpty()
                || !messages.isEmpty()
                || !held.isEmpty()
                || pool().pushes().isBusy()
                || engines.values().stream().anyMatch(PeerEngine::isPending);
        return new WorkerReport(sent, received, invalid, stats.take(), busy);
    }

    private void seal() {
        sealing.ifPresent(blocks -> {
            computed = OptionalLong.of(now());
            blocks.seal();
        });
        sealing = Optional.empty();
    }

    private void work() {
        long now = now();
        takeNotifications(now);
        engines.values().forEach(engine -> engine.poll(now));
        boolean moved = true;
        while (moved) {
            moved = false;
            for (Pull pull : pulls.values()) {
                moved |= pull.advance(now);
            }
        }
        pool().pushes()
                .work(
                        (address, size, engineId, since) -> engine(
                                address,
                                size,
                                since,
                                now,
                                engine -> engine.ranks().stream()
                                        .allMatch(each -> each.info().engineId().equals(engineId))),
                        now);
        sendMessages(now);
        forgetEngines(now);
    }

    // ---- being read

    private void takeNotifications(long now) {
        for (Notification notification : pool().agent().takeNotifications()) {
            take(notification, now);
        }
    }

    private Optional<Held> takeEarly(String requestId) {
        Held said = early.remove(requestId);
        return Optional.ofNullable(said != null ? said : early.remove(RequestIdMap.commonId(requestId)));
    }

    private void take(Notification notification, long now) {
        String from = notification.from();
        String text = new String(notification.message(), StandardCharsets.UTF_8);
        if (text.startsWith(PushSender.DONE) || text.startsWith(PushSender.FAILED)) {
            if (pulls.values().stream().noneMatch(pull -> pull.hear(from, text))) {
                if (NixlNotification.PushRegistration.isOfPermitted(text)) {
                    // Nothing can be written any more for an attempt whose permit is closed, and it may be told of its
                    // end twice.
                    log.debug("{} says after its end: {}", from, text);
                } else {
                    unknown(from, text);
                }
            }
        } else if (ArrivalChecksums.Part.is(text)) {
            // One that comes late says nothing that is needed.
            pulls.values().forEach(pull -> pull.hearOfPart(from, text));
        } else if (text.startsWith(PUSH_CANCEL)) {
            pool().pushes().cancel(text.substring(PUSH_CANCEL.length()), from);
        } else {
            boolean over = text.startsWith(PUSH_OVER);
            byte[] message = notification.message();
            try {
                NixlNotification notice = NixlNotification.read(
                        over ? Arrays.copyOfRange(message, PUSH_OVER.length(), message.length) : message);
                if (over && notice instanceof NixlNotification.Completion completion) {
                    writtenIsOver(completion, from, now);
                } else {
                    take(notice, from, text, now);
                }
            } catch (ConfigException e) {
                log.warn("A notification of {} is dropped: {}", from, e.getMessage());
                stats.count("baton:kv_unknown_notifications");
            }
        }
    }

    private void take(NixlNotification notice, String from, String text, long now) {
        switch (notice) {
            case NixlNotification.Heartbeat(List<String> ids) -> {
                for (String id : ids) {
                    held.find(id).ifPresent(lease -> {
                        long extended = now + settings.leaseExtension().toNanos();
                        lease.until = extended - lease.until > 0 ? extended : lease.until;
                        lease.wantedBy.add(from);
                    });
                }
            }
            case NixlNotification.PushRegistration registration ->
                pool().pushes().register(registration, from);
            case NixlNotification.Completion(String id, int readers) -> {
                Held lease = held.get(id);
                if (lease != null) {
                    isDone(lease, from, readers);
                } else if (pulls.values().stream().noneMatch(pull -> pull.hear(from, text))) {
                    // Others say no more than this of what is written to them either.
                    held.find(id).ifPresentOrElse(found -> isDone(found, from, readers), () -> unknown(from, text));
                }
            }
        }
    }

    /** One who is written to needs nothing any more. */
    private void writtenIsOver(NixlNotification.Completion completion, String from, long now) {
        String id = completion.requestId();
        Optional<Held> lease = held.find(id);
        if (lease.isEmpty() && (early.containsKey(id) || early.size() < MOST_MESSAGES)) {
            long until = now + settings.pushRegistrationTimeout().toNanos();
            lease = Optional.of(early.computeIfAbsent(id, _ -> new Held(id, until)));
        }
        lease.ifPresentOrElse(found -> isDone(found, from, completion.tensorParallelSize()), () -> unknown(from, id));
    }

    private void isDone(Held lease, String reader, int readers) {
        lease.done.add(reader);
        lease.readers = Math.max(1, readers / context.tensorParallelSize());
    }

    private void unknown(String from, String text) {
        log.warn(
                "Potentially invalid KV blocks for unrecognized request {} were retrieved by {}. They may have expired.",
                text.length() <= 200 ? text : text.substring(0, 200),
                from);
        stats.count("baton:kv_unknown_notifications");
    }

    /** Requests whose blocks nobody needs any more. */
    private Set<String> release(long now) {
        for (Iterator<Held> all = early.values().iterator(); all.hasNext(); ) {
            Held said = all.next();
            if (now - said.until >= 0 && !pool().pushes().isRunning(said.requestId)) {
                all.remove();
                unknown(String.join(", ", said.done), said.requestId);
            }
        }
        Set<String> sent = new LinkedHashSet<>();
        for (Held lease : List.copyOf(held.values())) {
            boolean orphaned =
                    !lease.wantedBy.isEmpty() && lease.wantedBy.stream().allMatch(pool().agent()::isGone);
            boolean served = lease.done.size() >= lease.readers;
            if (served) {
                log.debug("request {}: all have its blocks", lease.requestId);
            } else if (orphaned) {
                log.warn(
                        "Releasing KV blocks for request {}: {}, which wanted them, is gone.",
                        lease.requestId,
                        String.join(", ", lease.wantedBy));
                stats.count("baton:kv_orphaned_leases");
            } else if (now - lease.until >= 0) {
                log.warn(
                        "Releasing expired KV blocks for request {} which were retrieved by {} remote worker(s) before lease expired.",
                        lease.requestId,
                        lease.done.size());
                stats.count("vllm:nixl_num_kv_expired_reqs");
            } else {
                continue;
            }
            sent.add(lease.requestId);
            if (served) {
                pool().pushes().forget(lease.requestId);
            } else {
                pool().pushes().giveUp(lease.requestId, now);
            }
            held.remove(lease.requestId);
        }
        return sent;
    }

    // ---- peers

    private PeerEngine meet(NixlSettings.Address address, Optional<Integer> tensorParallelSize, long now) {
        return PeerEngine.meet(
                address,
                tensorParallelSize,
                pool().info(),
                settings,
                handshake,
                runtime,
                pool().agent(),
                now,
                context.wake());
    }

    private PeerEngine engine(RemoteBlocks reference, long since, long now) {
        return engine(
                new NixlSettings.Address(reference.host(), reference.port()),
                reference.tensorParallelSize(),
                since,
                now,
                engine -> engine.isOwnerOf(reference));
    }

    /** Who is at an address: met anew if it is not who it should be, or is gone, and was met before {@code since}. */
    private PeerEngine engine(
            NixlSettings.Address address, int tensorParallelSize, long since, long now, Predicate<PeerEngine> isMeant) {
        PeerEngine known = engines.get(address);
        if (known != null
                && (known.isPending()
                        || known.started() - since >= 0
                        || (known.isConnected() && isMeant.test(known)))) {
            return known;
        }
        PeerEngine met = meet(address, Optional.of(tensorParallelSize), now);
        met.poll(now);
        engines.put(address, met);
        if (known != null) {
            retired.add(known);
        }
        return met;
    }

    /** What is written without having been promised before is proven when it has come. */
    private static boolean isTrue(RemoteBlocks reference, PeerEngine owner) {
        return (reference.mode() == TransferMode.PUSH && reference.proof().isEmpty()) || owner.hasSigned(reference);
    }

    private void forgetEngines(long now) {
        long ttl = settings.engineTtl().toNanos();
        for (Iterator<PeerEngine> all = engines.values().iterator(); all.hasNext(); ) {
            PeerEngine engine = all.next();
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
            if (engine.isPending() || (engine.hasMet() && isMeeting())) {
                return false;
            }
            engine.close(peersInUse());
            return true;
        });
    }

    /** Whom pending handshakes have connected to is not known before they are over; it may be anybody. */
    private boolean isMeeting() {
        return Stream.concat(engines.values().stream(), retired.stream()).anyMatch(PeerEngine::isPending);
    }

    private List<Peer> peersInUse() {
        return Stream.concat(engines.values().stream(), retired.stream().filter(PeerEngine::isUsed))
                .flatMap(engine -> engine.ranks().stream())
                .map(RemoteRank::peer)
                .toList();
    }

    private void queue(RemoteBlocks about, boolean heartbeat, long now) {
        if (messages.size() < MOST_MESSAGES) {
            messages.add(new Message(
                    about,
                    heartbeat,
                    now,
                    now + settings.handshakeTimeout().multipliedBy(2).toNanos()));
        }
    }

    private void sendMessages(long now) {
        Map<PeerEngine, List<String>> beats = new LinkedHashMap<>();
        for (Iterator<Message> all = messages.iterator(); all.hasNext(); ) {
            Message message = all.next();
            PeerEngine engine = engine(message.about(), message.since(), now);
            if (engine.isPending() && now - message.deadline() < 0) {
                continue;
            }
            all.remove();
            if (engine.isConnected() && engine.isOwnerOf(message.about()) && isTrue(message.about(), engine)) {
                if (message.heartbeat()) {
                    beats.computeIfAbsent(engine, _ -> new ArrayList<>())
                            .add(message.about().requestId());
                } else {
                    tell(engine, completion(message.about(), engine));
                }
            }
        }
        beats.forEach((engine, ids) -> tell(engine, new NixlNotification.Heartbeat(ids).encode()));
    }

    private byte[] completion(RemoteBlocks read, PeerEngine owner) {
        byte[] said = new NixlNotification.Completion(read.requestId(), context.tensorParallelSize()).encode();
        return read.mode() == TransferMode.PUSH && owner.isOneOfOurs()
                ? (PUSH_OVER + new String(said, StandardCharsets.UTF_8)).getBytes(StandardCharsets.UTF_8)
                : said;
    }

    private void tell(PeerEngine engine, byte[] message) {
        engine.ranks().forEach(remote -> tell(remote, message));
    }

    private void tell(RemoteRank remote, byte[] message) {
        if (!remote.peer().alive()) {
            return;
        }
        try {
            pool().agent().notify(remote.peer(), message);
        } catch (TransferException e) {
            stats.count("vllm:nixl_num_failed_notifications");
            failure(
                    "notification_failed",
                    e.getMessage(),
                    Map.of("to", remote.peer().name()));
        }
    }

    private void failure(String type, @Nullable String message, Map<String, Object> about) {
        log.warn(
                "NIXL transfer failure: {}. {} | Context: {}",
                type,
                message,
                new TreeMap<>(about)
                        .entrySet().stream()
                                .map(entry -> entry.getKey() + "=" + entry.getValue())
                                .collect(Collectors.joining(", ", "{", "}")));
    }

    // ---- reading

    private final class Pull {
        private final NixlConnectorMetadata.Load load;
        private final long since;
        private final long deadline;
        private Optional<PeerEngine> engine = Optional.empty();
        private Optional<BlockLoad> transfers = Optional.empty();
        private Optional<Push> push = Optional.empty();
        private boolean cancelled;
        private boolean over;
        private boolean ownerKnows;
        private final Set<Integer> invalid = new LinkedHashSet<>();

        private Pull(NixlConnectorMetadata.Load load, long now) {
            this.load = load;
            this.since = now;
            Duration longest = switch (load.source().mode()) {
                case PULL -> settings.transferTimeout();
                case PUSH -> settings.pushRegistrationTimeout();
            };
            this.deadline = now + longest.toNanos();
        }

        private boolean isOver() {
            return over;
        }

        private void cancel() {
            cancelled = true;
            transfers.ifPresent(BlockLoad::cancel);
        }

        /** True if it has come further. */
        private boolean advance(long now) {
            if (over) {
                return false;
            }
            if (transfers.isPresent()) {
                return transfer(transfers.get(), now);
            }
            return push.isPresent() ? await(push.get(), now) : connect(now);
        }

        private boolean connect(long now) {
            if (cancelled) {
                // Nothing was read, but the owner waits to hear of it.
                queue(load.source(), false, since);
                ownerKnows = true;
                over = true;
                return true;
            }
            PeerEngine owner = engine(load.source(), since, now);
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
            } else if (!isTrue(load.source(), owner)) {
                ownerKnows = true;
                reject(Rejection.FORGED, "the reference is not as its owner made it");
            } else {
                begin(owner, now);
            }
            return true;
        }

        private BlockMapping map(NixlConnectorMetadata.Load from, PeerEngine owner) {
            return new BlockMapping(
                    from,
                    pool().info(),
                    owner.ranks().stream().map(RemoteRank::info).toList());
        }

        private void begin(PeerEngine owner, long now) {
            engine = Optional.of(owner);
            owner.use(now);
            stats.handover("handshake", Duration.ofNanos(now - since));
            Optional<String> misfit = owner.ranks().stream()
                    .flatMap(remote -> BlockMapping.misfit(
                            remote.info().layout(), pool().info().layout())
                            .stream())
                    .findFirst();
            if (misfit.isPresent()) {
                fail("transfer_setup_failed", misfit.get(), now);
            } else {
                switch (load.source().mode()) {
                    case PULL -> take(load, owner, Optional.empty(), now);
                    case PUSH -> register(owner, now);
                }
            }
        }

        /** @param arrived the blocks are here and only to be checked */
        private void take(
                NixlConnectorMetadata.Load from, PeerEngine owner, Optional<ArrivalChecksums> arrived, long now) {
            BlockMapping map = map(from, owner);
            Optional<Rejection> wrong = map.wrong();
            if (wrong.isPresent()) {
                reject(wrong.get(), "the reference does not name the blocks of its tokens");
                return;
            }
            try {
                transfers = Optional.of(new BlockLoad(
                        map,
                        owner.ranks(),
                        pool().cache(),
                        pool().agent(),
                        runtime,
                        stats,
                        context.ticker(),
                        arrived,
                        agentTells || pulls.size() > MANY_LOADS ? 1 : PARTS,
                        context.wake(),
                        Duration.ofNanos(Math.max(1, deadline - now))));
            } catch (TransferException | RuntimeException e) {
                fail("transfer_setup_failed", String.valueOf(e.getMessage()), now);
            }
        }

        // ---- written by the owner

        private void register(PeerEngine owner, long now) {
            RemoteBlocks source = load.source();
            KvLayout there = owner.ranks().getFirst().info().layout();
            int tokens = load.firstToken() + load.tokens();
            // Which blocks the owner has taken is not needed for this.
            NixlConnectorMetadata.Load anyBlocks = load.from(source.at(new int[there.blocksFor(tokens)]));
            ArrivalChecksums digests =
                    new ArrivalChecksums(map(anyBlocks, owner), pool().cache(), runtime.background(), context.wake());
            Optional<Permit> permit = pool().agent()
                    .permit(Arrays.stream(load.blocks())
                            .mapToObj(pool().cache()::block)
                            .toList());
            NixlNotification.PushRegistration registration = new NixlNotification.PushRegistration(
                    source.requestId(),
                    new NixlNotification.PushRegistration.Instance(
                            context.config().engineId(),
                            settings.host(),
                            sideChannelPort,
                            context.tensorParallelSize()),
                    load.blocks(),
                    new NixlNotification.PushRegistration.Instance(
                            source.engineId(), source.host(), source.port(), source.tensorParallelSize()),
                    context.pipelineParallelSize(),
                    permit.map(given -> OptionalLong.of(given.token())).orElseGet(OptionalLong::empty));
            Push waiting = new Push(registration, permit, digests, now);
            owner.ranks().forEach(remote -> waiting.awaited.add(remote.peer().name()));
            push = Optional.of(waiting);
            for (RemoteRank remote : owner.ranks()) {
                try {
                    pool().agent().notify(remote.peer(), waiting.registration);
                } catch (TransferException e) {
                    stats.count("vllm:nixl_num_failed_notifications");
                    waiting.failure = Optional.of("the registration cannot be sent: " + e.getMessage());
                }
            }
            if (waiting.failure.isPresent()) {
                giveUp(owner, waiting, now);
            }
        }

        /** A message about a push; false if it is about something else. */
        private boolean hear(String from, String text) {
            if (push.isEmpty() || !push.get().awaited.contains(from)) {
                return false;
            }
            Push waiting = push.get();
            if (text.equals(PushSender.FAILED + waiting.attempt)) {
                waiting.awaited.remove(from);
                waiting.failure =
                        waiting.failure.or(() -> Optional.of("the prefill instance does not push the blocks"));
                return true;
            }
            if (PushedBlocks.areOf(waiting.attempt, text)) {
                waiting.awaited.remove(from);
                waiting.blocks = PushedBlocks.parse(text.substring((PushSender.DONE + waiting.attempt).length() + 1));
                if (waiting.blocks.isEmpty()) {
                    waiting.failure =
                            waiting.failure.or(() -> Optional.of("what the push says of its blocks is no list"));
                }
                return true;
            }
            // A Baton instance also says of which prompt they are.
            if (!engine.orElseThrow().isOneOfOurs()
                    && text.equals(
                            load.source().requestId() + ":" + load.source().tensorParallelSize())) {
                waiting.awaited.remove(from);
                return true;
            }
            return false;
        }

        private void hearOfPart(String from, String text) {
            if (push.isEmpty() || transfers.isPresent() || over) {
                return;
            }
            List<RemoteRank> ranks = engine.orElseThrow().ranks();
            for (int source = 0; source < ranks.size(); source++) {
                if (ranks.get(source).peer().name().equals(from)) {
                    int rank = source;
                    ArrivalChecksums.Part.read(text, push.get().attempt)
                            .ifPresent(part -> push.get().digests.written(rank, part));
                }
            }
        }

        private boolean await(Push waiting, long now) {
            PeerEngine owner = engine.orElseThrow();
            if (!owner.isConnected() && waiting.failure.isEmpty()) {
                waiting.failure = Optional.of("the peer is gone");
            }
            if (waiting.failure.isEmpty() && (cancelled || now - deadline >= 0)) {
                waiting.failure = Optional.of(cancelled ? "cancelled" : "the blocks were not pushed in time");
            }
            if (waiting.failure.isPresent() && !waiting.awaited.isEmpty()) {
                giveUp(owner, waiting, now);
            }
            registerAgain(owner, waiting, now);
            if (!waiting.awaited.isEmpty()) {
                return false;
            }
            waiting.permit.ifPresent(Permit::close);
            if (waiting.failure.isPresent() && waiting.gaveUp.isEmpty()) {
                // It may have been asked twice.
                giveUp(owner, waiting, now);
            }
            if (!waiting.digests.isIdle()) {
                return false;
            }
            if (cancelled) {
                over = true;
            } else if (waiting.failure.isPresent()) {
                fail("transfer_failed", waiting.failure.get(), now);
            } else if (waiting.isOfAnotherPrompt(load)) {
                reject(Rejection.MISMATCH, "they are of another prompt");
            } else {
                if (waiting.permit
                        .filter(permit -> permit.writes() != waiting.digests.writes())
                        .isPresent()) {
                    // A write that nobody told of, as it was not done, may have changed what was digested.
                    waiting.digests.forget();
                }
                take(waiting.proven(load), owner, Optional.of(waiting.digests), now);
            }
            return true;
        }

        /**
         * What the owner has said may have been lost with its connection, or what it was told. It need not know that it was told twice:
         * with a permit, what it writes again hurts nobody.
         */
        private void registerAgain(PeerEngine owner, Push waiting, long now) {
            if (waiting.permit.isEmpty()
                    || waiting.failure.isPresent()
                    || now - waiting.registered < settings.heartbeatInterval().toNanos()) {
                return;
            }
            waiting.registered = now;
            for (RemoteRank remote : owner.ranks()) {
                if (waiting.awaited.contains(remote.peer().name())) {
                    tell(remote, waiting.registration);
                }
            }
        }

        /** Asks the owner to stop; with a permit it has to. */
        private void giveUp(PeerEngine owner, Push waiting, long now) {
            if (waiting.gaveUp.isEmpty()) {
                waiting.gaveUp = OptionalLong.of(now);
                waiting.permit.ifPresent(Permit::close);
                if (owner.isOneOfOurs()) {
                    tell(owner, (PUSH_CANCEL + waiting.attempt).getBytes(StandardCharsets.UTF_8));
                }
            }
            if (waiting.permit.isPresent()) {
                waiting.awaited.clear();
            } else {
                owner.ranks().stream()
                        .map(RemoteRank::peer)
                        .filter(peer -> !peer.alive())
                        .forEach(peer -> waiting.awaited.remove(peer.name()));
                Duration longest = settings.pushRegistrationTimeout().plus(settings.transferTimeout());
                if (owner.isOneOfOurs() && now - waiting.gaveUp.getAsLong() >= longest.toNanos()) {
                    // By then it has given up what it began, too.
                    waiting.awaited.clear();
                }
            }
        }

        private boolean transfer(BlockLoad moving, long now) {
            boolean moved = moving.advance(Duration.ofNanos(Math.max(1, deadline - now)));
            Optional<BlockLoad.Result> result = moving.result();
            if (result.isEmpty()) {
                return moved;
            }
            switch (result.get()) {
                case BlockLoad.Result.Good() -> {
                    agentTells = moving.wasTold();
                    moving.spans().forEach(span -> stats.handover(span.phase(), span.duration()));
                    log.debug(
                            "request {}: {} tokens of request {} received; {}",
                            load.requestId(),
                            load.tokens(),
                            load.source().requestId(),
                            moving.spans());
                    over = true;
                }
                case BlockLoad.Result.Bad(Map<Integer, Rejection> blocks) -> {
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
                case BlockLoad.Result.Failed(String message) -> {
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
                    tell(owner, completion(load.source(), owner));
                } else if (!ownerKnows) {
                    // It may be met again.
                    queue(load.source(), false, now);
                }
            });
        }
    }

    /** Blocks that a peer is writing, or will. */
    private static final class Push {
        private final byte[] registration;
        /** {@link NixlNotification.PushRegistration#attempt}. */
        private final String attempt;

        /** When it was last. */
        private long registered;
        /** Open as long as anybody may write; empty where writes cannot be held back. */
        private final Optional<Permit> permit;

        /** Names of the agents of which we have not heard that they are done. */
        private final Set<String> awaited = new HashSet<>();

        private Optional<PushedBlocks> blocks = Optional.empty();
        private Optional<String> failure = Optional.empty();
        private OptionalLong gaveUp = OptionalLong.empty();
        private final ArrivalChecksums digests;

        private Push(
                NixlNotification.PushRegistration registration,
                Optional<Permit> permit,
                ArrivalChecksums digests,
                long now) {
            this.registration = registration.encode();
            this.attempt = registration.attempt();
            this.permit = permit;
            this.digests = digests;
            this.registered = now;
        }

        private boolean isOfAnotherPrompt(NixlConnectorMetadata.Load load) {
            return blocks.isPresent()
                    && load.prompt()
                            .filter(prompt -> !prompt.equals(blocks.get().prompt()))
                            .isPresent();
        }

        /** The load with what the owner has said of its blocks, if the reference did not say it. */
        private NixlConnectorMetadata.Load proven(NixlConnectorMetadata.Load load) {
            RemoteBlocks source = load.source();
            if (source.proof().isPresent() || blocks.isEmpty()) {
                return load;
            }
            return load.from(source.at(blocks.get().blocks())
                    .with(new RemoteBlocks.Proof("", "", blocks.get().generations(), "", "")));
        }
    }

    /** What the owner says of the blocks that it has pushed. */
    private record PushedBlocks(String prompt, int[] blocks, long[] generations) {
        /** True if the message is about the blocks of exactly that attempt: its name may have colons, what follows it has one. */
        private static boolean areOf(String attempt, String text) {
            int end = text.lastIndexOf(':', text.lastIndexOf(':') - 1);
            return end >= 0 && text.substring(0, end).equals(PushSender.DONE + attempt);
        }

        private static Optional<PushedBlocks> parse(String text) {
            int colon = text.indexOf(':');
            String[] pairs = text.substring(colon + 1).split(",");
            int[] blocks = new int[pairs.length];
            long[] generations = new long[pairs.length];
            try {
                for (int i = 0; i < pairs.length; i++) {
                    int equals = pairs[i].indexOf('=');
                    blocks[i] = Integer.parseInt(pairs[i].substring(0, Math.max(0, equals)));
                    generations[i] = Long.parseLong(pairs[i].substring(equals + 1));
                }
            } catch (NumberFormatException e) {
                return Optional.empty();
            }
            return colon >= 0 && Arrays.stream(blocks).allMatch(block -> block >= 0)
                    ? Optional.of(new PushedBlocks(text.substring(0, colon), blocks, generations))
                    : Optional.empty();
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
            pull.transfers.ifPresent(BlockLoad::awaitCheck);
            pull.push.ifPresent(push -> push.digests.await());
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
