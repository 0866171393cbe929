/** Instances that send each other the KV of a prompt, layer by layer, where the request's id says: vLLM's P2pNcclConnector. */
@NullMarked
package baton.connectors.p2pnccl;

import org.jspecify.annotations.NullMarked;
