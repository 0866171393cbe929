package baton.store.redis;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.Setting;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.file.Files;
import java.nio.file.InvalidPathException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;

/**
 * Where a {@link RedisBlockStore} keeps its values, and how.
 *
 * @param url {@code redis://[[user]:password@]host[:port][/database]}, {@code rediss://} with TLS; {@code valkey://} and {@code valkeys://}
 *     mean the same. One server, or what speaks for several of them as one does: a cluster's node or a sentinel does not
 * @param prefix what all keys begin with
 * @param ttl for which a value is kept after it was written or read; empty: until the server evicts it
 * @param connections that carry values; look-ups have one of their own beside them
 * @param connectTimeout for a connection to come up, and for the first reply of one that has not answered in time
 * @param maxBytesInFlight of values that operations wait for; more are rejected, except that an operation alone is always accepted
 * @param caCertificates of certificate authorities to trust under TLS, in PEM; empty: those of the Java platform
 */
public record RedisSettings(
        String url,
        String prefix,
        Optional<Duration> ttl,
        int connections,
        Duration connectTimeout,
        long maxBytesInFlight,
        Optional<Path> caCertificates) {
    private static final String URL = "url";
    private static final String PREFIX = "prefix";
    private static final String TTL = "ttl_seconds";
    private static final String CONNECTIONS = "connections";
    private static final String CONNECT_TIMEOUT = "connect_timeout_seconds";
    private static final String MAX_BYTES = "max_bytes_in_flight";
    private static final String CA_CERTIFICATES = "ca_certificates";

    /** What {@link #of} reads. */
    public static final List<Setting> SETTINGS = List.of(
            Setting.absent(URL, "required", "`redis://user:password@host:port`, `rediss://` with TLS; Valkey too."),
            Setting.of(PREFIX, "baton", "What all keys begin with."),
            Setting.absent(TTL, "no limit", "For which a value is kept after it was written or read."),
            Setting.of(CONNECTIONS, 2, "Connections that carry values; one more for look-ups."),
            Setting.of(CONNECT_TIMEOUT, 2, "For a connection to come up."),
            Setting.of(MAX_BYTES, 256L << 20, "Bytes of values that operations wait for."),
            Setting.absent(CA_CERTIFICATES, "those of Java", "Certificate authorities to trust under TLS, in PEM."));

    private static final Map<String, String> SCHEMES =
            Map.of("redis", "redis", "rediss", "rediss", "valkey", "redis", "valkeys", "rediss");
    private static final int MOST_CONNECTIONS = 64;
    private static final double LONGEST_TTL = 1e9;
    /** An hour: Lettuce counts milliseconds in an int. */
    private static final double LONGEST_CONNECT = 3600;

    /** @throws ConfigException if a value cannot be used; it never contains the URL's user or password */
    public RedisSettings {
        check("", url, prefix, ttl, connections, connectTimeout, maxBytesInFlight, caCertificates);
    }

    /** All but the URL as by default: prefix {@code baton}, no expiry, 2 connections, 2 s to connect, 256 MiB in flight. */
    public static RedisSettings of(String url) {
        return new RedisSettings(
                url, "baton", Optional.empty(), 2, Duration.ofSeconds(2), 256L << 20, Optional.empty());
    }

    /**
     * Reads {@link #SETTINGS}; all but {@code url} may be absent.
     *
     * @throws ConfigException if a field cannot be used
     */
    public static RedisSettings of(JsonFields given) {
        JsonFields fields = given.withDefaults(SETTINGS);
        String url = fields.string(URL)
                .orElseThrow(() ->
                        new ConfigException(fields.field(URL), "is required: redis://host:port or rediss://host:port"));
        String prefix = fields.string(PREFIX).orElseThrow();
        Optional<Duration> ttl = fields.number(TTL).map(seconds -> seconds(fields.field(TTL), seconds, LONGEST_TTL));
        int connections = fields.integerAtLeast(CONNECTIONS, 1).orElseThrow();
        Duration connectTimeout = fields.number(CONNECT_TIMEOUT)
                .map(seconds -> seconds(fields.field(CONNECT_TIMEOUT), seconds, LONGEST_CONNECT))
                .orElseThrow();
        long maxBytes = fields.integer(MAX_BYTES).orElseThrow();
        Optional<Path> certificates = fields.string(CA_CERTIFICATES).map(path -> {
            try {
                return Path.of(path);
            } catch (InvalidPathException e) {
                throw new ConfigException(fields.field(CA_CERTIFICATES), "is not a path: " + e.getMessage(), e);
            }
        });
        check(fields.field(""), url, prefix, ttl, connections, connectTimeout, maxBytes, certificates);
        return new RedisSettings(url, prefix, ttl, connections, connectTimeout, maxBytes, certificates);
    }

    private static Duration seconds(String field, double seconds, double most) {
        if (!(seconds > 0 && seconds <= most)) {
            throw new ConfigException(
                    field,
                    "is " + seconds + ", must be above 0 and at most " + String.format(Locale.ROOT, "%.0f", most));
        }
        return Duration.ofNanos((long) (seconds * 1e9));
    }

    private static void check(
            String path,
            String url,
            String prefix,
            Optional<Duration> ttl,
            int connections,
            Duration connectTimeout,
            long maxBytesInFlight,
            Optional<Path> caCertificates) {
        uri(path + URL, url);
        if (prefix.isEmpty() || !prefix.chars().allMatch(c -> c > ' ' && c < 127)) {
            throw new ConfigException(path + PREFIX, "is '" + prefix + "', must be printable ASCII without spaces");
        }
        ttl.ifPresent(time -> {
            if (time.toMillis() < 1) {
                throw new ConfigException(path + TTL, "is " + time + ", must be at least 1 ms");
            }
        });
        if (connections < 1 || connections > MOST_CONNECTIONS) {
            throw new ConfigException(
                    path + CONNECTIONS, "is %d, must be from 1 to %d".formatted(connections, MOST_CONNECTIONS));
        }
        if (connectTimeout.toMillis() < 1) {
            throw new ConfigException(path + CONNECT_TIMEOUT, "is " + connectTimeout + ", must be at least 1 ms");
        }
        if (maxBytesInFlight < 1) {
            throw new ConfigException(path + MAX_BYTES, "is " + maxBytesInFlight + ", must be positive");
        }
        caCertificates.ifPresent(file -> {
            if (!Files.isReadable(file)) {
                throw new ConfigException(path + CA_CERTIFICATES, "is " + file + ", which cannot be read");
            }
        });
    }

    /** Without the text in any error, because it may contain a password. */
    private static URI uri(String field, String url) {
        URI uri;
        try {
            uri = new URI(url);
        } catch (URISyntaxException e) {
            throw new ConfigException(
                    field, "is not a URL: %s at character %d".formatted(e.getReason(), e.getIndex() + 1));
        }
        String scheme = uri.getScheme();
        if (scheme == null || !SCHEMES.containsKey(scheme)) {
            throw new ConfigException(
                    field, "begins with '%s', must be redis://host:port or rediss://host:port".formatted(scheme));
        }
        if (uri.getHost() == null || uri.getHost().isEmpty()) {
            throw new ConfigException(field, "names no host; must be redis://host:port or rediss://host:port");
        }
        if (uri.getPort() == 0 || uri.getPort() > 65535) {
            throw new ConfigException(field, "has the port %d, must be 1 to 65535".formatted(uri.getPort()));
        }
        if (uri.getPath() != null && !uri.getPath().matches("/?|/[0-9]{1,5}")) {
            throw new ConfigException(
                    field, "has the path '%s', must be a database's number, as /0".formatted(uri.getPath()));
        }
        return uri;
    }

    /** The URL with {@code redis} or {@code rediss} as its scheme. Contains the password. */
    String clientUrl() {
        int end = url.indexOf(':');
        return SCHEMES.get(url.substring(0, end)) + url.substring(end);
    }

    /** The server without user and password, for logs: {@code redis://host:port}. */
    public String server() {
        URI uri = uri(URL, url);
        return "%s://%s:%d".formatted(uri.getScheme(), uri.getHost(), uri.getPort() < 0 ? 6379 : uri.getPort());
    }

    /** Without the password. */
    @Override
    public String toString() {
        return "RedisSettings[%s prefix=%s ttl=%s connections=%d]".formatted(server(), prefix, ttl, connections);
    }
}
