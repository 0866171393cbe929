package baton.connectors.sglang;

import baton.connectors.onesided.LoadTable;
import baton.connectors.onesided.PromptPlan.Wish;
import baton.connectors.sglang.SglangPages.Place;
import baton.kv.InvalidFieldException;
import baton.messages.PeerAddress;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The decode side of one rank: has prompts written into its pages. The rank's thread owns it. */
final class RoomReceiver extends LoadTable<RoomLoad> {
    private static final Logger log = LoggerFactory.getLogger(RoomReceiver.class);
    /** Numbers of {@code KVPoll}. */
    static final int FAILED = 0;

    static final int SUCCESS = 4;

    final SglangRank local;
    final DecodeRank self;
    final PrefillRanks prefills;
    /** Loads into pages that a prefill rank may write, by room. */
    private final Map<Long, WrittenPages> arriving = new LinkedHashMap<>();
    /** Pages of loads that have failed, by the generation of the message that asks the prefill rank to stop. */
    private final Map<Long, Held> held = new LinkedHashMap<>();

    private long generations;
    private long unreported;

    /** Pages that a prefill rank may still write to. */
    private record Held(long room, Place place, long until) {}

    /** @param session of the transfer agent, by which prefill ranks find it */
    RoomReceiver(SglangRank local, String session) {
        super(local.context().wake());
        this.local = local;
        this.self = new DecodeRank(
                session,
                local.pages().kvBuffers(),
                local.pages().rowBuffers(),
                local.rank().tensor(),
                local.context().tensorParallelSize(),
                local.pages().itemBytes(),
                true);
        this.prefills = new PrefillRanks(this);
    }

    boolean isBusy() {
        return !isEmpty() || !held.isEmpty() || hasEvents();
    }

    void start(Wish wish, long now) {
        // An id that ended without blocks may be used again.
        String id = wish.isRelease() ? wish.requestId() + "/" + ++unreported : wish.requestId();
        start(id, new RoomLoad(this, wish, now));
    }

    /** Pages are registered with a prefill rank. False if another load has the room. */
    boolean begin(long room, WrittenPages pages) {
        return arriving.putIfAbsent(room, pages) == null;
    }

    /** False if they had ended, or never began. */
    boolean end(long room, WrittenPages pages) {
        return arriving.remove(room, pages);
    }

    /** The connection to a prefill rank has ended. */
    void lost(PeerAddress rank) {
        prefills.forget(rank);
        arriving.values().forEach(pages -> pages.lost(rank));
    }

    /** Asks a prefill rank to stop; its pages are free when it has answered, or when it must have stopped. */
    void hold(long room, PeerAddress rank, Place place) {
        long generation = ++generations;
        held.put(
                generation,
                new Held(room, place, local.now() + local.settings().release().toNanos()));
        prefills.send(
                rank,
                List.of(
                        DecodeRank.ascii(WantedPages.ABORT),
                        DecodeRank.ascii(room),
                        DecodeRank.ascii(local.address().host()),
                        DecodeRank.ascii(local.address().port()),
                        DecodeRank.ascii(generation)));
    }

    /** A message has come. */
    void arrived(List<byte[]> frames) {
        try {
            switch (DecodeRank.text(frames, 0)) {
                case "ABORT_ACK" -> {
                    // SGLang answers at once, before its writes have ended, where it names no generation.
                    if (frames.size() > 3) {
                        released(
                                DecodeRank.number(frames, 1, Long.MAX_VALUE),
                                DecodeRank.number(frames, 3, Long.MAX_VALUE));
                    }
                }
                // As SGLang sends rows with SGLANG_MOONCAKE_SEND_AUX_TCP. The load is refused: the row here has no
                // room.
                case "AUX_DATA" -> log.debug("a row as a message is dropped");
                default -> status(frames);
            }
        } catch (InvalidFieldException e) {
            log.warn("a message of a prefill rank is dropped: {}", e.getMessage());
            local.stats().count("baton:sglang_bad_messages");
        }
    }

    /** The prefill rank of a room has stopped writing. */
    private void released(long room, long generation) {
        Held answered = held.get(generation);
        if (answered != null && answered.room() == room) {
            free(generation);
        }
    }

    private void free(long generation) {
        Held freed = held.remove(generation);
        if (freed != null) {
            local.pages().give(freed.place());
        }
    }

    private void status(List<byte[]> frames) {
        if (frames.size() < 3) {
            throw new InvalidFieldException("status", "has " + frames.size() + " frames, must have 3");
        }
        WrittenPages pages = arriving.get(DecodeRank.number(frames, 0, Long.MAX_VALUE));
        long status = DecodeRank.number(frames, 1, SUCCESS);
        if (pages != null && (status == FAILED || status == SUCCESS)) {
            pages.ended(status == SUCCESS);
        }
    }

    /** Goes on as far as possible. */
    void work(long now) {
        for (Map.Entry<Long, Held> each : new ArrayList<>(held.entrySet())) {
            if (now - each.getValue().until() >= 0) {
                local.stats().count("baton:sglang_silent_peers");
                free(each.getKey());
            }
        }
        advance(now);
    }
}
