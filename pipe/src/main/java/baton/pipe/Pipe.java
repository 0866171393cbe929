package baton.pipe;

import java.lang.foreign.Arena;
import java.time.Duration;
import java.util.Optional;

/**
 * A FIFO of tensors in one direction, from one process to another: vLLM's {@code KVPipeBase}. One end only sends, the other only
 * receives. Empty is a value of its own: "nothing", vLLM's {@code None}.
 */
public interface Pipe extends AutoCloseable {
    /**
     * Queues a copy of a tensor. Waits while there is no room for it: the tensors that the receiver has not taken fill this end's
     * buffer. A tensor that is larger than the buffer is sent alone.
     *
     * @throws PipeException if the pipe has ended, if an earlier tensor could not be sent, or if there was no room in time
     */
    void send(Optional<Tensor> tensor, Duration timeout) throws PipeException;

    /**
     * Receives the next tensor; waits for it.
     *
     * @param arena of the tensor's memory, which is allocated once its size is known to be allowed
     * @throws DamagedTensorException if its bytes do not have the sender's checksum; it counts as received, and the pipe can still be
     *     used
     * @throws PipeException if there was none in time, after which the pipe can still be used; or if the pipe has ended, or ends
     *     because of an invalid frame
     */
    Optional<Tensor> receive(Arena arena, Duration timeout) throws PipeException;

    /** Ends the pipe on both sides. Tensors that were sent and not received are lost. */
    @Override
    void close();
}
