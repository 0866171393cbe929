package baton.pipe;

import java.lang.foreign.MemorySegment;
import java.time.Duration;

/**
 * A connection between two processes that carries bytes in both directions, independently and in order. The receiver has to know
 * how many bytes follow, as with NCCL's and Gloo's send and receive.
 *
 * <p>One thread may send while another receives. After a failure of either the wire cannot be used any more and has to be closed.
 */
public interface Wire extends AutoCloseable {
    /**
     * Sends bytes; returns when their memory may be changed again. With TCP they may still be under way then, with NCCL and Gloo
     * the peer has received them.
     *
     * @param bytes native memory of the host, or of a device that the transport {@linkplain WireTransport#reaches reaches}
     * @throws PipeException if the connection has ended, or the peer has not received them in time
     * @throws IllegalStateException if they are in memory of another device
     */
    void send(TensorBytes bytes, Duration timeout) throws PipeException;

    /**
     * Receives bytes; returns when the memory is full. The sizes of sends and receives must be the same. No device writes to the memory any
     * more when this returns or throws; a device that goes on for a minute {@linkplain baton.kv.KvCopier#fail fails} for all.
     *
     * @param into native memory of the host, or of a device that the transport {@linkplain WireTransport#reaches reaches}
     * @throws PipeException if the connection has ended, or the peer has not sent as much in time
     * @throws IllegalStateException if it is memory of another device
     */
    void receive(TensorBytes into, Duration timeout) throws PipeException;

    /** {@link #send(TensorBytes, Duration)} from native memory of the host. */
    default void send(MemorySegment bytes, Duration timeout) throws PipeException {
        send(new TensorBytes.Host(bytes), timeout);
    }

    /** {@link #receive(TensorBytes, Duration)} into native memory of the host. */
    default void receive(MemorySegment into, Duration timeout) throws PipeException {
        receive(new TensorBytes.Host(into), timeout);
    }

    /** Ends the connection on both sides: sends and receives fail soon, here and at the peer. */
    @Override
    void close();
}
