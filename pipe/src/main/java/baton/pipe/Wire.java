package baton.pipe;

import java.lang.foreign.MemorySegment;
import java.time.Duration;

/**
 * A connection of two processes that carries bytes both ways; each way is in order and by itself. The receiver knows how many bytes
 * come, as with NCCL's and Gloo's send and receive: what they mean is agreed on elsewhere.
 *
 * <p>One thread may send while another receives. After a failure of either the wire is of no use and is to be closed.
 */
public interface Wire extends AutoCloseable {
    /**
     * Returns when the bytes may be changed again. They may still be under way; or it has waited until the peer received them, as
     * NCCL and Gloo do.
     *
     * @param bytes native memory
     * @throws PipeException if the peer has gone, or has not taken them in time
     */
    void send(MemorySegment bytes, Duration timeout) throws PipeException;

    /**
     * Returns when the segment is full. What was sent at once is to be received at once.
     *
     * @param into native memory
     * @throws PipeException if the peer has gone, or has not sent as much in time
     */
    void receive(MemorySegment into, Duration timeout) throws PipeException;

    /** Ends the wire on both sides: who sends or receives, here or there, fails soon. */
    @Override
    void close();
}
