package baton.connectors.onesided;

import baton.connectors.onesided.BlockMapping.Heads;
import baton.connectors.onesided.BlockMapping.Piece;
import baton.connectors.onesided.PeerEngine.RemoteRank;
import baton.connectors.onesided.PeerNotification.Completion;
import baton.connectors.onesided.PeerNotification.PushDone;
import baton.connectors.onesided.PeerNotification.PushFailed;
import baton.connectors.onesided.PeerNotification.PushPart;
import baton.connectors.onesided.PeerNotification.PushRegistration;
import baton.kv.Bursts;
import baton.kv.KvLayout;
import baton.kv.Ticker;
import baton.transfer.Range;
import baton.transfer.Transfer;
import baton.transfer.TransferAgent;
import baton.transfer.TransferAgent.Operation;
import baton.transfer.TransferException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Iterator;
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
 * A source is a request of this instance whose prompt is being computed, or was. A target is one rank of a decode instance that has
 * registered a push. Either may come first; they match by the request's id, or by what both legs' ids have in common. It is not known
 * ahead whether a source will be pushed: until a target comes, each layer costs a look at the notifications.
 *
 * Complete bytes are written at once: while a step computes, each layer of the blocks that the step fills, when the layer is done; bytes
 * that were complete before the target came, when it comes, even in the middle of a step. When all writes to a target are done it gets
 * PushDone with the generations of the blocks, and checks them with their checksums as after a read. If the push fails, it gets
 * PushFailed after the last write has stopped.
 *
 * A target with a permit need not know that the last write has stopped: after it has closed the permit, writes are rejected, which fails
 * this target and nothing else. So this side's connection may break, too: everything is written again over the next one. Any
 * notification or write that the target has lost is repeated when it registers again, as it does from time to time.
 */

/** Pushes one rank's blocks. The rank's thread owns it. */
public final class PushSender {
    private static final Logger log = LoggerFactory.getLogger(PushSender.class);

    private static final String GIVEN_UP = "the prefill instance has given up the blocks";
    /** Targets that are waiting; more are refused. */
    private static final int MAX_TARGETS = 10_000;
    /** Abandoned requests that are remembered. */
    private static final int MAX_ABANDONED = 10_000;

    private final RankContext context;
    private final PeerDirectory peers;
    private final BlockChecksums checksums;
    private final RankInfo self;
    private final TransferAgent agent;
    private final OneSidedSettings settings;
    private final TransferStats stats;
    private final Ticker ticker;
    /** Of registrations, which a peer may send as often as it likes. */
    private final Bursts complaints;

    private final RequestIdMap<PromptSource> sources = new RequestIdMap<>();
    private final List<PushTarget> targets = new ArrayList<>();
    private final List<Written> written = new ArrayList<>();
    /** Requests whose blocks were given up: a push of them that is registered now has failed. */
    private final RequestIdMap<AbandonedPrompt> abandoned = new RequestIdMap<>();

    /** @param answered agents that registered a push of its blocks and got its failure, with their attempt */
    private record AbandonedPrompt(String requestId, Map<String, String> answered, long until) {
        /** Whether a registration gets the failure: an agent's first attempt does, each time it comes; a later one may be of a request yet to come. */
        private boolean answers(PushTarget target) {
            String attempt = target.registration.attempt();
            String before = answered.putIfAbsent(target.agentName, attempt);
            return before == null || (target.registration.permit().isPresent() && before.equals(attempt));
        }
    }

    private static final class PromptSource {
        private final String requestId;
        private final int promptLength;
        private final String prompt;
        /** Agents that registered a push of its blocks, with their attempt. */
        private final Map<String, String> registeredBy = new HashMap<>();

        private int[] blocks = {};
        /** Tokens that all layers have. */
        private int complete;
        /** Tokens that the layers which are done have when this step is over. */
        private int afterStep;

        private PromptSource(PromptProgress progress) {
            this.requestId = progress.requestId();
            this.promptLength = progress.promptLength();
            this.prompt = progress.prompt();
        }
    }

    /**
     * All blocks of a request are written to a rank of a vLLM instance, which will not say so.
     *
     * @param agent of that rank
     */
    public record Written(String agent, Completion completion) {}

    private record Write(Transfer transfer, int ranges, Duration post) {}

    private final class PushTarget {
        private final PushRegistration registration;
        private final String agentName;
        /** Peers that were connected before this are not asked: their connection may have ended. */
        private long since;

