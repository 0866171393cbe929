package baton.store.remote;

import baton.kv.ConfigException;
import io.netty.handler.ssl.SslContext;
import io.netty.handler.ssl.SslContextBuilder;
import java.util.Optional;
import javax.net.ssl.SSLException;

/**
 * A server that a client connects to.
 *
 * @param name for logs
 */
public record RemoteServer(String name, String host, int port, Optional<SslContext> tls, RemoteLimits limits) {
    /**
     * @param secured whether connections are encrypted
     * @throws ConfigException if the certificates cannot be used
     */
    public static RemoteServer of(String name, String host, int port, boolean secured, RemoteLimits limits) {
        return new RemoteServer(name, host, port, secured ? Optional.of(tls(limits)) : Optional.empty(), limits);
    }

    private static SslContext tls(RemoteLimits limits) {
        SslContextBuilder builder = SslContextBuilder.forClient().endpointIdentificationAlgorithm("HTTPS");
        try {
            limits.caCertificates().ifPresent(file -> builder.trustManager(file.toFile()));
            return builder.build();
        } catch (SSLException | IllegalArgumentException e) {
            throw new ConfigException("ca_certificates", "cannot be used: " + e.getMessage(), e);
        }
    }
}
