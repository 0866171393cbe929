package baton.messages;

import java.net.InetAddress;
import java.time.Duration;
import java.util.List;
import java.util.function.Consumer;

/**
 * Long-lived connections between instances: the calling side sends its identity, then questions and one-way messages; both sides
 * are notified when the connection ends. Messages are lists of byte frames; the users define their meaning.
 */
public interface PeerChannel extends AutoCloseable {
    /**
     * Accepts connections at an address until the returned listener is closed.
     *
     * @param port 0 for any free one
     * @throws MessageException if the address cannot be had
     */
    SideChannel.Listener listen(String host, int port, Reception reception) throws MessageException;

    /**
     * Connects to the instance that listens at an address; if nothing listens there it fails at once.
     *
     * @param identity of this side: ASCII, 1 to 255 characters
     * @param whenEnded runs once, when the connection has ended for whatever reason
     * @throws MessageException if there is no connection in time
     */
    default Call call(String host, int port, String identity, Duration timeout, Runnable whenEnded)
            throws MessageException {
        return call(host, port, identity, timeout, _ -> {}, whenEnded);
    }

    /**
     * As {@link #call(String, int, String, Duration, Runnable)}, and takes messages that the other side sends without a question, or more
     * than once.
     *
     * @param unasked takes messages that no question waits for, one after the other; must not wait
     * @throws MessageException if there is no connection in time; its cause is a {@link java.net.ConnectException} if nothing listens there
     */
    Call call(
            String host,
            int port,
            String identity,
            Duration timeout,
            Consumer<List<byte[]>> unasked,
            Runnable whenEnded)
            throws MessageException;

    /** Ends all listeners and calls. */
    @Override
    void close();

    /** Receives connections; may be called by several threads at once. */
    @FunctionalInterface
    interface Reception {
        /**
         * A peer has connected. An exception refuses it.
         *
         * @return the handler of its messages
         */
        Guest arrived(Caller caller);

        /** Whether a connection from the address is served; called before anything is read from it. Must not wait. */
        default boolean admits(InetAddress from) {
            return true;
        }
    }

    /** The peer of an accepted connection. */
    interface Caller {
        /** The peer's identity, one character for each byte; untrusted. Empty if it has none. */
        String identity();

        /** The connection's remote address. */
        InetAddress address();

        /** The same, numeric, for logs. */
        default String host() {
            return address().getHostAddress();
        }

        /**
         * Answers the message that is being handled, at most once, on the handling thread.
         *
         * @throws MessageException if it could not be sent
         */
        void answer(List<byte[]> frames) throws MessageException;

        /**
         * Sends a message, on any thread and at any time. If the peer does not read it in time the connection ends.
         *
         * @throws MessageException if it could not be sent in time, or the connection has ended
         */
        void tell(List<byte[]> frames, Duration timeout) throws MessageException;

        /** Ends the connection; any thread. */
        void hangUp();
    }

    /** Handles the messages of one connection, one at a time. */
    interface Guest {
        /**
         * Handles a message; may take long, the next message waits. An exception ends the connection.
         *
         * @param frames at least one; untrusted
         */
        void received(List<byte[]> frames) throws MessageException;

        /** The connection has ended; no more messages follow. */
        default void left() {}
    }

    /** A connection that this side made. */
    interface Call extends AutoCloseable {
        /**
         * Sends a one-way message. If the peer does not read it in time the connection ends.
         *
         * @throws MessageException if it could not be sent in time, or the connection has ended
         */
        void tell(List<byte[]> frames, Duration timeout) throws MessageException;

        /**
         * Asks and waits for the answer. One question at a time; concurrent ones wait for their turn. A question that is not
         * answered in time ends the connection, because a late answer could be taken for that to the next question.
         *
         * @throws MessageException if there was no answer in time, or the connection has ended
         */
        List<byte[]> ask(List<byte[]> frames, Duration timeout) throws MessageException;

        boolean isOpen();

        @Override
        void close();
    }
}
