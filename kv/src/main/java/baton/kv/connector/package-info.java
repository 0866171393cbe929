/**
 * The connector API: how an engine takes KV caches from elsewhere and gives them away. It is vLLM's V1 connector life cycle
 * ({@code vllm/distributed/kv_transfer/kv_connector/v1/base.py}) in the JVM's terms; docs/connectors.md shows how to write one.
 */
@NullMarked
package baton.kv.connector;

import org.jspecify.annotations.NullMarked;
