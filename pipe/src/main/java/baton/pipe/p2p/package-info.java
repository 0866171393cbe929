/** Tensors by name between peers that start and end at any time: vLLM's P2pNcclEngine over any {@link baton.pipe.WireTransport}. */
@NullMarked
package baton.pipe.p2p;

import org.jspecify.annotations.NullMarked;
