package baton.connectors.onesided;

import baton.connectors.onesided.PeerEngine.RemoteRank;
import baton.connectors.onesided.PeerNotification.Completion;
import baton.connectors.onesided.PeerNotification.Instance;
import baton.connectors.onesided.PeerNotification.PushCancel;
import baton.connectors.onesided.PeerNotification.PushDone;
import baton.connectors.onesided.PeerNotification.PushFailed;
import baton.connectors.onesided.PeerNotification.PushPart;
import baton.connectors.onesided.PeerNotification.PushRegistration;
import baton.transfer.TransferAgent.Permit;
import baton.transfer.TransferAgent.Span;
import baton.transfer.TransferException;
import java.time.Duration;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.regex.Pattern;

/**
 * A load by a push of the owner. Gives the owner a permit to write to the blocks, registers them with each of its ranks, and
 * waits until all ranks have notified the end of the push. However it ends, the permit is closed then: that aborts the owner's in-flight
 * writes and rejects later ones. Where the agent has no permits, a push that is given up is over only when the owner says that it has
 * stopped writing, is gone, or must have stopped by its own time limits.
 */
final class PushReceiver implements Arrival {
    /** The number of a sample behind the random end of its request's id. */
    private static final Pattern SAMPLE = Pattern.compile("(-[0-9a-f]{8})-[0-9]{1,7}$");

    private final RankContext context;
    private final Outbox outbox;
    private final PeerEngine owner;
    private final LoadRequest load;
    private final PushRegistration registration;
    /** Open as long as the owner may write; empty where writes cannot be rejected. */
    private final Optional<Permit> permit;

    private final ArrivalChecksums checksums;
    /**
     * Names of the owner's agents that have not notified the end of the push, each with the registrations since it last notified that the push
     * goes on.
     */
    private final Map<String, Integer> awaited = new HashMap<>();

    private long registered;

    private Optional<PushDone> done = Optional.empty();
    private Optional<String> failure = Optional.empty();
    private OptionalLong gaveUp = OptionalLong.empty();

    /** @param self where the owner finds this instance's side channel */
    PushReceiver(
            RankContext context,
            Outbox outbox,
            PeerEngine owner,
            LoadRequest load,
            Instance self,
            BlockMapping mapping,
            long now) {
        this.context = context;
        this.outbox = outbox;
        this.owner = owner;
        this.load = load;
        this.registered = now;
        this.checksums = new ArrivalChecksums(
                mapping, context.cache(), owner.digest(), context.runtime().background(), context.wake());
        long bytes = context.cache().layout().blockBytes();
        this.permit = context.agent()
                .permit(Arrays.stream(load.plan().blocks())
                        .mapToObj(block -> new Span(context.self().geometry().block(block), bytes))
                        .toList());
        RemoteBlocks source = load.source();
        // vLLM compares ids without their random ends, and knows no number of a sample behind them.
        this.registration = new PushRegistration(
                owner.isBaton()
                        ? source.requestId()
                        : SAMPLE.matcher(load.requestId()).replaceFirst("$1"),
                self,
                load.plan().byGroup(),
                new Instance(source.engineId(), source.host(), source.port(), source.tensorParallelSize()),
                context.self().pipelineParallelSize(),
                permit.map(given -> OptionalLong.of(given.token())).orElseGet(OptionalLong::empty));
        owner.ranks().forEach(rank -> awaited.put(rank.peer().name(), 1));
    }

    /** Sends the registration to the owner for the first time. */
    void register(long now) {
        byte[] message = context.codec().encode(registration);
        for (RemoteRank rank : owner.ranks()) {
            try {
                context.agent().notify(rank.peer(), message);
            } catch (TransferException e) {
                context.stats().countFailedNotification();
                failure = Optional.of("the registration cannot be sent: " + e.getMessage());
            }
        }
        if (failure.isPresent()) {
            giveUp(now);
        }
    }

    /** False if it is about another push. */
    boolean onAccepted(String attempt, String from) {
        if (!isAwaited(from, attempt)) {
            return false;
        }
        awaited.put(from, 0);
        return true;
    }

    /** False if it is about another push. */
    boolean onDone(PushDone notification, String from) {
        if (!isAwaited(from, notification.attempt())) {
            return false;
        }
        awaited.remove(from);
        done = Optional.of(notification);
        return true;
    }

    /** False if it is about another push. */
    boolean onFailed(PushFailed notification, String from) {
        if (!isAwaited(from, notification.attempt())) {
            return false;
        }
        awaited.remove(from);
        failure = failure.or(() -> Optional.of("the prefill instance does not push the blocks"));
        return true;
    }

