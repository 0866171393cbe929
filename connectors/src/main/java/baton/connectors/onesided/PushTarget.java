package baton.connectors.onesided;

import baton.connectors.onesided.BlockMapping.Heads;
import baton.connectors.onesided.BlockMapping.Piece;
import baton.connectors.onesided.PeerEngine.RemoteRank;
import baton.connectors.onesided.PeerNotification.Completion;
import baton.connectors.onesided.PeerNotification.PushAccepted;
import baton.connectors.onesided.PeerNotification.PushDone;
import baton.connectors.onesided.PeerNotification.PushFailed;
import baton.connectors.onesided.PeerNotification.PushPart;
import baton.connectors.onesided.PeerNotification.PushRegistration;
import baton.connectors.onesided.PushSender.PromptSource;
import baton.kv.KvGroups;
import baton.kv.KvLayout;
import baton.transfer.Range;
import baton.transfer.Transfer;
import baton.transfer.TransferAgent;
import baton.transfer.TransferAgent.Operation;
import baton.transfer.TransferException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.stream.IntStream;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/*
 * A target with a permit need not know that the last write has stopped: after it has closed the permit, writes are rejected, which fails
 * this target and nothing else. So this side's connection may break, too: everything is written again over the next one. Any
 * notification or write that the target has lost is repeated when it registers again, as it does from time to time.
 */

/** One rank of a decode instance that has registered a push. */
final class PushTarget extends Push {
    private static final Logger log = LoggerFactory.getLogger(PushTarget.class);

    private final PushSender sender;
    private final RankContext context;
    private final RankInfo self;
    private final TransferAgent agent;
    private final TransferStats stats;
    private final PushRegistration registration;
    private final String agentName;
    /** Peers that were connected before this are not asked: their connection may have ended. */
    private long since;

    /** When the registration last came. */
    private long registered;

    private Optional<PeerEngine> engine = Optional.empty();
    private Optional<RemoteRank> remote = Optional.empty();
    private Optional<BlockMapping> map = Optional.empty();
    private Optional<Heads> heads = Optional.empty();
    /** For each group of layers and layer of a block, the index of the first piece not yet being written. */
    private int[][] begun = {};

    private final List<Write> writes = new ArrayList<>();
    /** Id of the source, once it has come. */
    private Optional<String> sourceId = Optional.empty();

    /** Whether the reader does not wait for a notification of the end. */
    private boolean leftAlone;

    private boolean reconnected;

    private record Write(Transfer transfer, int ranges, Duration post) {}

    PushTarget(PushSender sender, RankContext context, PushRegistration registration, String agentName, long now) {
        super(now + context.settings().pushRegistrationTimeout().toNanos());
        this.sender = sender;
        this.context = context;
        this.self = context.self();
        this.agent = context.agent();
        this.stats = context.stats();
        this.registration = registration;
        this.agentName = agentName;
        this.since = now;
        this.registered = now;
    }

    PushRegistration registration() {
        return registration;
    }

    String agentName() {
        return agentName;
    }

    boolean isRegisteredAs(String attempt, String from) {
        return agentName.equals(from) && registration.attempt().equals(attempt);
    }

    boolean isBaton() {
        return engine.filter(PeerEngine::isBaton).isPresent();
    }

    Optional<PromptSource> source() {
        sourceId = sourceId.or(() -> sender.sourceId(registeredId()));
        Optional<PromptSource> source = sourceId.flatMap(sender::source);
        source.ifPresent(found -> found.registeredBy.put(agentName, registration.attempt()));
        return source;
    }

    /** The request's id, or the common part of both legs' ids: a vLLM instance registers its own id. */
    private String registeredId() {
        return engine.filter(known -> !known.isBaton()).isPresent()
                ? RequestIdMap.commonId(registration.requestId())
                : registration.requestId();
    }

    boolean isOf(String requestId) {
        return sourceId.map(requestId::equals)
                .orElse(registeredId().equals(requestId) || registeredId().equals(RequestIdMap.commonId(requestId)));
    }

    /** Answers a registration that has come again, if the request has come too. vLLM peers have no message for this. */
    void accept(long now) {
        registered = now;
        if (isBaton() && !hasFailed() && source().isPresent()) {
            var _ = notify(new PushAccepted(registration.attempt()));
        }
    }

