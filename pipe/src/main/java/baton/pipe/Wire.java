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
     * @param bytes native memory
     * @throws PipeException if the connection has ended, or the peer has not received them in time
     */
    void send(MemorySegment bytes, Duration timeout) throws PipeException;

    /**
     * Receives bytes; returns when the segment is full. The sizes of sends and receives must be the same.
     *
     * @param into native memory
     * @throws PipeException if the connection has ended, or the peer has not sent as much in time
     */
    void receive(MemorySegment into, Duration timeout) throws PipeException;

    /**
     * {@link #send(MemorySegment, Duration)} of bytes that may be in memory of a device.
     *
     * @throws IllegalStateException if they are, and the transport does not {@linkplain WireTransport#reaches reach} the device
     */
    default void send(TensorBytes bytes, Duration timeout) throws PipeException {
        send(bytes.host(), timeout);
    }

    /**
     * {@link #receive(MemorySegment, Duration)} into memory that may be a device's. No device writes to it any more when this returns or
     * throws, unless the device has not ended its work for a minute, which is logged.
     *
     * @throws IllegalStateException if it is, and the transport does not {@linkplain WireTransport#reaches reach} the device
     */
    default void receive(TensorBytes into, Duration timeout) throws PipeException {
        receive(into.host(), timeout);
    }

    /** Ends the connection on both sides: sends and receives fail soon, here and at the peer. */
    @Override
    void close();
}
