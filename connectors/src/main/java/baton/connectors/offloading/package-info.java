/** vLLM's OffloadingConnector: KV blocks in host memory, and in slower tiers behind it. */
@NullMarked
package baton.connectors.offloading;

import org.jspecify.annotations.NullMarked;
