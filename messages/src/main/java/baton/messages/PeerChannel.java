package baton.messages;

import java.net.InetAddress;
import java.time.Duration;
import java.util.List;

/**
 * Connections between instances that last: who calls says who it is, asks and tells what it likes, and both sides learn when the other
 * has gone. Messages are lists of byte frames whose meaning is the caller's.
 */
public interface PeerChannel extends AutoCloseable {
    /**
     * Receives whoever calls at an address, until the returned listener is closed.
     *
     * @param port 0 for any free one
     * @throws MessageException if the address cannot be had
     */
    SideChannel.Listener listen(String host, int port, Reception reception) throws MessageException;

    /**
     * Calls whoever listens at an address. An address where nobody listens is a failure at once.
     *
     * @param identity how this side calls itself: ASCII, 1 to 255 characters
     * @param whenEnded runs once, when the call has ended for whatever reason
     * @throws MessageException if nobody answers in time
     */
    Call call(String host, int port, String identity, Duration timeout, Runnable whenEnded) throws MessageException;

    /** Ends all listeners and calls. */
    @Override
    void close();

    /** Receives callers; may be called by several threads at once. */
    @FunctionalInterface
    interface Reception {
        /**
         * Somebody has connected. An exception refuses the caller.
         *
         * @return who gets the caller's messages
         */
        Guest arrived(Caller caller);

        /** Whether a connection from there is served at all; asked before anything is read of it. Must not wait. */
        default boolean admits(InetAddress from) {
            return true;
        }
    }

    /** The far end of a connection that a peer made. */
    interface Caller {
        /** How the peer calls itself, one character for each byte; nothing is known of it. Empty if it does not. */
        String identity();

        /** Where the connection comes from. */
        InetAddress address();

        /**
         * Answers the message that is being handled, at most once, by its own thread.
         *
         * @throws MessageException if it does not get there
         */
        void answer(List<byte[]> frames) throws MessageException;

        /** Ends the connection; from any thread. */
        void hangUp();
    }

    /** Handles what one caller says, a message at a time. */
    interface Guest {
        /**
         * A message has come. Takes the time that it needs; the next message waits. An exception ends the connection.
         *
         * @param frames at least one; nothing is known of what is in them
         */
        void received(List<byte[]> frames) throws MessageException;

        /**
         * Whether the peer has shown what it must. Until then it has the time of a handshake for all it says, and takes no other peer's
         * place.
         */
        default boolean isGreeted() {
            return true;
        }

        /** The connection has ended; nothing more comes. */
        default void left() {}
    }

    /** The near end of a connection that this side made. */
    interface Call extends AutoCloseable {
        /**
         * Says something that is not answered. What the peer does not read in time ends the call.
         *
         * @throws MessageException if it could not be said in time, or the call has ended
         */
        void tell(List<byte[]> frames, Duration timeout) throws MessageException;

        /**
         * Asks and waits for the answer. One question at a time; others wait for their turn. A question that is not answered in time ends
         * the call, as its answer could be taken for another's.
         *
         * @throws MessageException if there was no answer in time, or the call has ended
         */
        List<byte[]> ask(List<byte[]> frames, Duration timeout) throws MessageException;

        boolean isOpen();

        @Override
        void close();
    }
}
