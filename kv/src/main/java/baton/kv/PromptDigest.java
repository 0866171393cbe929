package baton.kv;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.security.MessageDigest;
import java.util.HexFormat;
import java.util.Optional;

/**
 * Names a prompt together with everything else that its keys and values depend on, so that two instances can find out whether they
 * mean the same KV. Unlike {@link BlockHasher}'s chain it covers any number of tokens, not only full blocks.
 */
public final class PromptDigest {
    private PromptDigest() {}

    /**
     * {@code SHA-256(root || tokens as little-endian int32)} in lower-case hex, where {@code root} is
     * {@link PromptRoot}. Peers compare it: its definition is part of the wire format.
     *
     * @param tokens the prompt, or as many of its first tokens as are meant
     */
    public static String of(ModelFingerprint model, Optional<String> loraId, Optional<String> cacheSalt, int[] tokens) {
        MessageDigest sha256 = Sha256.begin();
        sha256.update(PromptRoot.of(model, loraId, cacheSalt));
        ByteBuffer bytes = ByteBuffer.allocate(Math.multiplyExact(tokens.length, Integer.BYTES))
                .order(ByteOrder.LITTLE_ENDIAN);
        bytes.asIntBuffer().put(tokens);
        sha256.update(bytes);
        return HexFormat.of().formatHex(sha256.digest());
    }
}
