package baton.messages;

import java.net.InetAddress;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/**
 * Small questions between instances before and beside their transfers. Question and answer are lists of byte frames; the caller defines
 * their meaning.
 */
public interface SideChannel extends AutoCloseable {
    /**
     * Answers questions that arrive at an address until the returned listener is closed.
     *
     * @param port 0 for any free one
     * @throws MessageException if the address cannot be had
     */
    default Listener listen(String host, int port, Handler handler) throws MessageException {
        return receive(host, port, _ -> handler);
    }

    /**
     * As {@link #listen}, with a handler for each connection.
     *
     * @throws MessageException if the address cannot be had
     */
    Listener receive(String host, int port, Reception reception) throws MessageException;

    /**
     * Asks the instance that listens at an address, once: if nothing listens there it fails at once.
     *
     * @param frames at least one
     * @return the answer, at least one frame; fails with a {@link MessageException}, at the latest after {@code timeout}
     */
    CompletableFuture<List<byte[]>> ask(String host, int port, List<byte[]> frames, Duration timeout);

    /** Closes all listeners and fails all questions under way. */
    @Override
    void close();

    /** Answers questions; may be called by several threads at once. */
    @FunctionalInterface
    interface Handler {
        /**
         * Answers one question.
         *
         * @param frames at least one; untrusted
         * @return the answer; without frames, or if this throws, the connection is closed
         */
        List<byte[]> answer(List<byte[]> frames);

        /**
         * Whether the asking peer is admitted. Until then all its questions share the time of a handshake, and its
         * connection takes no established connection's place.
         */
        default boolean isGreeted() {
            return true;
        }
    }

    /** Receives connections; may be called by several threads at once. */
    @FunctionalInterface
    interface Reception {
        /** The handler of the questions of a connection from the address; it gets one after the other. */
        Handler arrived(InetAddress from);
    }

    /** An address that is listened to. */
    interface Listener extends AutoCloseable {
        int port();

        /** When it returns, no question is answered any more. */
        @Override
        void close();
    }
}
