package baton.connectors.onesided;

/**
 * The proof by which a reference to blocks is verified: the object {@code baton} in {@code kv_transfer_params}.
 *
 * @param epoch of the owner's {@link Incarnation}
 * @param model digest of its model's fingerprint
 * @param generations one for each block
 * @param prompt digest of the tokens
 * @param mac HMAC-SHA256 over the reference with the key of the owner's incarnation, in hex. Readers get the key in the handshake: a
 *     peer that may make a handshake may read all blocks anyway, so the owner need not be asked. Clients never see the key
 */
public record SignedProof(String epoch, String model, long[] generations, String prompt, String mac) {}
