package baton.kvserver;

import baton.kv.ConfigException;
import baton.kv.GeneratedBuilder;
import baton.kv.Require;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Optional;
import java.util.OptionalInt;

/**
 * The settings of a {@link KvServer}.
 *
 * @param port to listen on, 0 for any free one
 * @param metricsPort for HTTP; empty: none
 * @param memoryBytes for values
 * @param disk where evicted values go; empty: nowhere
 * @param access which clients are served
 * @param limits of a client
 */
@GeneratedBuilder
public record KvServerSettings(
        String host,
        int port,
        OptionalInt metricsPort,
        long memoryBytes,
        Optional<Disk> disk,
        Access access,
        Limits limits)
        implements KvServerSettingsBuilder.With {
    /** The least memory. */
    public static final long LEAST_MEMORY = 1L << 20;

    /** @throws ConfigException if the server would be open to the network, or has too little memory */
    public KvServerSettings {
        Require.atLeast("memory", memoryBytes, LEAST_MEMORY);
        if (!isLoopback(host) && access.tokenFile.isEmpty() && !access.unauthenticated) {
            throw new ConfigException(
                    "host",
                    "is " + host
                            + ", which other hosts can reach, and there is no --token-file: every client there could read"
                            + " and change all KV caches. Give a token, or --allow-unauthenticated for a network where"
                            + " only instances are");
        }
    }

    private static boolean isLoopback(String host) {
        try {
            return InetAddress.getByName(host).isLoopbackAddress();
        } catch (UnknownHostException e) {
            throw new ConfigException("host", "is " + host + ", which has no known address", e);
        }
    }

    /** Settings for 127.0.0.1, without disk, token or TLS, and with the default limits. */
    public static KvServerSettings of(int port, long memoryBytes) {
        return new KvServerSettings(
                "127.0.0.1",
                port,
                OptionalInt.empty(),
                memoryBytes,
                Optional.empty(),
                Access.OPEN,
                Limits.of(memoryBytes));
    }

    /**
     * Files.
     *
     * @param directory of this server alone; values left there by an earlier server are found again
     * @param bytes the limit of its files together
     */
    public record Disk(Path directory, long bytes) {
        /** @throws ConfigException if there is no room */
        public Disk {
            Require.positive("disk size", bytes);
        }
    }

    /**
     * Which clients are served.
     *
     * @param tokenFile a file with a secret that clients have too; empty: all clients are served, LMCache's among them
     * @param certificate with the certificates before it in its chain, in PEM; there if there is a key, and then connections are encrypted
     * @param key of the certificate, PKCS #8 in PEM
     * @param unauthenticated whether other hosts are served without a token
     */
    public record Access(
            Optional<Path> tokenFile, Optional<Path> certificate, Optional<Path> key, boolean unauthenticated) {
        /** No token, no TLS. */
        public static final Access OPEN = new Access(Optional.empty(), Optional.empty(), Optional.empty(), false);

        /** @throws ConfigException if there is a certificate without a key, or a key without a certificate */
        public Access {
            if (certificate.isPresent() != key.isPresent()) {
                throw new ConfigException(
                        certificate.isPresent() ? "tls key" : "tls certificate",
                        "is missing; TLS needs a certificate and its key");
            }
        }
    }

    /**
     * The limits of a client.
     *
     * @param connections at once; above it, connections go that have never sent a request
     * @param valueBytes the most of a value; a larger one is not stored
     * @param timeout within which a request that has begun, and a reply, must get on by {@code leastRate}, or by all that is left of it.
     *     Between two requests a connection may be silent for ever
     * @param leastRate bytes a second
     */
    public record Limits(int connections, int valueBytes, Duration timeout, long leastRate) {
        private static final int CONNECTIONS = 16384;

        /** @throws ConfigException if a limit is not positive */
        public Limits {
            Require.positive("max connections", connections);
            Require.positive("max value", valueBytes);
            Require.atLeast("timeout", timeout, Duration.ofMillis(1));
            Require.positive("least rate", leastRate);
        }

        /** 16,384 connections, values of a quarter of the memory, 10 s, 256 KiB a second. */
        public static Limits of(long memoryBytes) {
            return new Limits(
                    CONNECTIONS,
                    (int) Math.min(Integer.MAX_VALUE, memoryBytes / 4),
                    Duration.ofSeconds(10),
                    256L << 10);
        }
    }
}