    private boolean isAwaited(String from, String attempt) {
        return awaited.containsKey(from) && registration.attempt().equals(attempt);
    }

    /** The end of a push from a vLLM peer; a Baton instance sends {@link PushDone}. False if it is not about this push. */
    boolean onCompletion(Completion completion, String from) {
        boolean isDone = !owner.isBaton()
                && completion.requestId().equals(registration.requestId())
                && completion.notifications() == load.source().tensorParallelSize();
        return isDone && awaited.remove(from) != null;
    }

    void onPart(PushPart part, String from) {
        if (!registration.attempt().equals(part.attempt())) {
            return;
        }
        awaited.replace(from, 0);
        List<RemoteRank> ranks = owner.ranks();
        for (int source = 0; source < ranks.size(); source++) {
            if (ranks.get(source).peer().name().equals(from)) {
                checksums.onPart(source, part);
            }
        }
    }

    @Override
    public boolean advance(Optional<String> stop, long now) {
        if (!owner.isConnected() && failure.isEmpty()) {
            failure = Optional.of("the peer is gone");
        }
        failure = failure.or(() -> stop);
        registerAgain(now);
        if (failure.isPresent() && !awaited.isEmpty()) {
            giveUp(now);
        }
        if (!awaited.isEmpty()) {
            return false;
        }
        permit.ifPresent(Permit::close);
        if (failure.isPresent() && gaveUp.isEmpty()) {
            // The owner may have received the registration twice.
            giveUp(now);
        }
        return checksums.isIdle();
    }

    /**
     * The end of the push, or the registration, may have been lost with its connection. The owner need not detect a repeated registration:
     * with a permit, a second write does no harm. An instance of Baton answers it once the prefill request has come.
     */
    private void registerAgain(long now) {
        if (permit.isEmpty()
                || failure.isPresent()
                || awaited.isEmpty()
                || now - registered < context.settings().heartbeatInterval().toNanos()) {
            return;
        }
        if (owner.isBaton() && Collections.max(awaited.values()) >= OneSidedSettings.HEARTBEATS_OF_LEASE) {
            failure = Optional.of("the prefill instance does not have the request, or does not reach this instance at "
                    + registration.decode().host() + ":" + registration.decode().port());
            return;
        }
        registered = now;
        awaited.replaceAll((_, unanswered) -> unanswered + 1);
        for (RemoteRank rank : owner.ranks()) {
            if (awaited.containsKey(rank.peer().name())) {
                outbox.notify(rank, registration);
            }
        }
    }

    /** Asks the owner to stop; closing the permit makes it stop. */
    private void giveUp(long now) {
        if (gaveUp.isEmpty()) {
            gaveUp = OptionalLong.of(now);
            permit.ifPresent(Permit::close);
            if (owner.isBaton()) {
                outbox.notify(owner, new PushCancel(registration.attempt()));
            }
        }
        if (permit.isPresent()) {
            awaited.clear();
            return;
        }
        owner.ranks().stream()
                .map(RemoteRank::peer)
                .filter(peer -> !peer.alive())
                .forEach(peer -> awaited.remove(peer.name()));
        Duration longest = context.settings()
                .pushRegistrationTimeout()
                .plus(context.settings().transferTimeout());
        if (now - gaveUp.getAsLong() >= longest.toNanos()) {
            // By its own time limits the owner has stopped, too; vLLM's push_registration_timeout is the same by
            // default.
            awaited.clear();
        }
    }

    @Override
    public Optional<String> failure() {
        return failure;
    }

    /** Whether the blocks that were pushed are of another prompt than the load's. */
    boolean isOfAnotherPrompt() {
        return done.isPresent()
                && load.prompt()
                        .filter(prompt -> !prompt.equals(done.get().prompt()))
                        .isPresent();
    }

    /** The owner's blocks and generations: as the reference promises, else as the end of the push says. */
    SourceBlocks source() {
        return load.source().proof().isPresent()
                ? SourceBlocks.of(load.source(), owner)
                : done.map(pushed ->
                                new SourceBlocks(pushed.blocks(), Optional.of(pushed.generations()), owner.ranks()))
                        .orElseGet(() -> SourceBlocks.of(load.source(), owner));
    }

    /** The checksums of the arrived blocks, once the push is over. */
    ArrivalChecksums checksums() {
        if (permit.filter(given -> given.writes() != checksums.parts()).isPresent()) {
            // A failed write, which has no notification, may have changed digested bytes.
            checksums.forget();
        }
        return checksums;
    }

    @Override
    public void await() {
        checksums.await();
    }
}
