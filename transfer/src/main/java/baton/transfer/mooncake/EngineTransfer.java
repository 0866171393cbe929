package baton.transfer.mooncake;

import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.transfer.Range;
import baton.transfer.Transfer;
import baton.transfer.TransferAgent.Operation;
import baton.transfer.TransferException;
import baton.transfer.mooncake.LocalBuffers.Buffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.Set;

/**
 * A batch of the library's. The library cannot cancel one: a transfer that is to end sooner ends when its requests have, for which the
 * library has deadlines of its own. {@link MooncakeEngineAgent}'s thread is inside the gate from the submission until then.
 */
final class EngineTransfer extends MemoryUse<Transfer.State> implements Transfer {
    private final EnginePeer peer;
    private final Operation operation;
    private final List<Range> ranges;
    private final List<MooncakeApi.Request> requests = new ArrayList<>();
    private final Set<Buffer> held;
    private final Optional<byte[]> notification;
    private final Ticker ticker;
    private final long begun;
    private final Deadline deadline;

    // Of the agent's thread.
    private long batch;
    private int done;
    private boolean failed;

    private volatile State state = new State.UnderWay();

    /** What a caller asks for. */
    record Asked(Operation operation, List<Range> ranges, Optional<byte[]> notification, Duration timeout) {}

    /** @param held filled by the caller with what its ranges hold */
    EngineTransfer(EnginePeer peer, Asked asked, Set<Buffer> held) {
        this.peer = peer;
        this.operation = asked.operation();
        this.ranges = List.copyOf(asked.ranges());
        this.held = held;
        this.notification = asked.notification();
        this.ticker = peer.agent().ticker();
        this.begun = ticker.nanos();
        this.deadline = Deadline.after(ticker, asked.timeout());
        for (Range range : ranges) {
            requests.add(new MooncakeApi.Request(range.local(), range.remote(), range.bytes()));
        }
    }

    EnginePeer peer() {
        return peer;
    }

    /** The first range that is not within one of the buffers. */
    Optional<Range> outside(SegmentDescriptor descriptor) {
        return ranges.stream()
                .filter(each -> !descriptor.holds(each.remote(), each.bytes()))
                .findFirst();
    }

    /** @return whether the library has its requests; the caller is inside the gate */
    boolean submit(EngineHandle engine) {
        Optional<Long> submitted = engine.submit(operation, peer.segment(), requests);
        batch = submitted.orElse(0L);
        return submitted.isPresent();
    }

    /** @return whether all requests have ended */
    boolean poll(EngineHandle engine) {
        while (done < requests.size()) {
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

    void succeed() {
        end(new State.Done(
                requests.stream().mapToLong(MooncakeApi.Request::bytes).sum(),
                Duration.ofNanos(ticker.nanos() - begun)));
    }

    void fail(Cause cause, String message) {
        end(new State.Failed(cause, message));
    }

    void endIfLate() {
        if (deadline.isOver()) {
            fail(Cause.TIMEOUT, "not done after " + deadline);
        }
    }

    @Override
    void abort(Cause cause, String message) {
        fail(cause, message);
    }

    @Override
    protected void over(State end) {
        held.forEach(each -> each.release(this));
        State last = end;
        if (end instanceof State.Done && notification.isPresent()) {
            try {
                peer.send(notification.get());
            } catch (TransferException e) {
                last = new State.Failed(
                        peer.alive() ? Cause.TRANSPORT : Cause.PEER_GONE, String.valueOf(e.getMessage()));
            }
        }
        state = last;
        peer.agent().tellProgress();
    }

    @Override
    public State state() {
        return state;
    }

    @Override
    public void cancel() {
        fail(Cause.CANCELLED, "cancelled");
    }
}
