package baton.connectors.onesided;

import java.util.Optional;
import java.util.OptionalDouble;
import java.util.OptionalLong;

/**
 * A request's tokens to be loaded from a peer's blocks.
 *
 * @param source the peer's blocks
 * @param plan which tokens, and the blocks for them here
 * @param waitsSince when the request came, if nothing has been loaded from the peer: a handshake that has failed since then need not be tried
 *     again for it
 * @param expiry of the lease of the peer's blocks, in seconds by the peer's clock, if the load is not to begin shortly before it
 * @param prompt digest of the whole prompt, if {@code source} has no proof that says it
 * @param refused why nothing of it is loaded: {@code source} is wrong by itself
 */
public record LoadRequest(
        String requestId,
        RemoteBlocks source,
        TransferPlan plan,
        OptionalLong waitsSince,
        OptionalDouble expiry,
        Optional<String> prompt,
        Optional<Refusal> refused) {
    /** @param words the error, after the names of the request and of the blocks */
    public record Refusal(Rejection cause, String words) {}
}
