package baton.pipe.p2p;

import baton.messages.PeerAccess;
import java.time.Duration;

/**
 * Settings of an endpoint.
 *
 * @param host this machine's address that peers know
 * @param port of control messages; 0 for a free one
 * @param sendType how tensors are sent
 * @param bufferBytes of tensors that were received and not taken, and of those to be sent, each at most
 * @param poolBytes more memory for received tensors, used when the buffer is full
 * @param access the peers that may connect and be connected to
 * @param exchange time limit of connecting, and of a control message
 * @param transfer time limit of a tensor's bytes, of waiting for the peer's memory, and of waiting for this side's
 * @param keep how long tensors are kept that are not taken
 */
public record P2pSettings(
        String host,
        int port,
        SendType sendType,
        long bufferBytes,
        long poolBytes,
        PeerAccess access,
        Duration exchange,
        Duration transfer,
        Duration keep) {
    /** How tensors are sent. */
    public enum SendType {
        /** Sent on the calling thread, which waits. */
        PUT,
        /** Queued, and sent on another thread. */
        PUT_ASYNC,
        /** Kept until the peer requests them; the oldest ones are evicted when there is no room. */
        GET
    }
}
