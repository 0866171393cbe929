package baton.pipe;

import baton.kv.KvDevice;
import java.time.Duration;

/** Makes wires between processes. */
public interface WireTransport extends AutoCloseable {
    /** The value of {@code kv_connector_extra_config.transport} that means this one. */
    String name();

    /** Whether its wires send from and receive into memory of a device. */
    default boolean reaches(KvDevice device) {
        return false;
    }

    /**
     * The wire between ranks 0 and 1, at an address that both know: rank 0 listens, rank 1 connects and retries until rank 0
     * listens.
     *
     * @throws PipeException if the peer has not come in time, or the address cannot be bound
     */
    Wire meet(String host, int port, int rank, Duration timeout) throws PipeException;

    /**
     * One end of a wire; the peer makes the other end by {@link Offer#id}.
     *
     * @param host an address of this machine that the peer can reach
     * @throws PipeException if it cannot listen there
     */
    Offer offer(String host) throws PipeException;

    /**
     * The other end of an offered wire.
     *
     * @param id from a peer; untrusted
     * @param host of the peer: an id with another host's address is refused
     * @throws PipeException if the id is invalid, has another host's address, or the offer is closed
     */
    Wire join(byte[] id, String host, Duration timeout) throws PipeException;

    /** Closes offers that were not joined. Wires stay open. */
    @Override
    void close();

    /** One end of a wire that waits for the peer to make the other end. */
    interface Offer extends AutoCloseable {
        /** The id with which the peer can {@link WireTransport#join}; at most 128 bytes, as NCCL's unique id. */
        byte[] id();

        /** @throws PipeException if the peer has not joined in time, or this was closed */
        Wire accept(Duration timeout) throws PipeException;

        /** Withdraws the offer; an accepted wire stays open. */
        @Override
        void close();
    }
}
