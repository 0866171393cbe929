package baton.kv;

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
        return new ModelFingerprint(name, HexFormat.of().formatHex(Sha256.of(digest + "\n" + way)));
    }
}
