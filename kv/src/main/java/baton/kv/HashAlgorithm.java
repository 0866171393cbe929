package baton.kv;

import java.util.Map;
import java.util.Optional;

/** How blocks of tokens are hashed: vLLM's {@code --prefix-caching-hash-algo}. */
public enum HashAlgorithm {
    /** SHA-256 over Python's pickle, protocol 5; vLLM's default. */
    SHA256("sha256"),
    /** SHA-256 over canonical CBOR. */
    SHA256_CBOR("sha256_cbor");

    /** The seed of vLLM's chains unless {@code PYTHONHASHSEED} is set. */
    private static final String DEFAULT_SEED = "vllm-none-hash";

    private final String label;

    HashAlgorithm(String label) {
        this.label = label;
    }

    /** vLLM's name of the algorithm. */
    public String label() {
        return label;
    }

    /** @throws ConfigException if there is none of that name */
    public static HashAlgorithm parse(String field, String name) {
        return ConfigException.choose(field, name, values(), HashAlgorithm::label);
    }

    /** The seed of hash chains that an environment sets: {@code PYTHONHASHSEED}, as in vLLM. */
    public static String seed(Map<String, String> environment) {
        return Optional.ofNullable(environment.get("PYTHONHASHSEED")).orElse(DEFAULT_SEED);
    }
}
