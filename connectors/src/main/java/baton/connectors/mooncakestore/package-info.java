/** vLLM's MooncakeStoreConnector: KV blocks in a Mooncake store that instances share. */
@NullMarked
package baton.connectors.mooncakestore;

import org.jspecify.annotations.NullMarked;
