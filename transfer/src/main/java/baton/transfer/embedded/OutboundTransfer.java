package baton.transfer.embedded;

import baton.memory.RunDigests;
import baton.transfer.Range;
import baton.transfer.Transfer;
import baton.transfer.TransferAgent.Operation;
import baton.transfer.TransferException;
import java.time.Duration;
import java.util.List;
import java.util.Optional;

/** A transfer that this agent has started. */
final class OutboundTransfer extends InFlightTransfer implements Transfer {
    private final Connection connection;
    private final Request request;
    private final boolean receives;
    private volatile boolean requested;
    private volatile boolean streamed;
    private volatile State state = new State.UnderWay();

    /**
     * The task of a transfer.
     *
     * @param grant token of the peer's {@link WriteGrant}, of a write; 0 for none
     * @param digests to make in a read by shared memory; over TCP and in writes none are made
     */
    record Request(
            Operation operation,
            long grant,
            List<Range> ranges,
            Optional<byte[]> notification,
            Duration timeout,
            Optional<RunDigests> digests) {}

    /** @param receives whether the connection receives the bytes */
    OutboundTransfer(Connection connection, Request request, LocalRanges local, boolean receives) {
        super(connection, 0, local, request.timeout());
        this.connection = connection;
        this.request = request;
        this.receives = receives;
    }

    @Override
    boolean receives() {
        return receives;
    }

    @Override
    void streamed() {
        // The peer's result ends it.
    }

    /** Whether it is a write for which the peer was asked to copy from this process's memory. */
    boolean isMappedWrite() {
        return request.operation() == Operation.WRITE && !streamed;
    }

    /**
     * Asks the peer to do its part.
     *
     * @param mapped whether the peer copies from this process's memory, instead of being sent the bytes
     */
    void request(boolean mapped) {
        streamed = !mapped;
        // A second try has an id of its own.
        if (requested && !connection.renumber(this)) {
            return;
        }
        Frame frame = frame(mapped);
        requested = true;
        if (!connection.enqueue(frame, connection.limits().waitingBytes())) {
            fail(Cause.TRANSPORT, "too much waits to be sent to " + connection.peerName());
        } else if (!mapped && request.operation() == Operation.WRITE) {
            // Not by the field: the peer may have refused a mapped write meanwhile, and its second request streams.
            connection.stream(this);
        }
        if (isEnded()) {
            // The cancel that its end has sent may have been sent before the request.
            connection.send(new Frame.Cancel(id()));
        }
    }

    private Frame frame(boolean mapped) {
        List<Range> ranges = request.ranges();
        int each = request.operation() == Operation.READ ? 2 : 3;
        long[] wanted = new long[ranges.size() * each];
        for (int i = 0, at = 0; i < ranges.size(); i++) {
            Range range = ranges.get(i);
            if (request.operation() == Operation.WRITE) {
                wanted[at++] = range.local();
            }
            wanted[at++] = range.remote();
            wanted[at++] = range.bytes();
        }
        long millis = timeLeft().toMillis();
        return switch (request.operation()) {
            case READ -> new Frame.Read(id(), millis, wanted);
            case WRITE -> new Frame.Write(id(), millis, request.grant(), mapped, wanted);
        };
    }

    @Override
    protected void over(State end) {
        State last = end;
        switch (end) {
            case State.Done _ -> {
                if (request.notification().isPresent()) {
                    try {
                        connection.sendMessage(request.notification().get());
                    } catch (TransferException e) {
                        last = new State.Failed(
                                connection.isOpen() ? Cause.TRANSPORT : Cause.PEER_GONE,
                                String.valueOf(e.getMessage()));
                    }
                }
            }
            case State.Failed _ -> {
                if (requested) {
                    connection.send(new Frame.Cancel(id()));
                }
            }
            case State.UnderWay _ -> throw new IllegalStateException("over and under way");
        }
        state = last;
        // After its state: the agent waits only for transfers that it knows.
        forget();
        connection.agent().tellProgress();
    }

    @Override
    public State state() {
        if (state instanceof State.UnderWay) {
            endIfLate();
        }
        return state;
    }

    @Override
    public void cancel() {
        fail(Cause.CANCELLED, "cancelled");
    }
}
