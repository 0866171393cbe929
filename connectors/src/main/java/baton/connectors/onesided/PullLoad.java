package baton.connectors.onesided;

import baton.connectors.onesided.PeerEngine.RemoteRank;
import baton.kv.KvDigest;
import baton.transfer.TransferException;
import java.time.Duration;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.stream.Collectors;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A load from a peer of which the pool is known: waits for the handshake with the owner of the blocks, reads them ({@link BlockReads}) or
 * waits for their push ({@link PushReceiver}), and compares them with the owner's checksums ({@link BlockCheck}).
 */
final class PullLoad extends Load {
    private static final Logger log = LoggerFactory.getLogger(PullLoad.class);

    /** A load does not begin if its blocks expire within this time, by the owner's clock; as in vLLM. */
    private static final Duration EXPIRY_MARGIN = Duration.ofSeconds(5);

    private final PullLoads table;
    private final RankContext context;
    private final LoadRequest load;
    private Optional<PeerEngine> engine = Optional.empty();
    private Optional<BlockMapping> mapping = Optional.empty();
    private Optional<PushReceiver> push = Optional.empty();
    private Optional<BlockReads> reads = Optional.empty();
    /** The owner has been notified that the blocks are not needed, or need not be. */
    private boolean ownerKnows;

    PullLoad(PullLoads table, LoadRequest load, long now) {
        super(
                load.plan().blocks(),
                table.context.self().rank(),
                table.context.stats(),
                now,
                switch (load.source().mode()) {
                    case PULL -> table.context.settings().transferTimeout();
                    case PUSH -> table.context.settings().pushRegistrationTimeout();
                });
        this.table = table;
        this.context = table.context;
        this.load = load;
    }

    /** The push that the load waits for, or waited for. */
    Optional<PushReceiver> push() {
        return push;
    }

    @Override
    protected void unwanted() {
        // Nothing was read, but the owner waits for the completion.
        complete();
    }

    /** Notifies the owner, when it is connected. */
    private void complete() {
        table.outbox.completion(load.source(), since());
    }

    @Override
    protected Optional<? extends Arrival> connect(long now) {
        if (load.refused().isPresent()) {
            complete();
            reject(load.refused().get().cause(), load.refused().get().words());
            return Optional.empty();
        }
        Optional<String> unreached = load.waitsSince().isPresent()
                ? table.peers.failureSince(
                        load.source().address(), load.waitsSince().getAsLong())
                : Optional.empty();
        if (unreached.isPresent()) {
            fail(NO_HANDSHAKE, unreached.get(), now);
            return Optional.empty();
        }
        PeerEngine owner = table.peers.owner(load.source(), since(), now);
        if (owner.isPending()) {
            return Optional.empty();
        }
        if (owner.failure().isPresent()) {
            fail(NO_HANDSHAKE, owner.failure().get(), now);
        } else if (!owner.isConnected()) {
            fail(NO_HANDSHAKE, "the peer is gone", now);
        } else if (!owner.isOwnerOf(load.source())) {
            reject(Rejection.STALE, "the peer at " + owner.address() + " is another instance, or another incarnation");
        } else if (!owner.hasPromised(load.source())) {
            reject(Rejection.FORGED, "the reference is not as its owner made it");
        } else if (context.settings().requireVerified() && owner.digest() == KvDigest.NONE) {
            complete();
            reject(
                    Rejection.UNVERIFIED,
                    (owner.isBaton() ? "the peer's kv_digest is none" : "the peer is not an instance of Baton")
                            + ", and require_verified_kv is true");
        } else if (load.expiry().isPresent() && owner.isExpiring(load.expiry().getAsDouble(), EXPIRY_MARGIN, now)) {
            table.outbox.completion(load.source(), since());
            reject(Rejection.STALE, "their lease expires within " + EXPIRY_MARGIN.toSeconds() + " s");
        } else {
            return begin(owner, now);
        }
        return Optional.empty();
    }

    private Optional<? extends Arrival> begin(PeerEngine owner, long now) {
        engine = Optional.of(owner);
        owner.use(now);
        Optional<String> misfit = owner.ranks().stream()
                .flatMap(rank -> BlockMapping.misfit(
                        rank.info().geometry(), context.self().layout())
                        .stream())
                .findFirst();
        if (misfit.isPresent()) {
            fail(NO_SETUP, misfit.get(), now);
            return Optional.empty();
        }
        BlockMapping map = mapping(owner);
        mapping = Optional.of(map);
        return switch (load.source().mode()) {
            case PULL -> read(map, SourceBlocks.of(load.source(), owner), now);
            case PUSH -> {
                push = Optional.of(new PushReceiver(context, table.outbox, owner, load, table.instance(), map, now));
                push.get().register(now);
                yield push;
            }
        };
    }