        private final long deadline;
        private Optional<PeerEngine> engine = Optional.empty();
        private Optional<RemoteRank> remote = Optional.empty();
        private Optional<BlockMapping> map = Optional.empty();
        private Optional<Heads> heads = Optional.empty();
        /** By layer: how many pieces were begun to be written. */
        private final int[] begun = new int[self.layout().layers()];

        private final List<Write> writes = new ArrayList<>();
        /** Id of the source, once it has come. */
        private Optional<String> sourceId = Optional.empty();

        private Optional<String> failure = Optional.empty();
        /** It does not wait for a notification of the end. */
        private boolean leftAlone;

        private boolean reconnected;
        private boolean over;

        private PushTarget(PushRegistration registration, String agentName, long now) {
            this.registration = registration;
            this.agentName = agentName;
            this.since = now;
            this.deadline = now + settings.pushRegistrationTimeout().toNanos();
        }

        private @Nullable PromptSource source() {
            sourceId = sourceId.or(() -> sources.find(registeredId()).map(source -> source.requestId));
            Optional<PromptSource> source = sourceId.map(sources::get);
            source.ifPresent(found -> found.registeredBy.put(agentName, registration.attempt()));
            return source.orElse(null);
        }

        /** The request's id, or what both legs' ids have in common: a vLLM instance registers its own. */
        private String registeredId() {
            return engine.filter(known -> !known.isBaton()).isPresent()
                    ? RequestIdMap.commonId(registration.requestId())
                    : registration.requestId();
        }

        /** Whether to connect again after the connection to it has ended, once. If it ends again, the target registers again if it still waits. */
        private boolean isToReconnect(long now) {
            return registration.permit().isPresent()
                    && !reconnected
                    && remote.filter(known -> !known.peer().alive()).isPresent()
                    && !leftAlone
                    && now - deadline < 0
                    && !agent.isGone(agentName);
        }

        private void reconnect(long now) {
            reconnected = true;
            restart();
            engine.ifPresent(known -> known.release(now));
            engine = Optional.empty();
            remote = Optional.empty();
            since = now;
        }

        private boolean isOf(String requestId) {
            return sourceId.map(requestId::equals)
                    .orElse(registeredId().equals(requestId)
                            || registeredId().equals(RequestIdMap.commonId(requestId)));
        }

        private void fail(String why) {
            if (failure.isEmpty()) {
                failure = Optional.of(why);
                writes.forEach(write -> write.transfer().cancel());
            }
        }

        /** The written blocks are invalid: the source has other blocks now. */
        private void restart() {
            writes.forEach(write -> write.transfer().cancel());
            Arrays.fill(begun, 0);
            map = Optional.empty();
        }
    }

    /** @param checksums of the rank's blocks, which have their generations */
    public PushSender(RankContext context, PeerDirectory peers, BlockChecksums checksums) {
        this.context = context;
        this.peers = peers;
        this.checksums = checksums;
        this.self = context.self();
        this.agent = context.agent();
        this.settings = context.settings();
        this.stats = context.stats();
        this.ticker = context.ticker();
        this.complaints = new Bursts(1, Duration.ofSeconds(10), ticker);
    }

    public boolean isBusy() {
        return !targets.isEmpty();
    }

    /** Whether this step computes what may be pushed. */
    public boolean isFed() {
        return sources.values().stream().anyMatch(source -> source.afterStep > source.complete);
    }

    /** A rank of a decode instance registers a push. */
    public void register(PushRegistration registration, String from) {
        for (PushTarget target : targets) {
            if (target.agentName.equals(from)
                    && target.registration.attempt().equals(registration.attempt())
                    && (target.failure.isEmpty() || registration.permit().isPresent())) {
                return;
            }
            // Where one has failed, this is the next attempt; it is answered after that one.
            if (target.failure.isEmpty()
                    && target.agentName.equals(from)
                    && target.registration.requestId().equals(registration.requestId())) {
                // Its cancellation was lost.
                target.leftAlone = true;
                target.fail("another attempt takes its place");
            }
        }
        if (targets.size() >= MAX_TARGETS) {
            complaints.event(more -> log.warn(
                    "A push of request {} to {} is refused: too many wait{}", registration.requestId(), from, more));
            return;
        }
        targets.add(new PushTarget(registration, from, ticker.nanos()));
    }

    /** The target does not want the blocks any more. If it has no permit to close, it gets the failure when the last write has stopped. */
    public void cancel(String attempt, String from) {
        for (PushTarget target : targets) {
            if (target.agentName.equals(from) && target.registration.attempt().equals(attempt)) {
                target.leftAlone = target.registration.permit().isPresent();
                target.fail("cancelled");
            }
        }
    }

