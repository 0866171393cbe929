package baton.transfer.embedded;

import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.memory.Gate;
import baton.memory.ParallelCopier;
import baton.transfer.Transfer.Cause;
import baton.transfer.Transfer.State;
import baton.transfer.Transfer.State.Done;
import baton.transfer.Transfer.State.Failed;
import java.time.Duration;
import java.util.Set;

/** An agent's state of a transfer that it started or serves: a gate around the local ranges, with a deadline. */
abstract sealed class InFlightTransfer extends Gate<State> implements ParallelCopier.Completion
        permits OutboundTransfer, InboundTransfer {
    private static final Duration LONGEST = Duration.ofDays(1);

    private final Connection connection;
    private final LocalRanges local;
    private final RangeCursor cursor;
    private final Ticker ticker;
    private final long begun;
    private final Deadline deadline;
    private volatile long id;

    /**
     * @param id in the connection's frames; 0 until {@link Connection#admit} gives it one
     * @param timeout after it {@link #endIfLate} ends the transfer
     */
    InFlightTransfer(Connection connection, long id, LocalRanges local, Duration timeout) {
        this.connection = connection;
        this.id = id;
        this.local = local;
        this.cursor = new RangeCursor(local.memory());
        this.ticker = connection.agent().ticker();
        this.begun = ticker.nanos();
        this.deadline = Deadline.after(ticker, timeout.compareTo(LONGEST) > 0 ? LONGEST : timeout);
    }

    /** Whether the connection receives its bytes. */
    abstract boolean receives();

    /** The connection has sent or received all its bytes. */
    abstract void streamed();

    final Connection connection() {
        return connection;
    }

    final RangeCursor cursor() {
        return cursor;
    }

    final long id() {
        return id;
    }

    /** Gives it an id; the connection's table changes with it. */
    final void setId(long value) {
        id = value;
    }

    final int ranges() {
        return local.memory().size();
    }

    /** @param part a {@link MemoryRegistry.Registered}, {@link PeerMemory.Mapped} or {@link WriteGrant} */
    final boolean touches(Object part) {
        return local.touched().contains(part);
    }

    final Set<Object> touched() {
        return local.touched();
    }

    final DeviceCopies.Where where() {
        return DeviceCopies.where(local.touched());
    }

    final Duration timeLeft() {
        return deadline.remaining();
    }

    final void endIfLate() {
        if (deadline.isOver()) {
            fail(Cause.TIMEOUT, "not done after " + deadline);
        }
    }

    final void succeed() {
        end(new Done(local.bytes(), Duration.ofNanos(ticker.nanos() - begun)));
    }

    final void fail(Cause cause, String message) {
        end(new Failed(cause, message));
    }

    /** Registers the transfer with the connection, or ends it if the connection refuses it. */
    final void begin() {
        switch (connection.admit(this)) {
            case ADMITTED -> {
                if (isEnded()) {
                    // It ended before the connection knew it.
                    forget();
                }
            }
            case GONE -> fail(Cause.PEER_GONE, "peer %s is gone".formatted(connection.peerName()));
            case TOO_MANY ->
                fail(
                        Cause.REFUSED,
                        "%d transfers are under way, no more are allowed"
                                .formatted(connection.limits().transfers()));
        }
    }

    /** Takes it out of the connection's table and the registry. */
    final void forget() {
        connection.forget(this);
        connection.agent().registry().remove(this);
    }

    @Override
    public final void copied() {
        succeed();
    }

    @Override
    public final void failed(Throwable cause) {
        fail(Cause.TRANSPORT, "copying failed: " + cause);
    }

    @Override
    public final void rejected() {
        fail(Cause.CANCELLED, "the agent is closed");
    }
}
