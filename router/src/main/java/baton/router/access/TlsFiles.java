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
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;

/**
 * Certificates in PEM files, the contents of which are handed in, in the order of {@link #paths}.
 *
 * @param prefix of the names of the settings in errors
 */
public record TlsFiles(String prefix, Optional<Path> certificate, Optional<Path> key, Optional<Path> authorities) {
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
        PemKeyCertOptions options = new PemKeyCertOptions()
                .addCertValue(Buffer.buffer(contents.get(0)))
                .addKeyValue(Buffer.buffer(contents.get(1)));
        try {
            // While files are replaced one after the other, a key may be of another certificate: each handshake would
            // fail.
            ServerTls.requireMatch(options.getKeyManagerFactory(vertx).getKeyManagers());
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
            throw new ConfigException(prefix + "ca", authorities.get() + " cannot be used: " + e.getMessage(), e);
        }
        return Optional.of(options);
    }
}