    /** A step begins. */
    public void begin(List<PromptProgress> progress, Set<String> preempted) {
        for (String id : preempted) {
            PromptSource lost = sources.get(id);
            if (lost != null) {
                targetsOf(lost).forEach(PushTarget::restart);
                sources.remove(id);
            }
        }
        for (PromptSource source : sources.values()) {
            // A step that failed has completed nothing.
            source.afterStep = source.complete;
        }
        for (PromptProgress each : progress) {
            PromptSource source = sources.get(each.requestId());
            if (source == null) {
                source = new PromptSource(each);
                sources.put(each.requestId(), source);
            }
            source.blocks = each.blocks();
            source.complete = each.before();
            source.afterStep = each.after();
        }
    }

    /** The layers up to this one of what this step computes are in place. */
    public void layerIsDone(int layer) {
        for (PushTarget target : targets) {
            PromptSource source = target.source();
            if (source != null && source.afterStep > source.complete) {
                write(target, source, source.afterStep, 0, layer + 1);
            }
        }
    }

    /** The blocks of the step are complete, with their checksums. */
    public void stepIsDone() {
        sources.values().forEach(source -> source.complete = source.afterStep);
    }

    /** All readers have the request's blocks, which may be reused. */
    void forget(String requestId) {
        PromptSource source = sources.get(requestId);
        if (source != null) {
            targetsOf(source).forEach(target -> target.fail(GIVEN_UP));
            sources.remove(requestId);
        }
    }

    /** The request's blocks may be reused, or it never had any; a push of them that is registered, or will be, has failed. */
    public void giveUp(String requestId, long now) {
        Map<String, String> answered = new HashMap<>();
        PromptSource source = sources.get(requestId);
        if (source != null) {
            answered.putAll(source.registeredBy);
            forget(requestId);
        } else {
            // A target that is not connected yet gets the failure when it is.
            for (PushTarget target : targets) {
                if (isBaton(target) && target.source() == null && target.isOf(requestId)) {
                    answered.put(target.agentName, target.registration.attempt());
                    target.fail(GIVEN_UP);
                }
            }
        }
        // Several requests may have had this id: a registration means the last.
        String commonId = RequestIdMap.commonId(requestId);
        for (Optional<AbandonedPrompt> before = abandoned.find(commonId);
                before.isPresent();
                before = abandoned.find(commonId)) {
            before.get().answered().forEach(answered::putIfAbsent);
            abandoned.remove(before.get().requestId());
        }
        abandoned.remove(requestId);
        abandoned.put(
                requestId,
                new AbandonedPrompt(
                        requestId,
                        answered,
                        now + settings.pushRegistrationTimeout().toNanos()));
    }

    /** The agents to which the blocks of a request that has ended are being pushed, or will be when they are connected. */
    Set<String> readers(String requestId) {
        return targets.stream()
                .filter(target -> target.failure.isEmpty() && target.isOf(requestId))
                .map(target -> target.agentName)
                .collect(Collectors.toSet());
    }

    /** @param id of a request, or what its two legs' ids have in common */
    boolean isRunning(String id) {
        return sources.find(id).isPresent();
    }

    private List<PushTarget> targetsOf(PromptSource source) {
        return targets.stream().filter(target -> target.source() == source).toList();
    }

    /** Writes to vLLM instances since the last call. */
    public List<Written> takeWritten() {
        List<Written> taken = List.copyOf(written);
        written.clear();
        return taken;
    }

    /** Goes on with all pushes as far as possible. */
    public void advance(long now) {
        while (!abandoned.isEmpty()) {
            AbandonedPrompt oldest = abandoned.values().iterator().next();
            if (abandoned.values().size() <= MAX_ABANDONED && now - oldest.until() < 0) {
                break;
            }
            abandoned.remove(oldest.requestId());
        }
        for (Iterator<PushTarget> all = targets.iterator(); all.hasNext(); ) {
            PushTarget target = all.next();
            advance(target, now);
            if (target.over) {
                all.remove();
                target.engine.ifPresent(engine -> engine.release(now));
            }
        }
    }

    private void advance(PushTarget target, long now) {
        if (agent.isGone(target.agentName)) {
            // An instance that has ended its connection relies on writes having stopped.
            target.fail("the decode instance has disconnected");
            if (target.remote.isEmpty()) {
                target.over = true;
                return;
            }
        }
        if (target.isToReconnect(now)) {
            settle(target, target.source(), now);
            if (target.over || !target.writes.isEmpty()) {
                return;
            }
            target.reconnect(now);
        }
        if (target.remote.isEmpty() && !connect(target, now)) {
            return;
        }
        if (target.remote.filter(remote -> !remote.peer().alive()).isPresent()) {
            target.fail("the decode instance is gone");
        } else if (now - target.deadline >= 0) {
            target.fail("no such request has come in time");
        }
        PromptSource source = target.source();
        if (target.failure.isEmpty() && source != null) {
            write(target, source, source.complete, 0, self.layout().layers());
        }
        settle(target, source, now);
    }

