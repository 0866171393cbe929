package baton.transfer.mooncake;

import baton.kv.Ticker;
import java.util.Optional;

/**
 * A batch of the library's. The library cannot cancel one: a transfer that is to end sooner ends when its requests have, for which the
 * library has deadlines of its own. {@link MooncakeEngineAgent}'s thread is inside the gate from the submission until then.
 */
final class EngineTransfer extends SegmentTransfer {
    private final EnginePeer peer;

    // Of the agent's thread.
    private long batch;
    private int done;
    private boolean failed;

    EngineTransfer(EnginePeer peer, Asked asked, Ticker ticker) {
        super(peer, asked, ticker);
        this.peer = peer;
    }

    EnginePeer peer() {
        return peer;
    }

    /** @return whether the library has its requests; the caller is inside the gate */
    boolean submit(EngineHandle engine) {
        Optional<Long> submitted = engine.submit(operation(), peer.segment(), ranges());
        batch = submitted.orElse(0L);
        return submitted.isPresent();
    }

    /** @return whether all requests have ended */
    boolean poll(EngineHandle engine) {
        while (done < ranges().size()) {
            switch (engine.status(batch, done)) {
                case UNDER_WAY -> {
                    return false;
                }
                case COMPLETED -> done++;
                case FAILED -> {
                    failed = true;
                    done++;
                }
            }
        }
        engine.free(batch);
        return true;
    }

    boolean hasFailed() {
        return failed;
    }
}
