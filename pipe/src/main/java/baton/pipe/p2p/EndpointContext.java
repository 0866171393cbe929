package baton.pipe.p2p;

import baton.kv.Ticker;
import baton.messages.PeerAddress;
import baton.messages.PeerChannel;
import baton.pipe.WireTransport;

/**
 * The state that the parts of an endpoint share.
 *
 * @param self the endpoint's own address, which is its identity at its peers
 * @param channel of control messages
 * @param transport of tensors' bytes
 */
record EndpointContext(
        PeerAddress self,
        P2pSettings settings,
        P2pStats stats,
        PeerChannel channel,
        WireTransport transport,
        Ticker ticker) {}
