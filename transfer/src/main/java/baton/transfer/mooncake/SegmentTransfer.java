package baton.transfer.mooncake;

import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.transfer.Range;
import baton.transfer.Transfer;
import baton.transfer.TransferAgent.Operation;
import baton.transfer.TransferException;
import baton.transfer.mooncake.LocalBuffers.Buffer;
import baton.transfer.mooncake.LocalBuffers.Held;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

/** A transfer of a {@link SegmentAgent}. It holds the buffers of its ranges until it is over, and then sends its notification. */
abstract class SegmentTransfer extends MemoryUse<Transfer.State> implements Transfer {
    private final SegmentPeer peer;
    private final Asked asked;
    private final Ticker ticker;
    private final long begun;
    private final Deadline deadline;
    private final Set<Buffer> held = ConcurrentHashMap.newKeySet();
    private volatile State state = new State.UnderWay();

    /** The arguments of {@link SegmentAgent#start}. */
    record Asked(Operation operation, List<Range> ranges, Optional<byte[]> notification, Duration timeout) {
        Asked {
            ranges = List.copyOf(ranges);
            notification = notification.map(byte[]::clone);
        }
    }

    SegmentTransfer(SegmentPeer peer, Asked asked, Ticker ticker) {
        this.peer = peer;
        this.asked = asked;
        this.ticker = ticker;
        this.begun = ticker.nanos();
        this.deadline = Deadline.after(ticker, asked.timeout());
    }

    /** Adds a range and its memory; before it begins. */
    void add(Range range, Held local) {
        held.add(local.buffer());
    }

    final Operation operation() {
        return asked.operation();
    }

    final List<Range> ranges() {
        return asked.ranges();
    }

    final Deadline deadline() {
        return deadline;
    }

    /** The first range that is not within one of the buffers. */
    final Optional<Range> outside(SegmentDescriptor descriptor) {
        return ranges().stream()
                .filter(each -> !descriptor.holds(each.remote(), each.bytes()))
                .findFirst();
    }

    final void succeed() {
        long bytes = ranges().stream().mapToLong(Range::bytes).sum();
        end(new State.Done(bytes, Duration.ofNanos(ticker.nanos() - begun)));
    }

    void fail(Cause cause, String message) {
        end(new State.Failed(cause, message));
    }

    final void endIfLate() {
        if (deadline.isOver()) {
            fail(Cause.TIMEOUT, "not done after " + deadline);
        }
    }

    @Override
    final void abort(Cause cause, String message) {
        fail(cause, message);
    }

    final boolean isDone() {
        return state instanceof State.Done;
    }

    final void release() {
        held.forEach(each -> each.release(this));
    }

    @Override
    protected final void over(State end) {
        State last = end;
        if (end instanceof State.Done && asked.notification().isPresent()) {
            try {
                peer.send(asked.notification().get());
            } catch (TransferException e) {
                last = new State.Failed(
                        peer.alive() ? Cause.TRANSPORT : Cause.PEER_GONE, String.valueOf(e.getMessage()));
            }
        }
        state = last;
        // After its state: the agent waits only for transfers that hold buffers.
        release();
        peer.forget(this);
    }

    @Override
    public final State state() {
        if (state instanceof State.UnderWay) {
            endIfLate();
        }
        return state;
    }

    @Override
    public final void cancel() {
        fail(Cause.CANCELLED, "cancelled");
    }
}
