package baton.pipe.p2p;

import baton.messages.PeerAddress;
import baton.messages.p2p.P2pMessage.TensorHead;
import java.lang.foreign.MemorySegment;
import java.time.Duration;
import java.util.function.Consumer;

/** Tensors by name between peers that come and go. */
public interface TensorExchange extends AutoCloseable {
    /** Where peers find this one. */
    PeerAddress address();

    P2pStats stats();

    /** Bytes of received tensors that nobody has taken. */
    long heldBytes();

    /**
     * Gives a tensor to a peer: it is sent when this returns, or queued, or kept for the peer to get it.
     *
     * @param fill writes the tensor's bytes; runs before this returns
     * @throws P2pException if it was not sent, or there is no memory for it in time
     */
    void send(PeerAddress to, String tensorId, TensorHead head, Consumer<MemorySegment> fill) throws P2pException;

    /**
     * Takes a tensor that a peer has put here, or gets it from there; waits for it.
     *
     * @param timeout for all that this needs, connecting too
     * @throws P2pException if it does not come in time, or will not come
     */
    Received receive(PeerAddress from, String tensorId, Duration timeout) throws P2pException;

    /**
     * Drops a group that was to be received: all tensors whose ids are the same up to a {@code #}, those that are here and those that come
     * later. Who waits for one fails at once.
     */
    void forget(String group);

    /** Whether a tensor is queued, kept for a peer or being sent. Once there is none, all that were sent are counted. */
    boolean isSending();

    /** Drops a group's tensors that are to be sent. */
    void dropUnsent(String group);

    /** Ends connections, fails who waits, gives memory back. */
    @Override
    void close();

    /**
     * A tensor that was taken.
     *
     * @param data its bytes, until this is closed
     */
    record Received(TensorHead head, MemorySegment data, Runnable giveBack) implements AutoCloseable {
        @Override
        public void close() {
            giveBack.run();
        }
    }
}
