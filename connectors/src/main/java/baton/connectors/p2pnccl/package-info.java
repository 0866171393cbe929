/**
 * Prefill instances that send a prompt's KV, layer by layer, to the decode instance of the request's id: vLLM's P2pNcclConnector.
 */
@NullMarked
package baton.connectors.p2pnccl;

import org.jspecify.annotations.NullMarked;
