package baton.messages.mooncake;

import baton.messages.MessageException;
import baton.messages.PeerAddress;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.function.Consumer;

/**
 * The messages of one instance to others, and its registries. Callbacks are called by any thread, must not wait, and throw nothing.
 * {@link SystemExchange} is the real one; a simulation provides its own.
 */
public interface MooncakeExchange extends AutoCloseable {
    /**
     * Serves decode ranks, for one rank of this instance.
     *
     * @return the address at which they find it
     * @throws MessageException if the address cannot be had
     */
    PeerAddress listen(String host, Consumer<Question> arrived) throws MessageException;

    /**
     * Sends a message to a prefill rank, over a connection of its own.
     *
     * @param connect within this time the connection is there, or it has failed
     */
    Asking ask(PeerAddress rank, byte[] message, Duration connect, Asker asker);

    /** Runs a registry on this machine. */
    Registry serve(String host, int port) throws MessageException;

    /** Registers ranks with a registry, three attempts each. */
    CompletableFuture<Void> register(PeerAddress registry, List<RankRegistration> ranks, Duration timeout);

    /** The instances that a registry has, three attempts. */
    CompletableFuture<EngineTable> query(PeerAddress registry, Duration timeout);

    /** Ends everything. */
    @Override
    void close();

    /** A message of a decode rank, over a connection that lasts until it is answered. */
    interface Question {
        byte[] message();

        /** Sends an answer, or a part of it; lost if the connection has ended. */
        void answer(byte[] reply);

        /** Whether the connection has ended. */
        boolean isOver();
    }

    /** A message to a prefill rank. */
    interface Asking extends AutoCloseable {
        /** Ends the connection; the asker gets no more calls. */
        @Override
        void close();
    }

    /** Takes the answers to a message. */
    interface Asker {
        void answered(byte[] reply);

        /** The connection has ended. Called once, unless the asker has closed it. */
        void ended(Ending how, String why);
    }

    /** How a connection has ended. */
    enum Ending {
        /** Nothing listens at the address: the message has not arrived, and whatever had the address before is gone. */
        REFUSED,
        /** There was no connection in time: the message has not arrived. */
        UNREACHED,
        /** The message may have arrived. */
        BROKEN
    }

    /** A registry that runs here. */
    interface Registry extends AutoCloseable {
        int port();

        /** The same as a registration by HTTP. */
        void register(RankRegistration rank) throws MessageException;

        @Override
        void close();
    }
}
