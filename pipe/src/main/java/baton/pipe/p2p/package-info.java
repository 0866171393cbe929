/** Tensors by name between peers that come and go: vLLM's P2pNcclEngine over any {@link baton.pipe.WireTransport}. */
@NullMarked
package baton.pipe.p2p;

import org.jspecify.annotations.NullMarked;
