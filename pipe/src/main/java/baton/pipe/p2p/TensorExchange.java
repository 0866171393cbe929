package baton.pipe.p2p;

import baton.kv.KvFence;
import baton.kv.KvMemory;
import baton.messages.PeerAddress;
import baton.messages.p2p.P2pMessage.TensorHead;
import baton.pipe.TensorBytes;
import java.time.Duration;
import java.util.function.Function;

/** Exchanges tensors by name with peers that may start and end at any time. */
public interface TensorExchange extends AutoCloseable {
    /** The address by which peers reach this endpoint. */
    PeerAddress address();

    P2pStats stats();

    /** Bytes of received tensors that were not taken. */
    long heldBytes();

    /**
     * Takes the memory that the first tensors will need. Without it the first of them wait for that.
     *
     * @param pool its device has the memory of later tensors, if bytes can be sent from there
     * @return whether that device has it
     */
    default boolean prepare(boolean sends, boolean receives, KvMemory pool) {
        return false;
    }

    /**
     * Hands a tensor over to be sent: when this returns it is sent, queued, or kept until the peer requests it.
     *
     * @param fill starts to write the tensor's bytes, before this returns; they are there when its fence is passed
     * @throws P2pException if it was not sent, or there was no memory for it in time
     */
    void send(PeerAddress to, String tensorId, TensorHead head, Function<TensorBytes, KvFence> fill)
            throws P2pException;

    /**
     * Takes a tensor that a peer has sent, or requests it from the peer; waits for it.
     *
     * @param timeout for the whole call, with connecting
     * @throws P2pException if it did not arrive in time, or never will
     */
    Received receive(PeerAddress from, String tensorId, Duration timeout) throws P2pException;

    /**
     * Drops a group that was to be received: all tensors with the same id up to a {@code #}, those that are here and later ones. Calls that
     * wait for one fail at once.
     */
    void forget(String group);

    /**
     * Whether a tensor is queued, kept for a peer or being sent. Once there is none, all sent tensors are counted in the
     * statistics.
     */
    boolean isSending();

    /** Drops a group's tensors that are to be sent. */
    void dropUnsent(String group);

    /** Ends connections, fails waiting calls, frees memory. */
    @Override
    void close();

    /**
     * A tensor that was taken.
     *
     * @param data its bytes, valid until this is closed
     * @param giveBack frees them
     */
    record Received(TensorHead head, TensorBytes data, Runnable giveBack) implements AutoCloseable {
        @Override
        public void close() {
            giveBack.run();
        }
    }
}