    /** Fails without a notification: the target does not wait for it. */
    void leaveAlone(String why) {
        leftAlone = true;
        fail(why);
    }

    /** The written blocks are invalid: the source has other blocks now. */
    void restart() {
        cancelWrites();
        map = Optional.empty();
    }

    /** Ends the push to this target. */
    void release(long now) {
        engine.ifPresent(known -> known.release(now));
        engine = Optional.empty();
        remote = Optional.empty();
    }

    @Override
    protected Optional<String> lost(long now) {
        if (agent.isGone(agentName)) {
            // An instance that has ended its connection relies on writes having stopped.
            return Optional.of("the decode instance has disconnected");
        }
        if (isForgotten(now)) {
            leftAlone = true;
            return Optional.of("its registration is not repeated");
        }
        return isDisconnected() && !isToReconnect(now) ? Optional.of("the decode instance is gone") : Optional.empty();
    }

    /** Whether its prompt has not come, and neither has its registration for as long as a target with a permit registers several times. */
    private boolean isForgotten(long now) {
        return registration.permit().isPresent()
                && now - registered
                        >= context.settings()
                                .heartbeatInterval()
                                .multipliedBy(OneSidedSettings.HEARTBEATS_OF_LEASE)
                                .toNanos()
                && source().isEmpty();
    }

    @Override
    protected Optional<String> late() {
        return Optional.of("it has not ended in time");
    }

    @Override
    protected boolean write(long now) {
        if ((isToReconnect(now) && !isQuiet(now)) || hasFailed() || !isConnected(now)) {
            return false;
        }
        Optional<PromptSource> source = source();
        source.ifPresent(
                found -> write(found, found.complete, context.cache().groups().layers()));
        return source.filter(found -> found.complete >= found.promptLength).isPresent()
                && map.filter(this::hasBegun).isPresent();
    }

    /** Whether all pieces were begun to be written. */
    private boolean hasBegun(BlockMapping placed) {
        return IntStream.range(0, begun.length)
                .allMatch(group -> Arrays.stream(begun[group])
                        .allMatch(each -> each >= placed.ends().get(group)));
    }

    @Override
    protected void cancelWrites() {
        writes.forEach(write -> write.transfer().cancel());
    }

    @Override
    protected boolean end(long now) {
        if (hasFailed()) {
            boolean wasNeverConnected = remote.isEmpty() && agent.isGone(agentName);
            if (!leftAlone && !wasNeverConnected && !isConnected(now)) {
                return leftAlone;
            }
            return leftAlone
                    || wasNeverConnected
                    || !isBaton()
                    || notify(new PushFailed(registration.attempt()))
                    || !isToReconnect(now);
        }
        PromptSource source = source().orElseThrow();
        boolean notified = notify(done(source));
        if (notified && !isBaton()) {
            int readers = registration.decode().tensorParallelSize() / self.tensorParallelSize();
            sender.isWritten(agentName, new Completion(source.requestId, Math.max(1, readers)));
        }
        return notified || !isToReconnect(now);
    }

    private boolean isDisconnected() {
        return remote.filter(known -> !known.peer().alive()).isPresent();
    }

    /** Whether to connect again after the connection to it has ended, once. If it ends again, the target registers again if it still waits. */
    private boolean isToReconnect(long now) {
        return registration.permit().isPresent()
                && !reconnected
                && isDisconnected()
                && !leftAlone
                && !isLate(now)
                && !agent.isGone(agentName);
    }

    /** Connects, if it is not connected. False while that is under way, and if the push has failed by it. */
    private boolean isConnected(long now) {
        if (isToReconnect(now)) {
            reconnected = true;
            restart();
            release(now);
            since = now;
        }
        return remote.isPresent() || connect(now);
    }

