package baton.transfer.mooncake;

import baton.kv.Ticker;
import baton.transfer.Range;
import baton.transfer.TransferAgent.Operation;
import baton.transfer.mooncake.Lane.Piece;
import baton.transfer.mooncake.LocalBuffers.Held;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.io.IOException;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Queue;
import java.util.Set;

/** Ranges that lanes move to or from a peer, batch by batch. Lanes that it uses are closed when it ends before all is moved. */
final class MooncakeTransfer extends SegmentTransfer {
    /** Bytes of a batch, unless a piece has more. */
    private static final long BATCH_BYTES = 4L << 20;

    private final Pieces pieces;
    private final Object monitor = new Object();

    @GuardedBy("monitor")
    private final Queue<List<Piece>> waiting = new ArrayDeque<>();

    @GuardedBy("monitor")
    private final Set<Lane> lanes = new HashSet<>();

    @GuardedBy("monitor")
    private long left;

    MooncakeTransfer(MooncakePeer peer, Asked asked, Ticker ticker) {
        super(peer, asked, ticker);
        this.pieces = new Pieces(peer.descriptor());
    }

    @Override
    void add(Range range, Held local) {
        super.add(range, local);
        pieces.add(range, local);
    }

    /** Makes batches of its ranges, before a lane takes the transfer. */
    void cut() {
        synchronized (monitor) {
            List<Piece> batch = new ArrayList<>();
            long batchBytes = 0;
            for (Piece piece : pieces.cut()) {
                long size = piece.local().byteSize();
                if (!batch.isEmpty() && (batch.size() == Lane.BATCH || batchBytes + size > BATCH_BYTES)) {
                    waiting.add(batch);
                    batch = new ArrayList<>();
                    batchBytes = 0;
                }
                batch.add(piece);
                batchBytes += size;
                left += size;
            }
            waiting.add(batch);
        }
    }

    /** How many batches wait for a lane. */
    int batches() {
        synchronized (monitor) {
            return waiting.size();
        }
    }

    private Optional<List<Piece>> take() {
        synchronized (monitor) {
            return Optional.ofNullable(waiting.poll());
        }
    }

    /**
     * The lane is used for it from here on, and closed if it ends.
     *
     * @return false if it has ended
     */
    boolean attach(Lane lane) {
        synchronized (monitor) {
            lanes.add(lane);
        }
        // The one that ends it closes the lanes after the end.
        return !isEnded();
    }

    void detach(Lane lane) {
        synchronized (monitor) {
            lanes.remove(lane);
        }
    }

    /**
     * Moves batches until none waits. The lane is attached.
     *
     * @return false if the transfer ended meanwhile; the lane is of no use any more
     * @throws IOException if the lane failed; the batches that it has not moved wait again
     */
    boolean moveOver(Lane lane) throws IOException {
        lane.begin();
        Optional<List<Piece>> sent = Optional.empty();
        Optional<List<Piece>> next = take();
        try {
            while (sent.isPresent() || next.isPresent()) {
                if (!enter()) {
                    return false;
                }
                try {
                    // The next batch is on its way while the answers of the one before are awaited.
                    if (next.isPresent()) {
                        send(lane, sent, next.get());
                    }
                    if (sent.isPresent()) {
                        lane.receive(operation(), sent.get());
                        moved(sent.get());
                    }
                } finally {
                    exit();
                }
                sent = next;
                next = take();
            }
            return true;
        } catch (IOException e) {
            synchronized (monitor) {
                sent.ifPresent(waiting::add);
                next.ifPresent(waiting::add);
            }
            throw e;
        }
    }

    /** A peer that rejects a write closes the connection: its answer may wait to be read when sending fails. */
    private void send(Lane lane, Optional<List<Piece>> sent, List<Piece> next) throws IOException {
        try {
            lane.send(operation(), next);
        } catch (IOException e) {
            if (operation() == Operation.WRITE) {
                for (List<Piece> each :
                        sent.map(before -> List.of(before, next)).orElse(List.of(next))) {
                    try {
                        lane.receive(operation(), each);
                    } catch (Lane.RejectedException rejected) {
                        throw rejected;
                    } catch (IOException unanswered) {
                        break;
                    }
                }
            }
            throw e;
        }
    }

    private void moved(List<Piece> batch) {
        boolean all;
        synchronized (monitor) {
            for (Piece piece : batch) {
                left -= piece.local().byteSize();
            }
            all = left == 0;
        }
        if (all) {
            succeed();
        }
    }

    @Override
    void fail(Cause cause, String message) {
        super.fail(cause, message);
        List<Lane> closing;
        synchronized (monitor) {
            closing = List.copyOf(lanes);
        }
        // After one that has succeeded, lanes may serve another transfer only once they are detached.
        if (!isDone()) {
            closing.forEach(Lane::close);
        }
    }
}
