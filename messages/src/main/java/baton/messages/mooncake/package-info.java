/** Messages and registries of vLLM's MooncakeConnector: ZeroMQ between ranks, HTTP to registries. */
@NullMarked
package baton.messages.mooncake;

import org.jspecify.annotations.NullMarked;
