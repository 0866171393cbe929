package baton.router.access;

import baton.kv.ConfigException;
import baton.kv.ServerTls;
import io.vertx.core.Vertx;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.ClientAuth;
import io.vertx.core.net.ClientSSLOptions;
import io.vertx.core.net.KeyCertOptions;
import io.vertx.core.net.PemKeyCertOptions;
import io.vertx.core.net.PemTrustOptions;
import io.vertx.core.net.ServerSSLOptions;
import io.vertx.core.net.TrustOptions;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.PrivateKey;
import java.security.Signature;
import java.security.cert.X509Certificate;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import javax.net.ssl.KeyManager;
import javax.net.ssl.X509KeyManager;

/**
 * Certificates in PEM files, the contents of which are handed in, in the order of {@link #paths}.
 *
 * @param prefix of the names of the settings in errors
 */
public record TlsFiles(String prefix, Optional<Path> certificate, Optional<Path> key, Optional<Path> authorities) {
    private static final List<String> KEY_TYPES = List.of("EC", "RSA", "EdDSA", "Ed25519", "Ed448", "RSASSA-PSS");

    public static TlsFiles of(ServerTls tls) {
        return new TlsFiles("ssl ", Optional.of(tls.certificate()), Optional.of(tls.key()), tls.authorities());
    }

    /** @throws ConfigException if there is a certificate without its key, or a key without its certificate */
    public TlsFiles {
        if (certificate.isPresent() != key.isPresent()) {
            throw new ConfigException(
                    prefix + (key.isPresent() ? "cert" : "key"), "is missing: certificate and key go together");
        }
    }

    public List<Path> paths() {
        List<Path> paths = new ArrayList<>();
        certificate.ifPresent(paths::add);
        key.ifPresent(paths::add);
        authorities.ifPresent(paths::add);
        return paths;
    }

    /** @throws ConfigException if the contents are no certificates, or the key is another certificate's */
    public ServerSSLOptions forServer(Vertx vertx, List<byte[]> contents, ServerTls.Clients clients) {
        ServerSSLOptions options = new ServerSSLOptions();
        options.setUseAlpn(false);
        identity(vertx, contents).ifPresent(options::setKeyCertOptions);
        trusted(vertx, contents).ifPresent(options::setTrustOptions);
        return options.setClientAuth(
                switch (clients) {
                    case NONE -> ClientAuth.NONE;
                    case OPTIONAL -> ClientAuth.REQUEST;
                    case REQUIRED -> ClientAuth.REQUIRED;
                });
    }

    /** Without authorities those of the Java platform are trusted. Throws as {@link #forServer} does. */
    public ClientSSLOptions forClient(Vertx vertx, List<byte[]> contents) {
        ClientSSLOptions options = new ClientSSLOptions().setHostnameVerificationAlgorithm("HTTPS");
        options.setUseAlpn(false);
        identity(vertx, contents).ifPresent(options::setKeyCertOptions);
        trusted(vertx, contents).ifPresent(options::setTrustOptions);
        return options;
    }

    private Optional<KeyCertOptions> identity(Vertx vertx, List<byte[]> contents) {
        if (certificate.isEmpty() || key.isEmpty()) {
            return Optional.empty();
        }
        PemKeyCertOptions options =
                new PemKeyCertOptions().addCertValue(Buffer.buffer(contents.get(0))).addKeyValue(Buffer.buffer(contents.get(1)));
        try {
            requireMatch(options.getKeyManagerFactory(vertx).getKeyManagers());
        } catch (Exception e) {
            throw new ConfigException(
                    prefix + "cert", certificate.get() + " and " + key.get() + " cannot be used: " + e.getMessage(), e);
        }
        return Optional.of(options);
    }

    private Optional<TrustOptions> trusted(Vertx vertx, List<byte[]> contents) {
        if (authorities.isEmpty()) {
            return Optional.empty();
        }
        PemTrustOptions options = new PemTrustOptions().addCertValue(Buffer.buffer(contents.getLast()));
        try {
            options.getTrustManagerFactory(vertx);
        } catch (Exception e) {
            throw new ConfigException(
                    prefix + "ca", authorities.get() + " cannot be used: " + e.getMessage(), e);
        }
        return Optional.of(options);
    }

    /** While files are replaced one after the other, a key may not be the certificate's: each handshake would fail. */
    private static void requireMatch(KeyManager[] managers) throws GeneralSecurityException {
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
