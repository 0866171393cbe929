package baton.connectors.sglang;

import baton.connectors.onesided.Arrival;
import baton.connectors.onesided.PromptPlan.Wish;
import baton.connectors.sglang.SglangPages.Place;
import baton.messages.PeerAddress;
import java.util.Optional;

/**
 * Pages that a prefill rank is asked to write. It writes to pages and not to blocks, so blocks of a load that fails are free at once; its
 * pages are held until the prefill rank has stopped.
 */
final class WrittenPages implements Arrival {
    private final RoomReceiver receiver;
    private final long room;
    private final PeerAddress rank;
    private final Place place;
    private Optional<String> failure = Optional.empty();
    private boolean isWritten;
    private boolean isHeld;

    /** Asks the rank. */
    WrittenPages(RoomReceiver receiver, Wish wish, PeerAddress rank, Place place) {
        this.receiver = receiver;
        this.rank = rank;
        this.place = place;
        receiver.local.pages().clearRow(place.row());
        this.room = Long.parseLong(wish.source().key());
        if (!receiver.begin(room, this)) {
            failure = Optional.of("another request has room " + room);
            return;
        }
        receiver.prefills.send(
                rank,
                new WantedPages(
                                room,
                                receiver.local.address(),
                                receiver.self.session(),
                                place.pages(),
                                place.row(),
                                1,
                                wish.prefix())
                        .encode());
    }

    Place place() {
        return place;
    }

    /** Whether the prefill rank may still write to the pages. */
    boolean isHeld() {
        return isHeld;
    }

    /** The prefill rank has sent a status. */
    void ended(boolean success) {
        if (success) {
            isWritten = failure.isEmpty();
        } else {
            failure = failure.or(() -> Optional.of("the prefill instance does not send it"));
        }
    }

    void lost(PeerAddress of) {
        if (of.equals(rank) && !isWritten) {
            failure = failure.or(() -> Optional.of("the connection to " + rank + " has ended"));
        }
    }

    @Override
    public boolean advance(Optional<String> stop, long now) {
        if (isWritten) {
            receiver.end(room, this);
            return true;
        }
        failure = failure.or(() -> stop);
        if (failure.isPresent() && receiver.end(room, this)) {
            isHeld = true;
            receiver.hold(room, rank, place);
        }
        return failure.isPresent();
    }

    @Override
    public Optional<String> failure() {
        return failure;
    }

    @Override
    public void await() {}
}
