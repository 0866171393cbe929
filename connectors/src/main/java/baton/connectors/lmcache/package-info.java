/** vLLM's LMCacheConnectorV1: KV cache shared with LMCache by its chunks' keys and bytes. */
@NullMarked
package baton.connectors.lmcache;

import org.jspecify.annotations.NullMarked;
