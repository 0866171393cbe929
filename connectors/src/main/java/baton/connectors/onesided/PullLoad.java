package baton.connectors.onesided;

import baton.connectors.onesided.PeerEngine.RemoteRank;
import baton.kv.connector.Rank;
import baton.transfer.TransferException;
import java.time.Duration;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Collectors;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * One load: waits for the handshake with the owner of the blocks, reads them or waits for their push ({@link PushReceiver}), and compares
 * them with the owner's checksums ({@link BlockLoad}). Each of these has a deadline. A load is over only when no transfer can write to
 * its blocks any more; blocks whose content is not as promised are invalid then.
 */
final class PullLoad {
    private static final Logger log = LoggerFactory.getLogger(PullLoad.class);

    /** As vLLM: a load does not begin if its blocks expire within this, by the owner's clock. */
    private static final Duration EXPIRY_MARGIN = Duration.ofSeconds(5);

    private final LoadTable table;
    private final RankContext context;
    private final LoadRequest load;
    private final long since;
    private final long deadline;
    private final Set<Integer> invalid = new LinkedHashSet<>();
    private Optional<PeerEngine> engine = Optional.empty();
    private Optional<PushReceiver> push = Optional.empty();
    private Optional<BlockLoad> transfer = Optional.empty();
    private boolean cancelled;
    private boolean over;
    /** The owner has been notified that the blocks are not needed, or need not be. */
    private boolean ownerKnows;

    PullLoad(LoadTable table, LoadRequest load, long now) {
        this.table = table;
        this.context = table.context();
        this.load = load;
        this.since = now;
        Duration timeout = switch (load.source().mode()) {
            case PULL -> context.settings().transferTimeout();
            case PUSH -> context.settings().pushRegistrationTimeout();
        };
        this.deadline = now + timeout.toNanos();
    }

    boolean isOver() {
        return over;
    }

    /** Blocks that do not have what was promised. */
    Set<Integer> invalid() {
        return invalid;
    }

    /** The push that the load waits for, or waited for. */
    Optional<PushReceiver> push() {
        return push;
    }

    /** Whether parts of the push that arrive now are to be digested. */
    boolean isReceiving() {
        return push.isPresent() && transfer.isEmpty() && !over;
    }

    void cancel() {
        cancelled = true;
        transfer.ifPresent(BlockLoad::cancel);
    }

    /** True if it has come further. */
    boolean advance(long now) {
        if (over) {
            return false;
        }
        if (transfer.isPresent()) {
            return advance(transfer.get(), now);
        }
        return push.isPresent() ? advance(push.get(), now) : connect(now);
    }

