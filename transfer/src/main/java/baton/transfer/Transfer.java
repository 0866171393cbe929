package baton.transfer;

import java.time.Duration;

/** Ranges on their way. */
public interface Transfer {
    /** Where it is. Once {@link State.Done} or {@link State.Failed} it stays so and does not touch this process's memory any more. */
    State state();

    /** Ends it as {@link Cause#CANCELLED} as soon as can be, unless it is over already. Does not wait. */
    void cancel();

    /** Where a transfer is. */
    sealed interface State {
        /** Bytes may be moving. */
        record UnderWay() implements State {}

        /**
         * All bytes were moved.
         *
         * @param bytes their number
         * @param elapsed from the start to the last byte
         */
        record Done(long bytes, Duration elapsed) implements State {}

        /** Over; any part of the ranges may have been moved. */
        record Failed(Cause cause, String message) implements State {}
    }

    /** Why a transfer failed. */
    enum Cause {
        /** A range is not registered memory, or the request makes no sense otherwise. */
        REFUSED,
        /** A write has not the permit that it needs, or not any more. */
        NOT_PERMITTED,
        /** The peer is gone. */
        PEER_GONE,
        /** Its time was up. */
        TIMEOUT,
        CANCELLED,
        /** The transport failed. */
        TRANSPORT
    }
}
