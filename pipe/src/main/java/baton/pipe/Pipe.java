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
     * Takes a tensor to send. Returns when the tensor's memory may be changed again. Waits while the tensors that the receiver has
     * not taken hold as many bytes as this end buffers; one that is larger than that goes alone.
     *
     * @throws PipeException if the peer has gone or the pipe is closed, if an earlier tensor could not be sent, or if there was no
     *     room in time
     */
    void send(Optional<Tensor> tensor, Duration timeout) throws PipeException;

    /**
     * The next tensor, once it is here.
     *
     * @param arena what the tensor's memory is taken from; only once its size is known to be allowed
     * @throws PipeException if nothing came in time, which leaves the pipe as it was; or if the peer has gone, the pipe is closed or
     *     what came is no tensor, which ends it
     */
    Optional<Tensor> receive(Arena arena, Duration timeout) throws PipeException;

    /** Ends the pipe on both sides. What was sent and not received is lost. */
    @Override
    void close();
}
