package baton.transfer.embedded;

import baton.transfer.Transfer.Cause;
import baton.transfer.Transfer.State;
import java.time.Duration;
import java.util.Optional;

/** A transfer that the peer has asked for. Its end is sent to the peer. */
final class InboundTransfer extends InFlightTransfer {
    private final Connection connection;
    private final Movement movement;

    /** How the bytes move. */
    enum Movement {
        /** Over the connection to the peer: a read. */
        SEND,
        /** Over the connection from the peer: a write. */
        RECEIVE,
        /** Threads of this process copy from the peer's mapped memory: a write. */
        COPY
    }

    InboundTransfer(Connection connection, long id, LocalRanges local, Movement movement, long timeoutMillis) {
        super(connection, id, local, Duration.ofMillis(Math.max(0, timeoutMillis)));
        this.connection = connection;
        this.movement = movement;
    }

    Movement movement() {
        return movement;
    }

    @Override
    boolean receives() {
        return movement == Movement.RECEIVE;
    }

    @Override
    void streamed() {
        succeed();
    }

    @Override
    protected void over(State end) {
        forget();
        connection.send(new Frame.Result(
                id(),
                end instanceof State.Failed(Cause cause, String message)
                        ? Optional.of(new Frame.Failure(Optional.of(cause), message))
                        : Optional.empty()));
    }
}