    private boolean connect(long now) {
        if (cancelled) {
            // Nothing was read, but the owner waits for the completion.
            table.outbox().completion(load.source(), since);
            ownerKnows = true;
            over = true;
            return true;
        }
        if (load.refused().isPresent()) {
            table.outbox().completion(load.source(), since);
            ownerKnows = true;
            reject(load.refused().get().cause(), load.refused().get().words());
            return true;
        }
        Optional<String> unreached = load.waitsSince().isPresent()
                ? table.peers()
                        .failureSince(load.source().address(), load.waitsSince().getAsLong())
                : Optional.empty();
        if (unreached.isPresent()) {
            ownerKnows = true;
            fail("handshake_failed", unreached.get(), now);
            return true;
        }
        PeerEngine owner = table.peers().owner(load.source(), since, now);
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
            reject(Rejection.STALE, "the peer at " + owner.address() + " is another instance, or another incarnation");
        } else if (!owner.hasPromised(load.source())) {
            ownerKnows = true;
            reject(Rejection.FORGED, "the reference is not as its owner made it");
        } else if (context.settings().requireVerified() && !owner.isBaton()) {
            table.outbox().completion(load.source(), since);
            ownerKnows = true;
            reject(Rejection.UNVERIFIED, "the peer is not an instance of Baton, and require_verified_kv is true");
        } else if (load.expiry().isPresent() && owner.isExpiring(load.expiry().getAsDouble(), EXPIRY_MARGIN, now)) {
            table.outbox().completion(load.source(), since);
            reject(Rejection.STALE, "their lease expires within " + EXPIRY_MARGIN.toSeconds() + " s");
        } else {
            begin(owner, now);
        }
        return true;
    }

    private void begin(PeerEngine owner, long now) {
        engine = Optional.of(owner);
        owner.use(now);
        context.stats().handover("handshake", Duration.ofNanos(now - since));
        Optional<String> misfit = owner.ranks().stream()
                .flatMap(rank -> BlockMapping.misfit(
                        rank.info().geometry(), context.self().layout())
                        .stream())
                .findFirst();
        if (misfit.isPresent()) {
            fail("transfer_setup_failed", misfit.get(), now);
            return;
        }
        switch (load.source().mode()) {
            case PULL -> move(owner, BlockLoad.Source.of(load.source(), owner), Optional.empty(), now);
            case PUSH -> {
                PushReceiver receiver =
                        new PushReceiver(context, table.outbox(), owner, load, table.instance(), mapping(owner), now);
                push = Optional.of(receiver);
                receiver.register(now);
            }
        }
    }

    private BlockMapping mapping(PeerEngine owner) {
        List<PoolGeometry> owners = owner.ranks().stream()
                .map(RemoteRank::info)
                .map(RankInfo::geometry)
                .toList();
        return new BlockMapping(load.plan(), context.self().geometry(), owners);
    }

    private boolean advance(PushReceiver receiver, long now) {
        Optional<String> stop = cancelled
                ? Optional.of("cancelled")
                : now - deadline >= 0 ? Optional.of("the blocks were not pushed in time") : Optional.empty();
        if (!receiver.advance(stop, now)) {
            return false;
        }
        if (cancelled) {
            over = true;
        } else if (receiver.failure().isPresent()) {
            fail("transfer_failed", receiver.failure().get(), now);
        } else if (receiver.isOfAnotherPrompt()) {
            reject(Rejection.MISMATCH, "they are of another prompt");
        } else {
            move(engine.orElseThrow(), receiver.source(), Optional.of(receiver.checksums()), now);
        }
        return true;
    }

    /** @param arrived the blocks were pushed and are only to be checked */
    private void move(PeerEngine owner, BlockLoad.Source source, Optional<ArrivalChecksums> arrived, long now) {
        BlockMapping mapping = mapping(owner);
        // A vLLM instance does not say from which of its blocks it has written.
        boolean unnamed = arrived.isPresent() && source.generations().isEmpty();
        Optional<Rejection> wrong = unnamed ? Optional.empty() : mapping.check(source.blocks());
        if (wrong.isPresent()) {
            reject(wrong.get(), "the reference does not name the blocks of its tokens");
            return;
        }
        try {
            transfer = Optional.of(new BlockLoad(context, mapping, source, arrived, table.parts(), remaining(now)));
        } catch (TransferException | RuntimeException e) {
            fail("transfer_setup_failed", String.valueOf(e.getMessage()), now);
        }
    }

    private Duration remaining(long now) {
        return Duration.ofNanos(Math.max(1, deadline - now));
    }

    private boolean advance(BlockLoad moving, long now) {
        boolean moved = moving.advance(remaining(now));
        Optional<BlockLoad.Result> result = moving.result();
        if (result.isEmpty()) {
            return moved;
        }
        switch (result.get()) {
            case BlockLoad.Result.Good() -> {
                table.agentDigests(moving.wasDigestedByAgent());
                if (push.isPresent() && !engine.orElseThrow().isBaton()) {
                    // It has written them, and knows a push by no id that would be in a completion.
                    ownerKnows = true;
                }
                // All ranks of an instance load from the same instance: one of them counts.
                if (!moving.isChecked() && context.self().rank().equals(Rank.FIRST)) {
                    context.stats().count("baton:kv_unverified_loads");
                }
                moving.spans().forEach(span -> context.stats().handover(span.phase(), span.duration()));
                log.debug(
                        "request {}: {} tokens of request {} received; {}",
                        load.requestId(),
                        load.plan().tokens(),
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
                        load.plan().blocks().length,
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
        context.stats().add(cause.measurement(1));
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
        context.stats().failedTransfer();
        context.stats()
                .logFailure(
                        type,
                        message,
                        Map.of(
                                "request_id", load.requestId(),
                                "remote_request_id", load.source().requestId(),
                                "remote_engine_id", load.source().engineId(),
                                "remote",
                                        load.source().host() + ":"
                                                + load.source().port(),
                                "tokens", load.plan().tokens(),
                                "after_ms", (now - since) / 1_000_000));
        allInvalid();
    }

    private void allInvalid() {
        for (int block : load.plan().blocks()) {
            invalid.add(block);
        }
        over = true;
    }

    /** The load is over: the owner may have its blocks back. */
    void settle(long now) {
        engine.ifPresent(owner -> {
            owner.release(now);
            if (!ownerKnows && owner.isConnected()) {
                table.outbox().notify(owner, table.outbox().completion(load.source(), owner));
            } else if (!ownerKnows) {
                // It may connect again.
                table.outbox().completion(load.source(), now);
            }
        });
    }

    /** Returns when nothing reads the pool any more. The agent is closed. */
    void awaitChecksums() {
        transfer.ifPresent(BlockLoad::awaitCheck);
        push.ifPresent(PushReceiver::awaitChecksums);
    }
}