    private boolean connect(long now) {
        PeerEngine decode = sender.peers().instance(registration.decode(), since, now);
        if (decode.isPending()) {
            return false;
        }
        Optional<RemoteRank> rank = decode.isConnected() ? decode.rankOf(agentName) : Optional.empty();
        if (rank.isEmpty() && decode.isConnected() && !decode.isBaton()) {
            // A vLLM rank registers with all ranks, those too that have none of its heads.
            log.debug("{} has no heads of this rank", agentName);
            leaveAlone("it has no heads of this rank");
            return false;
        }
        if (rank.isEmpty()) {
            log.warn(
                    "Request {} cannot be pushed to {} at {}: {}",
                    registration.requestId(),
                    agentName,
                    decode.address(),
                    decode.failure().orElse("another instance answers there"));
            stats.failedTransfer();
            leaveAlone("it cannot be connected");
            return false;
        }
        decode.use(now);
        engine = Optional.of(decode);
        remote = rank;
        // vLLM peers have no message for this.
        if (decode.isBaton() && source().isEmpty() && sender.answersAbandoned(this)) {
            fail(PushSender.GIVEN_UP);
        }
        return true;
    }

    /** Writes the layers before {@code endLayer} of the first tokens of the prompt, as far as they were not written. */
    void write(PromptSource source, int tokens, int endLayer) {
        if (remote.isEmpty()
                || hasFailed()
                || writes.stream().anyMatch(each -> each.transfer().state() instanceof Transfer.State.Failed)
                || !place(source)) {
            return;
        }
        BlockMapping placed = map.orElseThrow();
        boolean whole = tokens >= source.promptLength;
        for (int group = 0; group < begun.length; group++) {
            int pieces = begun[group][begun[group].length - 1];
            while (pieces < placed.ends().get(group) && (whole || placed.tokensUntil(group, pieces) <= tokens)) {
                pieces++;
            }
            write(source, placed, begun[group], pieces, context.cache().groups().filledSlots(group, endLayer));
        }
    }

    /**
     * Writes pieces of a group of layers.
     *
     * @param begun of the group
     * @param pieces the index behind the last of them
     * @param endLayer layers of their blocks that are in place
     */
    private void write(PromptSource source, BlockMapping placed, int[] begun, int pieces, int endLayer) {
        RemoteRank reader = remote.orElseThrow();
        for (int layer = 0; layer < endLayer; ) {
            // Layers that are equally far go together.
            int end = layer + 1;
            while (end < endLayer && begun[end] == begun[layer]) {
                end++;
            }
            List<Piece> next = placed.pieces().subList(Math.min(begun[layer], pieces), pieces);
            if (!next.isEmpty() && heads.isPresent()) {
                List<Range> ranges = placed.ranges(heads.get(), next, source.blocks, layer, end).stream()
                        .map(range ->
                                new Range(/* local= */ range.remote(), /* remote= */ range.local(), range.bytes()))
                        .toList();
                long before = context.ticker().nanos();
                Optional<byte[]> written = reader.info().incarnation().isEmpty()
                        ? Optional.empty()
                        : Optional.of(context.codec()
                                .encode(new PushPart(
                                        registration.attempt(), layer, end, Math.min(begun[layer], pieces), pieces)));
                OptionalLong permit = registration.permit();
                Duration timeout = context.settings().transferTimeout();
                Transfer transfer = permit.isPresent()
                        ? agent.write(reader.peer(), permit.getAsLong(), ranges, written, timeout)
                        : agent.start(Operation.WRITE, reader.peer(), ranges, written, timeout);
                writes.add(new Write(
                        transfer,
                        ranges.size(),
                        Duration.ofNanos(context.ticker().nanos() - before)));
            }
            Arrays.fill(begun, layer, end, Math.max(begun[layer], pieces));
            layer = end;
        }
    }

