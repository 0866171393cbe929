/**
 * The connector that pairs one producer with one consumer over pipes: vLLM's first one, extended by deadlines, reconnection and
 * authentication.
 */
@NullMarked
package baton.connectors.pynccl;

import org.jspecify.annotations.NullMarked;
