package baton.router;

import baton.kv.ServerTls;
import baton.router.access.TlsFiles;
import java.nio.file.Path;
import java.util.List;
import java.util.Optional;

/**
 * The protection of the router and its instances from clients and from the network. All files are followed.
 *
 * @param clientKeys file with the keys of clients, see {@link baton.router.access.ClientKeys}; empty if clients need none
 * @param tls of the router's port; empty for plain HTTP
 * @param instances authorities of the certificates of instances at {@code https://}, empty for those of the Java platform; and the
 *     certificate and key that the router presents there
 * @param mediaUrls whether messages may have media at URLs, which the instances fetch, and not only inline
 * @param allowedOrigins of web pages that may use the router, besides its own: see {@link baton.kv.WebGuard#of}
 */
public record Security(
        Optional<Path> clientKeys,
        Optional<ServerTls> tls,
        TlsFiles instances,
        boolean mediaUrls,
        List<String> allowedOrigins) {
    public static final TlsFiles NO_INSTANCE_FILES = instances(Optional.empty(), Optional.empty(), Optional.empty());

    public static final Security NONE =
            new Security(Optional.empty(), Optional.empty(), NO_INSTANCE_FILES, false, List.of());

    /** @throws baton.kv.ConfigException if there is a certificate without its key, or a key without its certificate */
    public static TlsFiles instances(Optional<Path> authorities, Optional<Path> certificate, Optional<Path> key) {
        return new TlsFiles("instance ", certificate, key, authorities);
    }

    /** How the router's address begins. */
    public String scheme() {
        return tls.isPresent() ? "https" : "http";
    }
}