    private boolean connect(PushTarget target, long now) {
        PushRegistration registration = target.registration;
        PeerEngine engine = peers.instance(registration.decode(), target.since, now);
        if (engine.isPending()) {
            return false;
        }
        Optional<RemoteRank> remote = engine.isConnected() ? engine.rankOf(target.agentName) : Optional.empty();
        if (remote.isEmpty() && engine.isConnected() && !engine.isBaton()) {
            // A vLLM rank registers with all ranks, those too that have none of its heads.
            log.debug("{} has no heads of this rank", target.agentName);
            target.over = true;
            return false;
        }
        if (remote.isEmpty()) {
            log.warn(
                    "Request {} cannot be pushed to {} at {}: {}",
                    registration.requestId(),
                    target.agentName,
                    engine.address(),
                    engine.failure().orElse("another instance answers there"));
            stats.failedTransfer();
            target.over = true;
            return false;
        }
        engine.use(now);
        target.engine = Optional.of(engine);
        target.remote = remote;
        // vLLM peers have no message for this.
        if (engine.isBaton()
                && target.source() == null
                && abandoned
                        .find(registration.requestId())
                        .filter(lost -> lost.answers(target))
                        .isPresent()) {
            target.fail(GIVEN_UP);
        }
        return true;
    }

    private void write(PushTarget target, PromptSource source, int tokens, int firstLayer, int endLayer) {
        if (target.remote.isEmpty()
                || target.failure.isPresent()
                || target.writes.stream().anyMatch(PushSender::hasFailed)
                || !place(target, source)) {
            return;
        }
        BlockMapping map = target.map.orElseThrow();
        RemoteRank remote = target.remote.orElseThrow();
        boolean whole = tokens >= source.promptLength;
        int size = self.layout().blockSize();
        int pieces = 0;
        while (pieces < map.pieces().size()
                && (whole || (map.pieces().get(pieces).index() + 1) * size <= tokens)) {
            pieces++;
        }
        for (int layer = firstLayer; layer < endLayer; ) {
            // Layers that are equally far go together.
            int end = layer + 1;
            while (end < endLayer && target.begun[end] == target.begun[layer]) {
                end++;
            }
            List<Piece> next = map.pieces().subList(Math.min(target.begun[layer], pieces), pieces);
            if (!next.isEmpty() && target.heads.isPresent()) {
                List<Range> ranges = map.ranges(target.heads.get(), next, source.blocks, layer, end).stream()
                        .map(range ->
                                new Range(/* local= */ range.remote(), /* remote= */ range.local(), range.bytes()))
                        .toList();
                long before = ticker.nanos();
                Optional<byte[]> written = remote.info().incarnation().isEmpty()
                        ? Optional.empty()
                        : Optional.of(context.codec()
                                .encode(new PushPart(
                                        target.registration.attempt(),
                                        layer,
                                        end,
                                        Math.min(target.begun[layer], pieces),
                                        pieces)));
                OptionalLong permit = target.registration.permit();
                Duration timeout = settings.transferTimeout();
                Transfer transfer = permit.isPresent()
                        ? agent.write(remote.peer(), permit.getAsLong(), ranges, written, timeout)
                        : agent.start(Operation.WRITE, remote.peer(), ranges, written, timeout);
                target.writes.add(new Write(transfer, ranges.size(), Duration.ofNanos(ticker.nanos() - before)));
            }
            Arrays.fill(target.begun, layer, end, Math.max(target.begun[layer], pieces));
            layer = end;
        }
    }

