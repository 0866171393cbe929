package baton.connectors.onesided;

import java.util.Optional;

/**
 * A request's tokens to be loaded from a peer's blocks.
 *
 * @param source the peer's blocks
 * @param plan which tokens, and the blocks for them here
 * @param prompt digest of the whole prompt, if {@code source} has no proof that says it
 */
public record LoadRequest(String requestId, RemoteBlocks source, TransferPlan plan, Optional<String> prompt) {}