    private BlockMapping mapping(PeerEngine owner) {
        List<PoolGeometry> owners = owner.ranks().stream()
                .map(RemoteRank::info)
                .map(RankInfo::geometry)
                .toList();
        return new BlockMapping(load.plan(), context.self().geometry(), owners);
    }

    private Optional<BlockReads> read(BlockMapping map, SourceBlocks source, long now) {
        if (areNamed(map, source)) {
            try {
                reads = Optional.of(new BlockReads(context, map, source, table.parts(), remaining(now)));
            } catch (TransferException | RuntimeException e) {
                fail(NO_SETUP, String.valueOf(e.getMessage()), now);
            }
        }
        return reads;
    }

    /** Whether the source has the blocks of the tokens; else the load has ended. */
    private boolean areNamed(BlockMapping map, SourceBlocks source) {
        Optional<Rejection> wrong = map.check(source.blocks());
        wrong.ifPresent(cause -> reject(cause, "the reference does not name the blocks of its tokens"));
        return wrong.isEmpty();
    }

    @Override
    protected Optional<? extends LoadCheck> check(long now) {
        PeerEngine owner = engine.orElseThrow();
        BlockMapping map = mapping.orElseThrow();
        SourceBlocks source = push.map(PushReceiver::source).orElseGet(() -> SourceBlocks.of(load.source(), owner));
        if (push.filter(PushReceiver::isOfAnotherPrompt).isPresent()) {
            reject(Rejection.MISMATCH, "they are of another prompt");
            return Optional.empty();
        }
        if (!source.isChecked()) {
            // A vLLM instance does not say from which of its blocks it has written.
            return Optional.of(new RearrangedBlocks(context, map));
        }
        if (push.isPresent() && !areNamed(map, source)) {
            return Optional.empty();
        }
        PieceDigests digests =
                reads.map(BlockReads::digests).orElseGet(() -> new PieceDigests(context, map, source.digest()));
        try {
            // First, as it may fail: after that nothing may read the blocks.
            Duration read =
                    Collections.min(List.of(remaining(now), context.settings().transferTimeout()));
            BlockCheck begun = new BlockCheck(context, map, source, digests, read);
            push.ifPresent(pushed -> {
                digests.take(pushed.checksums());
                digests.digest(0, map.pieces().size());
            });
            return Optional.of(begun);
        } catch (TransferException | RuntimeException e) {
            fail(NO_SETUP, String.valueOf(e.getMessage()), now);
            return Optional.empty();
        }
    }

    @Override
    protected Optional<String> late(boolean isConnected) {
        if (!isConnected) {
            return Optional.of("no handshake in time");
        }
        // Reads have a time limit of their own.
        return push.map(_ -> "the blocks were not pushed in time");
    }

    @Override
    protected void isGood() {
        reads.ifPresent(each -> table.agentDigests(each.digests().wereByAgent()));
        if (push.isPresent() && !engine.orElseThrow().isBaton()) {
            // It has written them, and knows a push by no id that would be in a completion.
            ownerKnows = true;
        }
        log.debug(
                "request {}: {} tokens of request {} received",
                load.requestId(),
                load.plan().tokens(),
                load.source().requestId());
    }

    @Override
    protected void onWrong(Map<Integer, Rejection> wrong) {
        wrong.values().stream().distinct().forEach(cause -> context.stats().add(cause.measurement(1)));
        log.warn(
                "request {}: {} of {} blocks of request {} of engine {} failed verification ({}) and are not used",
                load.requestId(),
                wrong.size(),
                load.plan().blocks().length,
                load.source().requestId(),
                load.source().engineId(),
                wrong.values().stream()
                        .map(Rejection::label)
                        .distinct()
                        .sorted()
                        .collect(Collectors.joining(", ")));
    }

    @Override
    protected void onRejected(Rejection cause, String why) {
        log.warn(
                "request {}: the blocks of request {} of engine {} are refused ({}): {}",
                load.requestId(),
                load.source().requestId(),
                load.source().engineId(),
                cause.label(),
                why);
    }

    @Override
    protected void onFailed(String type, String message, long now) {
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
                                "after_ms", (now - since()) / 1_000_000));
    }

    /** The owner may have its blocks back. */
    @Override
    protected void settle(long now) {
        engine.ifPresent(owner -> {
            owner.release(now);
            if (!ownerKnows && owner.isConnected()) {
                table.outbox.notify(owner, table.outbox.completion(load.source(), owner));
            } else if (!ownerKnows) {
                // It may connect again.
                table.outbox.completion(load.source(), now);
            }
        });
    }
}
