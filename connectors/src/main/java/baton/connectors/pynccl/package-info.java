/**
 * The connector that pairs one producer with one consumer over pipes: vLLM's first one, with what it lacked: deadlines,
 * reconnection, authentication.
 */
@NullMarked
package baton.connectors.pynccl;

import org.jspecify.annotations.NullMarked;
