package baton.kv;

import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.PrivateKey;
import java.security.Signature;
import java.security.cert.X509Certificate;
import java.util.List;
import java.util.Optional;
import javax.net.ssl.KeyManager;
import javax.net.ssl.X509KeyManager;

/**
 * TLS of an HTTP server, as vLLM's and uvicorn's options {@code --ssl-*} describe it. All files are PEM.
 *
 * @param certificate the server's certificate, then those of the authorities between it and a root
 * @param key its private key
 * @param authorities certificates of the authorities of clients
 * @param clients whether clients must present a certificate
 */
public record ServerTls(Path certificate, Path key, Optional<Path> authorities, Clients clients) {
    private static final List<String> KEY_TYPES = List.of("EC", "RSA", "EdDSA", "Ed25519", "Ed448", "RSASSA-PSS");

    /** Whether clients present certificates. */
    public enum Clients {
        /** Clients are not asked for a certificate. */
        NONE(0),
        /** One that is presented must be of the authorities. */
        OPTIONAL(1),
        REQUIRED(2);

        private final int number;

        Clients(int number) {
            this.number = number;
        }

        private static Clients of(int number) {
            return ConfigException.choose(
                    "ssl cert reqs", Integer.toString(number), values(), each -> Integer.toString(each.number));
        }
    }

    /** @throws ConfigException if clients' certificates cannot be checked */
    public ServerTls {
        if (clients != Clients.NONE && authorities.isEmpty()) {
            throw new ConfigException(
                    "ssl cert reqs",
                    "is " + clients.number
                            + ", which needs the certificates of the clients' authorities (ssl ca certs)");
        }
    }

    /**
     * @param clients 0, 1 or 2 for none, optional or required, as Python's module ssl has them; empty: required where authorities are
     *     given
     * @return empty if nothing is given
     * @throws ConfigException if certificate or key is missing, or the number is another
     */
    public static Optional<ServerTls> of(
            Optional<Path> certificate, Optional<Path> key, Optional<Path> authorities, Optional<Integer> clients) {
        if (certificate.isEmpty() && key.isEmpty()) {
            if (authorities.isPresent() || clients.isPresent()) {
                throw new ConfigException("ssl certfile", "is missing; clients' certificates need a server with TLS");
            }
            return Optional.empty();
        }
        Clients asked = clients.map(Clients::of).orElse(authorities.isPresent() ? Clients.REQUIRED : Clients.NONE);
        return Optional.of(new ServerTls(
                certificate.orElseThrow(() -> new ConfigException("ssl certfile", "is missing, but a key is given")),
                key.orElseThrow(() -> new ConfigException("ssl keyfile", "is missing, but a certificate is given")),
                authorities,
                asked));
    }

    /**
     * Checks that a key is that of its certificate.
     *
     * @throws GeneralSecurityException if it is not: each handshake would fail
     */
    public static void requireMatch(KeyManager[] managers) throws GeneralSecurityException {
        for (KeyManager manager : managers) {
            if (manager instanceof X509KeyManager known) {
                for (String type : KEY_TYPES) {
                    String[] aliases = known.getServerAliases(type, null);
                    if (aliases != null && aliases.length > 0) {
                        requireMatch(known.getCertificateChain(aliases[0])[0], known.getPrivateKey(aliases[0]));
                        return;
                    }
                }
            }
        }
    }

    private static void requireMatch(X509Certificate certificate, PrivateKey key) throws GeneralSecurityException {
        String algorithm = switch (key.getAlgorithm()) {
            case "EC" -> "SHA256withECDSA";
            case "RSA" -> "SHA256withRSA";
            default -> key.getAlgorithm();
        };
        Signature made = Signature.getInstance(algorithm);
        made.initSign(key);
        made.update((byte) 1);
        byte[] bytes = made.sign();
        made.initVerify(certificate);
        made.update((byte) 1);
        if (!made.verify(bytes)) {
            throw new GeneralSecurityException("the key is not the certificate's");
        }
    }
}
