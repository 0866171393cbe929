package baton.store.lm;

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
import java.util.Optional;

/**
 * Which server a {@link LmClient} asks, and how.
 *
 * @param url {@code lm://host:port}, {@code lms://host:port} with TLS
 * @param connections that carry values; look-ups have one of their own beside them
 * @param connectTimeout for a connection to come up, and for the first reply of one that has not answered in time
 * @param maxBytesInFlight of values that operations wait for; more are rejected, except that an operation alone is always accepted
 * @param sharedMemory whether values are copied out of the memory of a {@code baton kv-server} of the same host and user
 * @param tokenFile a file with the secret that {@code baton kv-server --token-file} has too; empty: the server asks for none
 * @param caCertificates of certificate authorities to trust under TLS, in PEM; empty: those of the Java platform
 */
public record LmSettings(
        String url,
        int connections,
        Duration connectTimeout,
        long maxBytesInFlight,
        boolean sharedMemory,
        Optional<Path> tokenFile,
        Optional<Path> caCertificates) {
    private static final String URL = "url";
    private static final String CONNECTIONS = "connections";
    private static final String CONNECT_TIMEOUT = "connect_timeout_seconds";
    private static final String MAX_BYTES = "max_bytes_in_flight";
    private static final String SHARED_MEMORY = "shared_memory";
    private static final String TOKEN_FILE = "token_file";
    private static final String CA_CERTIFICATES = "ca_certificates";

    /** What {@link #of} reads. */
    public static final List<Setting> SETTINGS = List.of(
            Setting.absent(URL, "required", "`lm://host:port`, `lms://` with TLS."),
            Setting.of(CONNECTIONS, 2, "Connections that carry values; one more for look-ups."),
            Setting.of(CONNECT_TIMEOUT, 2, "For a connection to come up."),
            Setting.of(MAX_BYTES, 256L << 20, "Bytes of values that operations wait for."),
            Setting.of(
                    SHARED_MEMORY,
                    true,
                    "Copy values out of the memory of a `./baton kv-server` of the same host and user."),
            Setting.absent(TOKEN_FILE, "none", "File with the secret of `./baton kv-server --token-file`."),
            Setting.absent(CA_CERTIFICATES, "those of Java", "Certificate authorities to trust under TLS, in PEM."));

    private static final int MOST_CONNECTIONS = 64;

    /** @throws ConfigException if a value cannot be used */
    public LmSettings {
        check("", url, connections, connectTimeout, maxBytesInFlight, caCertificates);
    }

    /** All but the URL as by default: 2 connections, 2 s to connect, 256 MiB in flight, no token. */
    public static LmSettings of(String url) {
        return new LmSettings(url, 2, Duration.ofSeconds(2), 256L << 20, true, Optional.empty(), Optional.empty());
    }

    /**
     * Reads {@link #SETTINGS}; all but {@code url} may be absent.
     *
     * @throws ConfigException if a field cannot be used
     */
    public static LmSettings of(JsonFields given) {
        JsonFields fields = given.withDefaults(SETTINGS);
        String url = fields.string(URL)
                .orElseThrow(
                        () -> new ConfigException(fields.field(URL), "is required: lm://host:port or lms://host:port"));
        int connections = fields.integerAtLeast(CONNECTIONS, 1).orElseThrow();
        Duration connectTimeout = fields.number(CONNECT_TIMEOUT)
                .map(seconds -> seconds(fields.field(CONNECT_TIMEOUT), seconds))
                .orElseThrow();
        long maxBytes = fields.integer(MAX_BYTES).orElseThrow();
        boolean sharedMemory = fields.bool(SHARED_MEMORY).orElseThrow();
        Optional<Path> token = path(fields, TOKEN_FILE);
        Optional<Path> certificates = path(fields, CA_CERTIFICATES);
        check(fields.field(""), url, connections, connectTimeout, maxBytes, certificates);
        return new LmSettings(url, connections, connectTimeout, maxBytes, sharedMemory, token, certificates);
    }

    private static Optional<Path> path(JsonFields fields, String name) {
        return fields.string(name).map(path -> {
            try {
                return Path.of(path);
            } catch (InvalidPathException e) {
                throw new ConfigException(fields.field(name), "is not a path: " + e.getMessage(), e);
            }
        });
    }

    private static Duration seconds(String field, double seconds) {
        if (!(seconds > 0 && seconds <= 1e9)) {
            throw new ConfigException(field, "is " + seconds + ", must be above 0 and at most 1e9");
        }
        return Duration.ofNanos((long) (seconds * 1e9));
    }

    private static void check(
            String path,
            String url,
            int connections,
            Duration connectTimeout,
            long maxBytesInFlight,
            Optional<Path> caCertificates) {
        uri(path + URL, url);
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

    private static URI uri(String field, String url) {
        URI uri;
        try {
            uri = new URI(url);
        } catch (URISyntaxException e) {
            throw new ConfigException(
                    field, "is '%s', which is not a URL: %s; must be lm://host:port".formatted(url, e.getReason()));
        }
        boolean known = "lm".equals(uri.getScheme()) || "lms".equals(uri.getScheme());
        boolean isPort = uri.getPort() >= 1 && uri.getPort() <= 65535;
        if (!known || uri.getHost() == null || !isPort || uri.getUserInfo() != null) {
            throw new ConfigException(field, "is '%s', must be lm://host:port or lms://host:port".formatted(url));
        }
        if (uri.getPath() != null && !uri.getPath().isEmpty() && !uri.getPath().equals("/")) {
            throw new ConfigException(field, "is '%s', which has a path; must be lm://host:port".formatted(url));
        }
        return uri;
    }

    String host() {
        String host = uri(URL, url).getHost();
        return host.startsWith("[") ? host.substring(1, host.length() - 1) : host;
    }

    int port() {
        return uri(URL, url).getPort();
    }

    /** Whether connections are encrypted. */
    boolean tls() {
        return url.startsWith("lms:");
    }
}
