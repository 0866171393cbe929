package baton.transfer;

import baton.kv.ConfigException;
import baton.kv.KvMemory;
import baton.memory.RunDigests;
import java.time.Duration;
import java.util.List;
import java.util.Optional;

/**
 * Moves bytes between memory that it has registered and memory that its peers have registered; NIXL's agent in the JVM's terms.
 * Addresses are virtual addresses of the process that owns the memory, as in NIXL.
 *
 * <p>{@link #connect} may be called from any thread, everything else from one thread at a time. Whatever a peer sends, nothing is
 * thrown because of it and nothing grows without bound; a peer's failure ends the transfers that need it.
 */
public interface TransferAgent extends AutoCloseable {
    /** Direction of a transfer, seen from the agent that starts it. */
    enum Operation {
        /** Moves bytes from the peer's memory into this process's. */
        READ,
        /** Moves bytes from this process's memory into the peer's. */
        WRITE
    }

    /** A name that no other agent has, neither one of an earlier process at the same address. */
    String name();

    /**
     * Lets peers read a region, and write to it, with a {@link Permit} if it needs one, from now until the registration is closed.
     *
     * @throws TransferException if the implementation cannot register it
     */
    Registration register(Region region) throws TransferException;

    /**
     * An agent for a pool that connectors are given as it is.
     *
     * @throws ConfigException if the pool is a device's that the agent does not reach; the agent is closed then
     */
    static TransferAgent reaching(KvMemory pool, TransferAgent agent) {
        if (pool instanceof KvMemory.Device of && !agent.reaches(of)) {
            agent.close();
            throw new ConfigException(
                    "kv_buffer_device",
                    "is cuda, but the transfer agent %s does not reach memory of %s: it must be cpu, or the agent one that does, such as NIXL's for cuda devices"
                            .formatted(agent.name(), of.device()));
        }
        return agent;
    }

    /** Whether it can register that memory, and move its bytes. */
    default boolean reaches(KvMemory.Device memory) {
        return false;
    }

    /** The data that a peer needs to connect: address, registered regions, a secret. Made anew by each call. */
    byte[] metadata();

    /**
     * Connects to the agent that gave {@code metadata}. Connecting twice gives the same peer.
     *
     * @throws TransferException if the bytes are no such metadata, or the peer does not answer in time or is another one
     */
    Peer connect(byte[] metadata, Duration timeout) throws TransferException;

    /**
     * Starts to move ranges. Does not wait and does not throw: an error is the returned transfer's failure.
     *
     * @param ranges all in registered memory of both sides; not overlapping in the destination
     * @param notification arrives at the peer after the last byte was moved, and not at all if the transfer fails
     * @param timeout after which the transfer has ended or failed
     */
    Transfer start(Operation operation, Peer peer, List<Range> ranges, Optional<byte[]> notification, Duration timeout);

    /**
     * As {@link #start(Operation, Peer, List, Optional, Duration)}, and digests the ranges while it moves them.
     *
     * @param digests of ranges that all have {@link RunDigests#bytes}; an implementation may digest none of them
     */
    default Transfer start(
            Operation operation,
            Peer peer,
            List<Range> ranges,
            Optional<byte[]> notification,
            Duration timeout,
            RunDigests digests) {
        return start(operation, peer, ranges, notification, timeout);
    }

    /**
     * Lets peers that name the permit's token write to some memory, until the permit is closed.
     *
     * @param memory in regions that are registered, or will be; elsewhere no peer can write anyway
     * @return empty where a peer that knows the memory's address can always write; then regions need no permits either
     */
    default Optional<Permit> permit(List<Span> memory) {
        return Optional.empty();
    }

    /**
     * As {@link #start(Operation, Peer, List, Optional, Duration)} with {@link Operation#WRITE}, by a permit of the peer's. It is refused
     * if the permit is not, or not any more, one of that peer's, or a range is not within the memory that it is for.
     *
     * @param permit {@link Permit#token}; no matter to agents that give none
     */
    default Transfer write(
            Peer peer, long permit, List<Range> ranges, Optional<byte[]> notification, Duration timeout) {
        return start(Operation.WRITE, peer, ranges, notification, timeout);
    }

    /**
     * Sends a message, in order with other messages to that peer; lost only with the peer.
     *
     * @throws TransferException if the peer is gone or too much waits to be sent to it
     */
    void notify(Peer peer, byte[] message) throws TransferException;

    /**
     * Sets a listener that is called when a transfer of this agent is over and when a message has arrived, in place of polling. It is
     * called by any thread, at times for nothing; an implementation may never call it.
     *
     * @param progress quick, and throws nothing; replaces the one before
     */
    default void onProgress(Runnable progress) {}

    /** Messages that have arrived, in order for each sender. */
    List<Notification> takeNotifications();

    /**
     * True if no agent of that name is connected, so that it cannot read or write here until it connects anew. Always false where
     * such things are not known.
     *
     * @param name {@link Notification#from} or {@link Peer#name}
     */
    default boolean isGone(String name) {
        return false;
    }

    /** Bytes of peers' memory that are mapped into this process. Always 0 where such things are not known. */
    default long mappedPeerBytes() {
        return 0;
    }

    /** Ends all transfers and connections. When it returns none of the registered memory is touched any more. */
    @Override
    void close();

    /** Some memory of this process, or of one of its devices. */
    record Span(long address, long bytes) {
        public boolean holds(long start, long length) {
            return start >= address && start + length <= address + bytes;
        }
    }

    /** A message of a peer. */
    record Notification(String from, byte[] message) {}

    /** Memory that peers may reach. */
    interface Registration extends AutoCloseable {
        /** When it returns no peer can reach the region through this agent any more, as far as the implementation can hold it back. */
        @Override
        void close();
    }

    /** Permission for peers that know its token to write to some memory. Several permits may be for the same memory. */
    interface Permit extends AutoCloseable {
        /** The number that peers present to write. It is random, so that other peers cannot guess it, and not 0. */
        long token();

        /** How many writes that name it have begun, be they done or not. After {@link #close} there are no more. */
        long writes();

        /**
         * Aborts the writes under way that name it, which fail as {@link Transfer.Cause#NOT_PERMITTED}, and rejects later ones; returns when
         * none is under way any more. Other transfers of the writers are not affected.
         */
        @Override
        void close();
    }

    /** An agent that this one is connected to. */
    interface Peer extends AutoCloseable {
        String name();

        /** False once the peer is known to be gone. Never true again: a peer that comes back is another one. */
        boolean alive();

        /** Ends the connection and the transfers over it. */
        @Override
        void close();
    }
}
