package baton.transfer.mooncake;

import baton.kv.Deadline;
import baton.messages.PeerAddress;
import baton.transfer.TransferException;

/** How engines find each other. Any thread. */
sealed interface SegmentDirectory extends AutoCloseable permits HandshakeDirectory, ServerDirectory {
    /**
     * A segment's descriptor and the address of its engine.
     *
     * @param rpc its engine's handshake daemon
     */
    record Located(PeerAddress rpc, SegmentDescriptor descriptor) {}

    /** The name of this process's segment. */
    String ownName(PeerAddress rpc);

    /** @throws TransferException if there is no such name, or it cannot be found in time */
    Located find(String name, Deadline deadline) throws TransferException;

    /**
     * Makes this process's segment known, as it is now.
     *
     * @throws TransferException if that is not possible, or another engine has the name
     */
    void publish(PeerAddress rpc, SegmentDescriptor descriptor) throws TransferException;

    /** Makes it unknown again. */
    @Override
    void close();
}
