package baton.cli;

import baton.kv.ConfigException;
import baton.kv.ServerTls;
import java.nio.file.Path;
import java.util.Optional;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Option;

/** Flags for the TLS of a server, named as uvicorn's and vLLM's. */
final class SslOptions {
    @Option(
            names = "--ssl-certfile",
            paramLabel = "FILE",
            description = "Certificate chain in PEM: the port takes HTTPS.")
    private @Nullable Path certificate;

    @Option(names = "--ssl-keyfile", paramLabel = "FILE", description = "Its key in PEM, without a password.")
    private @Nullable Path key;

    @Option(
            names = "--ssl-ca-certs",
            paramLabel = "FILE",
            description = "Certificates in PEM of the authorities of clients' certificates.")
    private @Nullable Path authorities;

    @Option(
            names = "--ssl-cert-reqs",
            paramLabel = "0|1|2",
            description =
                    "Whether clients must present a certificate: 0 no, 1 it is checked if there is one, 2 yes (default: 2"
                            + " with --ssl-ca-certs, else 0).")
    private @Nullable Integer clients;

    /** @throws ConfigException if they do not fit together */
    Optional<ServerTls> tls() {
        return ServerTls.of(
                Optional.ofNullable(certificate),
                Optional.ofNullable(key),
                Optional.ofNullable(authorities),
                Optional.ofNullable(clients));
    }
}