    /** Works out, once the request is known, where its blocks go. False if they do not fit. */
    private boolean place(PushTarget target, PromptSource source) {
        if (target.map.isPresent()) {
            return true;
        }
        RankInfo reader = target.remote.orElseThrow().info();
        KvLayout there = reader.layout();
        int[] blocks = target.registration.localBlockIds();
        if (reader.pagesPerBlock() != 1) {
            target.fail("physical_blocks_per_logical_kv_block is " + reader.pagesPerBlock()
                    + ", must be 1 for blocks that are written");
            return false;
        }
        Optional<String> misfit = BlockMapping.misfit(self.geometry(), there);
        int firstBlock = there.blocksFor(source.promptLength) - blocks.length;
        if (misfit.isPresent() || firstBlock < 0 || Arrays.stream(blocks).anyMatch(each -> each >= reader.blocks())) {
            target.fail(misfit.orElse("its " + blocks.length + " blocks do not fit the prompt"));
            return false;
        }
        int firstToken = firstBlock * there.blockSize();
        try {
            List<PoolGeometry> owners = new ArrayList<>();
            int own = -1;
            for (int tensor : PeerEngine.sources(
                    reader.rank().tensor(), reader.tensorParallelSize(), self.tensorParallelSize())) {
                own = tensor == self.rank().tensor() ? owners.size() : own;
                owners.add(self.geometry(tensor));
            }
            int index = own;
            BlockMapping map = new BlockMapping(
                    new TransferPlan(firstToken, source.promptLength - firstToken, blocks),
                    reader.geometryToWrite(),
                    owners);
            target.heads = map.heads().stream()
                    .filter(heads -> heads.source() == index)
                    .findFirst();
            target.map = Optional.of(map);
            return true;
        } catch (TransferException e) {
            target.fail(Objects.requireNonNullElse(e.getMessage(), "it does not fit"));
            return false;
        }
    }

    private static boolean hasFailed(Write write) {
        return write.transfer().state() instanceof Transfer.State.Failed;
    }

    private void settle(PushTarget target, @Nullable PromptSource source, long now) {
        for (Iterator<Write> all = target.writes.iterator(); all.hasNext(); ) {
            Write write = all.next();
            switch (write.transfer().state()) {
                case Transfer.State.UnderWay() -> {}
                case Transfer.State.Done(long bytes, Duration elapsed) -> {
                    stats.transferred(elapsed, write.post(), bytes, write.ranges());
                    all.remove();
                }
                case Transfer.State.Failed(Transfer.Cause cause, String message) -> {
                    all.remove();
                    if (cause == Transfer.Cause.NOT_PERMITTED) {
                        // A target closes its permit when it has given up or has all blocks, and then waits for
                        // nothing.
                        log.debug("{} takes nothing more of {}", target.agentName, target.registration.attempt());
                        target.fail(message);
                    } else if (cause != Transfer.Cause.CANCELLED) {
                        stats.failedTransfer();
                        stats.logFailure(
                                "transfer_failed",
                                cause + ": " + message,
                                Map.of("request_id", target.registration.requestId(), "to", target.agentName));
                        if (!target.isToReconnect(now)) {
                            target.fail(cause + ": " + message);
                        }
                    }
                }
            }
        }
        if (!target.writes.isEmpty()) {
            return;
        }
        if (target.failure.isPresent()) {
            target.over = target.leftAlone
                    || !isBaton(target)
                    || notify(target, new PushFailed(target.registration.attempt()))
                    || !target.isToReconnect(now);
        } else if (source != null && source.complete >= source.promptLength && target.map.isPresent()) {
            int pieces = target.map.get().pieces().size();
            if (Arrays.stream(target.begun).allMatch(begun -> begun >= pieces)) {
                boolean notified = notify(target, done(target, source));
                if (notified && !isBaton(target)) {
                    int readers = target.registration.decode().tensorParallelSize() / self.tensorParallelSize();
                    written.add(new Written(target.agentName, new Completion(source.requestId, Math.max(1, readers))));
                }
                target.over = notified || !target.isToReconnect(now);
            }
        }
    }

    private static boolean isBaton(PushTarget target) {
        return target.engine.filter(PeerEngine::isBaton).isPresent();
    }

    /** The end of a push: for a Baton instance with the prompt and the blocks' generations, which it needs to check the blocks. */
    private PeerNotification done(PushTarget target, PromptSource source) {
        return isBaton(target)
                ? new PushDone(
                        target.registration.attempt(),
                        source.prompt,
                        source.blocks,
                        Arrays.stream(source.blocks)
                                .mapToLong(checksums::generation)
                                .toArray())
                : new Completion(target.registration.requestId(), self.tensorParallelSize());
    }

    /** False if it cannot be sent. */
    private boolean notify(PushTarget target, PeerNotification notification) {
        Optional<RemoteRank> alive =
                target.remote.filter(remote -> remote.peer().alive());
        try {
            if (alive.isPresent()) {
                agent.notify(alive.get().peer(), context.codec().encode(notification));
                return true;
            }
        } catch (TransferException e) {
            stats.failedNotification(target.agentName, e.getMessage());
        }
        return false;
    }
}
