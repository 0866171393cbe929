package baton.pipe;

import java.time.Duration;

/**
 * A FIFO of tensors in one direction, from one process to another: vLLM's {@code KVPipeBase}. One end only sends, the other only
 * receives.
 */
public interface Pipe extends AutoCloseable {
    /**
     * Queues a tensor, which the pipe closes once it is sent, or this throws. Waits while there is no room for it: the tensors that the receiver
     * has not taken fill this end's buffer. A tensor that is larger than the buffer is sent alone.
     *
     * @throws PipeException if the pipe has ended, if an earlier tensor could not be sent, or if there was no room in time
     */
    void send(Tensor tensor, Duration timeout) throws PipeException;

    /**
     * Receives the next tensor; waits for it.
     *
     * @param memory of the tensor, which is allocated once its size is known to be allowed; the caller closes the tensor
     * @throws DamagedTensorException if its bytes do not have the sender's checksum; it counts as received, and the pipe can still be
     *     used
     * @throws PipeException if there was none in time, after which the pipe can still be used; or if the pipe has ended, or ends
     *     because of an invalid frame
     */
    Tensor receive(TensorMemory memory, Duration timeout) throws PipeException;

    /** Ends the pipe on both sides. Tensors that were sent and not received are lost. */
    @Override
    void close();
}
