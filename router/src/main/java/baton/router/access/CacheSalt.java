package baton.router.access;

import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.HexFormat;
import java.util.Optional;

/**
 * Makes {@code cache_salt} for the requests of one tenant, so that instances share cached blocks among them only. Other tenants cannot
 * compute it.
 *
 * @param tenant that no other tenant has
 */
public record CacheSalt(String tenant) {
    private static final int BYTES = 16;

    /**
     * 32 hexadecimal digits.
     *
     * @param own the salt that the client gives, which divides the tenant's cache
     */
    public String of(Optional<String> own) {
        try {
            MessageDigest sha256 = MessageDigest.getInstance("SHA-256");
            sha256.update(("cache_salt\n" + tenant + "\n").getBytes(StandardCharsets.UTF_8));
            own.ifPresent(salt -> sha256.update(("salt\n" + salt).getBytes(StandardCharsets.UTF_8)));
            return HexFormat.of().formatHex(sha256.digest(), 0, BYTES);
        } catch (NoSuchAlgorithmException e) {
            throw new IllegalStateException(e);
        }
    }
}
