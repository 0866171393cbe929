package baton.pipe;

import java.time.Duration;

/** Makes wires between processes. */
public interface WireTransport extends AutoCloseable {
    /** The value of {@code kv_connector_extra_config.transport} that means this one. */
    String name();

    /**
     * The wire between ranks 0 and 1 that both know an address: rank 0 waits at it for rank 1. Both may come first.
     *
     * @throws PipeException if the other has not come in time, or the address cannot be had
     */
    Wire meet(String host, int port, int rank, Duration timeout) throws PipeException;

    /**
     * One end of a wire whose other end is made by who is told {@link Offer#id}.
     *
     * @param host an address of this machine that the other can reach
     * @throws PipeException if nothing can be offered there
     */
    Offer offer(String host) throws PipeException;

    /**
     * The other end of an offered wire.
     *
     * @param id as it came from a peer; anything may be in it
     * @param host where the peer is known to be: an id that leads elsewhere is refused
     * @throws PipeException if the id is none, leads elsewhere, or nobody waits there
     */
    Wire join(byte[] id, String host, Duration timeout) throws PipeException;

    /** Ends what was offered and not taken. Wires live on. */
    @Override
    void close();

    /** A wire that waits for its other end. */
    interface Offer extends AutoCloseable {
        /** What the other side needs to {@link WireTransport#join}; at most 128 bytes, as NCCL's unique id. */
        byte[] id();

        /** @throws PipeException if nobody has come in time, or this was closed */
        Wire accept(Duration timeout) throws PipeException;

        /** Withdraws it; an accepted wire lives on. */
        @Override
        void close();
    }
}
