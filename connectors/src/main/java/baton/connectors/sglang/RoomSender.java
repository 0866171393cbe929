package baton.connectors.sglang;

import baton.connectors.onesided.PromptPlan.Ready;
import baton.kv.Bursts;
import baton.kv.InvalidFieldException;
import baton.messages.PeerAddress;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/*
 * The prompt of a room and a decode rank's message about it may come in either order. Both are kept until the bootstrap timeout. A room is
 * over when its pages are written, when either side gives it up, or when the time is up; it is remembered for a while then, so that late
 * messages are answered by a failure at once.
 */

/** The prefill side of one rank: writes prompts where decode ranks want them. The rank's thread owns it. */
final class RoomSender {
    private static final Logger log = LoggerFactory.getLogger(RoomSender.class);
    private static final int MOST_DECODE_RANKS = 4096;
    /** Rooms that decode ranks may wait for; further ones are refused. */
    private static final int MOST_PUSHES = 10_000;
    /** The limit of the pages of all rooms together. */
    private static final long MOST_PAGES = 1L << 24;
    /** Rooms that are remembered after their end. */
    private static final int MOST_ENDED = 20_000;

    private final SglangRank local;
    /** Limits the log lines about messages, as a peer may send many. */
    private final Bursts complaints;
    /** The decode ranks by session. */
    private final Map<String, DecodeRank> ranks = new LinkedHashMap<>();

    private final Map<Long, Kept> prompts = new LinkedHashMap<>();
    private final Map<Long, RoomPush> pushes = new LinkedHashMap<>();
    /** Rooms that are over. */
    private final Set<Long> ended = new LinkedHashSet<>();

    private final Set<String> sent = new LinkedHashSet<>();
    /** The pages of {@link #pushes}. */
    private long pages;

    /** A prompt that no decode rank has taken yet. */
    private record Kept(Ready prompt, long until) {
        long room() {
            return Long.parseLong(prompt.key());
        }
    }

    RoomSender(SglangRank local) {
        this.local = local;
        this.complaints = new Bursts(1, Duration.ofSeconds(10), local.context().ticker());
    }

    boolean isBusy() {
        return !pushes.isEmpty() || !prompts.isEmpty();
    }

    /** Requests with blocks that are not needed any more, since the last call. */
    Set<String> takeSent() {
        Set<String> taken = new LinkedHashSet<>(sent);
        sent.clear();
        return taken;
    }

    void ready(Ready prompt, long now) {
        Kept kept = new Kept(prompt, now + local.settings().bootstrap().toNanos());
        if (ended.contains(kept.room()) || prompts.containsKey(kept.room())) {
            // The decode instance has given up, or a second prefill request has the room.
            sent.add(prompt.requestId());
            return;
        }
        prompts.put(kept.room(), kept);
    }

    /** No decode request will name the room of this request's prompt, if none has. */
    void answerLost(String requestId) {
        prompts.values().stream()
                .filter(kept -> kept.prompt().requestId().equals(requestId))
                .findFirst()
                .ifPresent(kept -> abandon(kept.room()));
    }

    /** The room's prompt will not come. */
    void abandon(long room) {
        RoomPush push = pushes.get(room);
        if (push != null) {
            if (prompt(room).isEmpty()) {
                push.fail("the prefill request has ended without its blocks");
            }
            return;
        }
        end(room);
    }

    /** The room's prompt, if it is computed. */
    Optional<Ready> prompt(long room) {
        return Optional.ofNullable(prompts.get(room)).map(Kept::prompt);
    }

    /** Nothing more is to be done for the room. */
    void end(long room) {
        Kept kept = prompts.remove(room);
        if (kept != null) {
            sent.add(kept.prompt().requestId());
        }
        ended.add(room);
        if (ended.size() > MOST_ENDED) {
            ended.remove(ended.iterator().next());
        }
    }

    /** A message has come. */
    void arrived(List<byte[]> frames, long now) {
        try {
            switch (DecodeRank.text(frames, 0)) {
                case DecodeRank.REGISTRATION -> register(DecodeRank.decode(frames));
                case WantedPages.ABORT -> abort(frames);
                default -> want(WantedPages.decode(frames), now);
            }
        } catch (InvalidFieldException e) {
            complaints.event(more -> log.warn("a message of a decode rank is dropped: {}{}", e.getMessage(), more));
            local.stats().count("baton:sglang_bad_messages");
        }
    }

    private void register(DecodeRank rank) {
        ranks.remove(rank.session());
        ranks.put(rank.session(), rank);
        if (ranks.size() > MOST_DECODE_RANKS) {
            ranks.remove(ranks.keySet().iterator().next());
        }
    }

