package baton.kv;

import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.HexFormat;

/**
 * Identifies the computation that fills a KV cache: equal fingerprints mean that equal tokens give interchangeable keys and
 * values.
 *
 * @param name the model's name, for people
 * @param digest hex digest over the architecture's parameters and the weights
 */
public record ModelFingerprint(String name, String digest) {
    /** The fingerprint of the same model computed in another way. Equal only for equal ways. */
    public ModelFingerprint derived(String way) {
        try {
            MessageDigest sha = MessageDigest.getInstance("SHA-256");
            byte[] derived = sha.digest((digest + "\n" + way).getBytes(StandardCharsets.UTF_8));
            return new ModelFingerprint(name, HexFormat.of().formatHex(derived));
        } catch (NoSuchAlgorithmException e) {
            throw new AssertionError("every Java has SHA-256", e);
        }
    }
}
