package baton.kv;

import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.Optional;

/**
 * Stands for all that a prompt's keys and values depend on beside its tokens: the model, the LoRA adapter, the request's {@code cache_salt}.
 * Peers compare it: its definition is part of wire formats.
 */
public final class PromptRoot {
    private PromptRoot() {}

    /** 32 bytes: SHA-256 over the fields that are there, each with its name and length in front. */
    public static byte[] of(ModelFingerprint model, Optional<String> loraId, Optional<String> cacheSalt) {
        MessageDigest sha256 = Sha256.begin();
        field(sha256, "model", model.digest());
        loraId.ifPresent(id -> field(sha256, "lora", id));
        cacheSalt.ifPresent(salt -> field(sha256, "salt", salt));
        return sha256.digest();
    }

    /** Name and length go in front of the value, so that no two different sets of fields give the same bytes. */
    private static void field(MessageDigest sha256, String name, String value) {
        byte[] bytes = value.getBytes(StandardCharsets.UTF_8);
        sha256.update((name + ":" + bytes.length + ":").getBytes(StandardCharsets.UTF_8));
        sha256.update(bytes);
    }
}