    /** Works out, once the request is known, where its blocks go. False if they do not fit. */
    private boolean place(PromptSource source) {
        if (map.isPresent()) {
            return true;
        }
        RankInfo reader = remote.orElseThrow().info();
        KvLayout there = reader.layout();
        KvGroups groups = context.cache().groups();
        List<Integer> sizes =
                registration.localBlockIds().stream().map(ids -> ids.length).toList();
        int[] blocks = registration.localBlockIds().stream()
                .flatMapToInt(Arrays::stream)
                .toArray();
        if (reader.pagesPerBlock() != 1) {
            fail("physical_blocks_per_logical_kv_block is " + reader.pagesPerBlock()
                    + ", must be 1 for blocks that are written");
            return false;
        }
        if (sizes.size() != groups.size()) {
            fail("local_block_ids has blocks of %d groups of layers, and the model has %d here"
                    .formatted(sizes.size(), groups.size()));
            return false;
        }
        Optional<String> misfit = BlockMapping.misfit(self.geometry(), there);
        Optional<TransferPlan> plan = groups.hasWindows()
                ? TransferPlan.ofGroups(0, source.promptLength, blocks, sizes, source.ofGroups, 0)
                        .filter(_ -> there.blockSize() == self.layout().blockSize())
                : plan(source, blocks, there);
        if (misfit.isPresent() || plan.isEmpty() || Arrays.stream(blocks).anyMatch(each -> each >= reader.blocks())) {
            fail(misfit.orElse("its " + blocks.length + " blocks do not fit the prompt"));
            return false;
        }
        try {
            List<PoolGeometry> owners = new ArrayList<>();
            int own = -1;
            for (int tensor : PeerEngine.sources(
                    reader.rank().tensor(), reader.tensorParallelSize(), self.tensorParallelSize())) {
                own = tensor == self.rank().tensor() ? owners.size() : own;
                owners.add(self.geometry(tensor));
            }
            int index = own;
            BlockMapping placed = new BlockMapping(plan.get(), reader.geometryToWrite(), owners);
            heads = placed.heads().stream()
                    .filter(each -> each.source() == index)
                    .findFirst();
            map = Optional.of(placed);
            begun = new int[groups.size()][self.layout().layers()];
            for (int group = 1; group < begun.length; group++) {
                Arrays.fill(begun[group], placed.ends().get(group - 1));
            }
            return true;
        } catch (TransferException e) {
            fail(Objects.requireNonNullElse(e.getMessage(), "it does not fit"));
            return false;
        }
    }

    /** The plan for blocks with all layers, the prompt's last ones. Empty if there are too many. */
    private static Optional<TransferPlan> plan(PromptSource source, int[] blocks, KvLayout there) {
        int firstToken = (there.blocksFor(source.promptLength) - blocks.length) * there.blockSize();
        return firstToken < 0
                ? Optional.empty()
                : Optional.of(new TransferPlan(firstToken, source.promptLength - firstToken, blocks));
    }

    @Override
    protected boolean isQuiet(long now) {
        for (Iterator<Write> all = writes.iterator(); all.hasNext(); ) {
            Write write = all.next();
            switch (write.transfer().state()) {
                case Transfer.State.UnderWay() -> {}
                case Transfer.State.Done(long bytes, Duration elapsed) -> {
                    stats.transferred(elapsed, write.post(), bytes, write.ranges());
                    all.remove();
                }
                case Transfer.State.Failed(Transfer.Cause cause, String message) -> {
                    all.remove();
                    onFailed(cause, message, now);
                }
            }
        }
        return writes.isEmpty();
    }

    private void onFailed(Transfer.Cause cause, String message, long now) {
        if (cause == Transfer.Cause.NOT_PERMITTED) {
            // A target closes its permit when it has given up or has all blocks, and then waits for nothing.
            log.debug("{} takes nothing more of {}", agentName, registration.attempt());
            fail(message);
        } else if (cause != Transfer.Cause.CANCELLED) {
            stats.failedTransfer();
            stats.logFailure(
                    "transfer_failed",
                    cause + ": " + message,
                    Map.of("request_id", registration.requestId(), "to", agentName));
            if (!isToReconnect(now)) {
                fail(cause + ": " + message);
            }
        }
    }

    /** The end of a push: for a Baton instance with the prompt and the blocks' generations, which it needs to check the blocks. */
    private PeerNotification done(PromptSource source) {
        return isBaton()
                ? new PushDone(registration.attempt(), source.prompt, source.blocks, sender.generations(source.blocks))
                : new Completion(registration.requestId(), self.tensorParallelSize());
    }

    /** False if it cannot be sent. */
    private boolean notify(PeerNotification notification) {
        Optional<RemoteRank> alive = remote.filter(known -> known.peer().alive());
        try {
            if (alive.isPresent()) {
                agent.notify(alive.get().peer(), context.codec().encode(notification));
                return true;
            }
        } catch (TransferException e) {
            stats.failedNotification(agentName, e.getMessage());
        }
        return false;
    }
}
