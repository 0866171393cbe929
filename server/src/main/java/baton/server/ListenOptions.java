package baton.server;

import baton.kv.ConfigException;
import baton.kv.ServerTls;
import io.vertx.core.Vertx;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.ClientAuth;
import io.vertx.core.http.Http2Settings;
import io.vertx.core.http.HttpServerOptions;
import io.vertx.core.http.HttpVersion;
import io.vertx.core.net.PemKeyCertOptions;
import io.vertx.core.net.PemTrustOptions;
import java.io.IOException;
import java.net.InetAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Optional;

/** How a server listens. */
final class ListenOptions {
    /** Calls of one connection at a time. */
    private static final int MOST_CALLS = 10_000;

    /** Calls that a client may cancel in half a minute before its connection is closed as an attack. */
    private static final int MOST_CANCELLED = 100_000;

    /** Bytes of a call, and of all calls of a connection, that may be on their way. */
    private static final int WINDOW_BYTES = 1 << 20;

    private ListenOptions() {}

    /**
     * As configured; certificates are read now.
     *
     * @throws ConfigException if a certificate or key cannot be read or used
     */
    static HttpServerOptions of(ServerConfig config, Vertx vertx) {
        HttpServerOptions options = plain(config.host(), config.port());
        config.tls().ifPresent(tls -> use(tls, options, vertx));
        return options;
    }

    /** For gRPC, which is HTTP/2, with TLS or without. */
    static HttpServerOptions grpc(ServerConfig config, int port, Vertx vertx) {
        HttpServerOptions options = of(config, vertx);
        options.setPort(port)
                .setUseAlpn(options.isSsl())
                .setAlpnVersions(List.of(HttpVersion.HTTP_2))
                .setHttp2ClearTextEnabled(true)
                .setHttp2ConnectionWindowSize(WINDOW_BYTES)
                .setHttp2RstFloodMaxRstFramePerWindow(MOST_CANCELLED)
                .setInitialSettings(
                        new Http2Settings().setMaxConcurrentStreams(MOST_CALLS).setInitialWindowSize(WINDOW_BYTES));
        return options;
    }

    /** Plain HTTP on a free port of this host only. */
    static HttpServerOptions local() {
        return plain(InetAddress.getLoopbackAddress().getHostAddress(), 0);
    }

    private static HttpServerOptions plain(String host, int port) {
        return new HttpServerOptions()
                .setHost(host)
                .setPort(port)
                .setHttp2ClearTextEnabled(false)
                .setTcpKeepAlive(true)
                .setHandle100ContinueAutomatically(true);
    }

    private static void use(ServerTls tls, HttpServerOptions options, Vertx vertx) {
        PemKeyCertOptions identity = new PemKeyCertOptions()
                .addCertValue(read("ssl certfile", tls.certificate()))
                .addKeyValue(read("ssl keyfile", tls.key()));
        Optional<PemTrustOptions> trusted =
                tls.authorities().map(file -> new PemTrustOptions().addCertValue(read("ssl ca certs", file)));
        try {
            ServerTls.requireMatch(identity.getKeyManagerFactory(vertx).getKeyManagers());
        } catch (Exception e) {
            throw new ConfigException(
                    "ssl certfile",
                    tls.certificate() + " cannot be used with the key " + tls.key() + ": " + e.getMessage(),
                    e);
        }
        try {
            if (trusted.isPresent()) {
                trusted.get().getTrustManagerFactory(vertx);
            }
        } catch (Exception e) {
            throw new ConfigException("ssl ca certs", "cannot be used: " + e.getMessage(), e);
        }
        trusted.ifPresent(options::setTrustOptions);
        options.setSsl(true)
                .setUseAlpn(false)
                .setKeyCertOptions(identity)
                .setClientAuth(
                        switch (tls.clients()) {
                            case NONE -> ClientAuth.NONE;
                            case OPTIONAL -> ClientAuth.REQUEST;
                            case REQUIRED -> ClientAuth.REQUIRED;
                        });
    }

    private static Buffer read(String field, Path file) {
        try {
            return Buffer.buffer(Files.readAllBytes(file));
        } catch (IOException e) {
            throw new ConfigException(field, "cannot be read: " + e, e);
        }
    }
}
