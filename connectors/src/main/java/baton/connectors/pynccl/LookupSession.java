package baton.connectors.pynccl;

import baton.kv.KvMemory;
import baton.pipe.LookupBuffer;
import baton.pipe.TensorMemory;
import java.time.Duration;
import java.util.Optional;

/**
 * A rank's connection with its counterpart on the other side, which is made again whenever it is lost, and the lookup buffer over
 * it. Each connection has a lookup buffer of its own. Any thread.
 */
public interface LookupSession extends AutoCloseable {
    /**
     * Starts to connect; called once.
     *
     * @param pool of the rank: the peer may send entries of its size
     * @return memory of keys and values to send, the device's if the wires reach it
     */
    TensorMemory start(KvMemory pool);

    /** Waits for the lookup buffer; empty if there is none in time, or the peer has been away for long. */
    Optional<LookupBuffer> await(Duration timeout);

    /**
     * Whether that is still the lookup buffer: a call of it that has failed did so for another reason than the connection's end.
     */
    boolean isUp(LookupBuffer used);

    /** Ends the connection; calls of the lookup buffer fail. */
    @Override
    void close();
}
