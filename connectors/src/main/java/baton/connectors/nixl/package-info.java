/** The connectors that hand KV caches over by one-sided transfer, as vLLM's NIXL connectors do: pull and push. */
@NullMarked
package baton.connectors.nixl;

import org.jspecify.annotations.NullMarked;