    private void want(WantedPages wanted, long now) {
        Optional<String> refused = refused(wanted);
        if (refused.isPresent()) {
            complaints.event(
                    more -> log.warn("room {} of {}: {}{}", wanted.room(), wanted.from(), refused.get(), more));
            local.stats().count("baton:sglang_refused_requests");
            tellStatus(wanted, false);
            return;
        }
        pages += wanted.pages().length;
        pushes.put(
                wanted.room(),
                new RoomPush(
                        this,
                        local,
                        wanted,
                        Objects.requireNonNull(ranks.get(wanted.session())),
                        now + local.settings().bootstrap().toNanos()));
    }

    /** Why a decode rank gets no pages. */
    private Optional<String> refused(WantedPages wanted) {
        DecodeRank rank = ranks.get(wanted.session());
        if (rank == null) {
            return Optional.of("session " + PeerAddress.shown(wanted.session()) + " has not registered");
        }
        if (!PeerAddress.find(rank.session())
                .filter(address -> local.settings().access().mayConnect(address.host()))
                .isPresent()) {
            return Optional.of("session " + PeerAddress.shown(rank.session()) + " is "
                    + local.settings().access().notAllowed());
        }
        int tpSize = local.context().tensorParallelSize();
        if (rank.tpSize() != tpSize || rank.tpRank() % tpSize != local.rank().tensor() || wanted.ranks() != 1) {
            return Optional.of("rank %d of %d decode ranks asks rank %d of %d; the sizes must be equal"
                    .formatted(rank.tpRank(), rank.tpSize(), local.rank().tensor(), tpSize));
        }
        int buffers = 2 * local.cache().layout().layers();
        if (rank.kvBuffers().length != buffers
                || rank.itemBytes() != local.pages().itemBytes()) {
            return Optional.of(
                    "it has %d buffers with pages of %d bytes, here are %d with %d: dtype, head size, heads, page size and layers must be equal"
                            .formatted(
                                    rank.kvBuffers().length,
                                    rank.itemBytes(),
                                    buffers,
                                    local.pages().itemBytes()));
        }
        if (ended.contains(wanted.room())) {
            return Optional.of("the prefill request has ended without its blocks, or the prompt is not kept any more");
        }
        if (pushes.containsKey(wanted.room())) {
            return Optional.of("another rank waits for it");
        }
        if (wanted.pages().length > local.cache().blocks()) {
            return Optional.of("it wants %d pages, the pool has %d blocks"
                    .formatted(wanted.pages().length, local.cache().blocks()));
        }
        if (pushes.size() >= MOST_PUSHES || pages + wanted.pages().length > MOST_PAGES) {
            return Optional.of("too many requests wait");
        }
        return Optional.empty();
    }

    /** The decode rank wants no more pages. It is answered when none is being written. */
    private void abort(List<byte[]> frames) {
        if (frames.size() < 2) {
            throw new InvalidFieldException(WantedPages.ABORT, "has no room");
        }
        long room = DecodeRank.number(frames, 1, Long.MAX_VALUE);
        List<byte[]> acknowledgement = new ArrayList<>(
                List.of(DecodeRank.ascii("ABORT_ACK"), DecodeRank.ascii(room), DecodeRank.ascii(local.number())));
        if (frames.size() > 4) {
            acknowledgement.add(DecodeRank.ascii(DecodeRank.number(frames, 4, Long.MAX_VALUE)));
        }
        Optional<PeerAddress> from = frames.size() < 4 ? Optional.empty() : Optional.of(WantedPages.address(frames, 2));
        Runnable acknowledge =
                () -> from.ifPresent(address -> local.exchange().send(address, List.of(acknowledgement), () -> {}));
        RoomPush push = pushes.get(room);
        if (push != null) {
            push.abort(acknowledge);
        } else {
            end(room);
            acknowledge.run();
        }
    }

    void tellStatus(WantedPages wanted, boolean success) {
        local.exchange()
                .send(
                        wanted.from(),
                        List.of(List.of(
                                DecodeRank.ascii(wanted.room()),
                                DecodeRank.ascii(success ? RoomReceiver.SUCCESS : RoomReceiver.FAILED),
                                DecodeRank.ascii(local.number()))),
                        () -> {});
    }

    /** Goes on as far as possible. */
    void advance(long now) {
        for (RoomPush push : List.copyOf(pushes.values())) {
            if (push.advance(now)) {
                pushes.remove(push.room());
                pages -= push.pages();
                end(push.room());
            }
        }
        for (Kept kept : List.copyOf(prompts.values())) {
            long room = kept.room();
            if (now - kept.until() >= 0 && !pushes.containsKey(room)) {
                log.warn(
                        "Request {} timed out after {} seconds without being sent. Its blocks are released.",
                        kept.prompt().requestId(),
                        local.settings().bootstrap().toSeconds());
                local.stats().count("baton:sglang_expired_requests");
                end(room);
            }
        }
    }

    /** Returns when nothing reads the pool any more. The agent is closed. */
    void close() {
        pushes.values().forEach(RoomPush::await);
    }
}
