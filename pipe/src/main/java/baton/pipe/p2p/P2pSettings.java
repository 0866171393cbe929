package baton.pipe.p2p;

import baton.messages.PeerAccess;
import java.time.Duration;

/**
 * How an endpoint works.
 *
 * @param host this machine's address that peers know
 * @param port of control messages; 0 for a free one
 * @param sendType how tensors get to their peers
 * @param bufferBytes of tensors that were received and not taken, and of those to be sent, each at most
 * @param poolBytes more of those that were received, when that is not enough
 * @param access which peers to talk to
 * @param exchange time to connect, or for a control message to get there
 * @param transfer time for a tensor's bytes, for the peer to have room for it, and for room for it here
 * @param keep how long tensors are kept that nobody takes
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
    /** How tensors get to their peers. */
    public enum SendType {
        /** Sent by who asks for it, who waits. */
        PUT,
        /** Queued, and sent by another thread. */
        PUT_ASYNC,
        /** Kept until the peer gets them; the longest unused ones go when there is no room. */
        GET
    }
}
