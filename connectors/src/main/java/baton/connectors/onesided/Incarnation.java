package baton.connectors.onesided;

import baton.messages.PeerSecret;
import java.nio.charset.StandardCharsets;
import java.security.SecureRandom;
import java.util.Optional;
import java.util.UUID;

/**
 * One run of an instance, from start to end. References to blocks are signed with its key, so that those of an earlier run are
 * refused.
 *
 * @param epoch unique to the run
 * @param key of the signatures, at least {@link #MIN_KEY_BYTES} bytes
 */
public record Incarnation(String epoch, byte[] key) {
    public static final int MIN_KEY_BYTES = 16;

    private static final int KEY_BYTES = 32;

    /** A new run. With a secret, the key is derived from it and need not be sent to peers. */
    public static Incarnation begin(String engineId, Optional<PeerSecret> secret) {
        String epoch = UUID.randomUUID().toString();
        byte[] random = new byte[KEY_BYTES];
        new SecureRandom().nextBytes(random);
        return new Incarnation(
                epoch, secret.map(known -> key(known, engineId, epoch)).orElse(random));
    }

    /** The key of an instance's run, derived from the secret that its peers share. */
    public static byte[] key(PeerSecret secret, String engineId, String epoch) {
        return secret.mac(
                "key of references", engineId.getBytes(StandardCharsets.UTF_8), epoch.getBytes(StandardCharsets.UTF_8));
    }
}
