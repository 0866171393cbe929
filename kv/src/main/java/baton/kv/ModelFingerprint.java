package baton.kv;

/**
 * Identifies the computation that fills a KV cache: equal fingerprints mean that equal tokens give interchangeable keys and
 * values.
 *
 * @param name the model's name, for people
 * @param digest hex digest over the architecture's parameters and the weights
 */
public record ModelFingerprint(String name, String digest) {}
