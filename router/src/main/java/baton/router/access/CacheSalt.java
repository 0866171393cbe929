package baton.router.access;

import baton.kv.Sha256;
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
     * 32 hexadecimal digits of the tenant; then a {@code :} and as many of the client's own salt, if there is one. So instances see which
     * salts are one tenant's.
     *
     * @param own the salt that the client gives, which divides the tenant's cache
     */
    public String of(Optional<String> own) {
        String all = digest("");
        return own.map(salt -> all + ":" + digest("salt\n" + salt)).orElse(all);
    }

    private String digest(String own) {
        return HexFormat.of().formatHex(Sha256.of("cache_salt\n" + tenant + "\n" + own), 0, BYTES);
    }
}
