package baton.store.remote;

import baton.kv.ConfigException;
import baton.kv.GeneratedBuilder;
import baton.kv.JsonFields;
import baton.kv.Require;
import baton.kv.Setting;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Optional;

/**
 * How a server is connected to, whatever its protocol is.
 *
 * @param connections that carry values; look-ups have one of their own beside them
 * @param connectTimeout for a connection to come up, and for the first reply of one that has not answered in time
 * @param maxBytesInFlight of values that operations wait for; more are rejected, except that an operation alone is always accepted
 * @param caCertificates of certificate authorities to trust under TLS, in PEM; empty: those of the Java platform
 */
@GeneratedBuilder
public record RemoteLimits(
        int connections, Duration connectTimeout, long maxBytesInFlight, Optional<Path> caCertificates)
        implements RemoteLimitsBuilder.With {
    /** 2 connections, 2 s to connect, 256 MiB in flight. */
    public static final RemoteLimits DEFAULT = new RemoteLimits(2, Duration.ofSeconds(2), 256L << 20, Optional.empty());

    private static final String CONNECTIONS = "connections";
    private static final String CONNECT_TIMEOUT = "connect_timeout_seconds";
    private static final String MAX_BYTES = "max_bytes_in_flight";
    private static final String CA_CERTIFICATES = "ca_certificates";

    /** The settings that {@link #of} reads, except {@link #CERTIFICATES}. */
    public static final List<Setting> SETTINGS = List.of(
            Setting.of(CONNECTIONS, 2, "Connections that carry values; one more for look-ups."),
            Setting.of(CONNECT_TIMEOUT, 2, "For a connection to come up."),
            Setting.of(MAX_BYTES, 256L << 20, "Bytes of values that operations wait for."));

    public static final Setting CERTIFICATES =
            Setting.absent(CA_CERTIFICATES, "those of Java", "Certificate authorities to trust under TLS, in PEM.");

    private static final int MOST_CONNECTIONS = 64;
    private static final double LONGEST_CONNECT = 3600;

    /** @throws ConfigException if a value cannot be used */
    public RemoteLimits {
        check("", connections, connectTimeout, maxBytesInFlight, caCertificates);
    }

    /**
     * Reads {@link #SETTINGS} and {@link #CERTIFICATES}.
     *
     * @param fields with defaults
     * @throws ConfigException if a field cannot be used
     */
    public static RemoteLimits of(JsonFields fields) {
        int connections = fields.integerAtLeast(CONNECTIONS, 1).orElseThrow();
        Duration connectTimeout = fields.seconds(CONNECT_TIMEOUT, Double.MIN_VALUE, LONGEST_CONNECT)
                .orElseThrow();
        long maxBytes = fields.integer(MAX_BYTES).orElseThrow();
        Optional<Path> certificates = fields.path(CA_CERTIFICATES);
        check(fields.field(""), connections, connectTimeout, maxBytes, certificates);
        return new RemoteLimits(connections, connectTimeout, maxBytes, certificates);
    }

    private static void check(
            String path, int connections, Duration connectTimeout, long maxBytesInFlight, Optional<Path> certificates) {
        Require.between(path + CONNECTIONS, connections, 1, MOST_CONNECTIONS);
        Require.atLeast(path + CONNECT_TIMEOUT, connectTimeout, Duration.ofMillis(1));
        Require.positive(path + MAX_BYTES, maxBytesInFlight);
        certificates.ifPresent(file -> {
            if (!Files.isReadable(file)) {
                throw new ConfigException(path + CA_CERTIFICATES, "is " + file + ", which cannot be read");
            }
        });
    }
}
