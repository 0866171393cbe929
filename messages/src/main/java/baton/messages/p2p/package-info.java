/** The messages of vLLM's P2pNcclConnector: between instances, to its proxy, and the request ids that carry addresses. */
@NullMarked
package baton.messages.p2p;

import org.jspecify.annotations.NullMarked;
