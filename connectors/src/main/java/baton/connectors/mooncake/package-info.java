/**
 * Prefill instances that write a prompt's KV into the decode instance's memory when it asks them to: vLLM's MooncakeConnector, with its
 * registry over HTTP and its messages over ZeroMQ.
 */
@NullMarked
package baton.connectors.mooncake;

import org.jspecify.annotations.NullMarked;
