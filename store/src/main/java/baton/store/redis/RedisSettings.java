package baton.store.redis;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.Require;
import baton.kv.Setting;
import baton.store.remote.RemoteLimits;
import java.net.URI;
import java.net.URISyntaxException;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.Set;

/**
 * Where a {@link RedisBlockStore} keeps its values, and how.
 *
 * @param url {@code redis://[[user]:password@]host[:port][/database]}, {@code rediss://} with TLS; {@code valkey://} and {@code valkeys://}
 *     mean the same. One server, or a proxy of several that behaves as one; not a cluster's node or a sentinel
 * @param prefix the beginning of all keys
 * @param ttl the time that a value is kept after it was written or read; empty: until the server evicts it
 */
public record RedisSettings(String url, String prefix, Optional<Duration> ttl, RemoteLimits limits) {
    private static final String URL = "url";
    private static final String PREFIX = "prefix";
    private static final String TTL = "ttl_seconds";

    /** The settings that {@link #of} reads. */
    public static final List<Setting> SETTINGS = Setting.join(
            List.of(
                    Setting.absent(
                            URL, "required", "`redis://user:password@host:port`, `rediss://` with TLS; Valkey too."),
                    Setting.of(PREFIX, "baton", "The beginning of all keys."),
                    Setting.absent(TTL, "no limit", "For which a value is kept after it was written or read.")),
            RemoteLimits.SETTINGS,
            List.of(RemoteLimits.CERTIFICATES));

    private static final Set<String> PLAIN = Set.of("redis", "valkey");
    private static final Set<String> SECURED = Set.of("rediss", "valkeys");
    private static final int DEFAULT_PORT = 6379;
    private static final double LONGEST_TTL = 1e9;

    /** @throws ConfigException if a value cannot be used; it never contains the URL's user or password */
    public RedisSettings {
        check("", url, prefix, ttl);
    }

    /** All but the URL as by default: prefix {@code baton}, no expiry. */
    public static RedisSettings of(String url) {
        return new RedisSettings(url, "baton", Optional.empty(), RemoteLimits.DEFAULT);
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
        Optional<Duration> ttl = fields.seconds(TTL, Double.MIN_VALUE, LONGEST_TTL);
        check(fields.field(""), url, prefix, ttl);
        return new RedisSettings(url, prefix, ttl, RemoteLimits.of(fields));
    }

    private static void check(String path, String url, String prefix, Optional<Duration> ttl) {
        uri(path + URL, url);
        if (prefix.isEmpty() || !prefix.chars().allMatch(c -> c > ' ' && c < 127)) {
            throw new ConfigException(path + PREFIX, "is '" + prefix + "', must be printable ASCII without spaces");
        }
        ttl.ifPresent(time -> Require.atLeast(path + TTL, time, Duration.ofMillis(1)));
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
        if (scheme == null || !(PLAIN.contains(scheme) || SECURED.contains(scheme))) {
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
        if (uri.getQuery() != null) {
            throw new ConfigException(field, "has a query, which means nothing here: remove '?' and the text after it");
        }
        return uri;
    }

    String host() {
        String host = uri(URL, url).getHost();
        return host.startsWith("[") ? host.substring(1, host.length() - 1) : host;
    }

    int port() {
        int port = uri(URL, url).getPort();
        return port < 0 ? DEFAULT_PORT : port;
    }

    /** Whether connections are encrypted. */
    boolean tls() {
        return SECURED.contains(uri(URL, url).getScheme());
    }

    /** Arguments of {@code AUTH}: user and password, the password alone, or nothing. */
    List<String> credentials() {
        String given = Optional.ofNullable(uri(URL, url).getUserInfo()).orElse("");
        int colon = given.indexOf(':');
        String password = given.substring(colon + 1);
        if (password.isEmpty()) {
            return List.of();
        }
        return colon > 0 ? List.of(given.substring(0, colon), password) : List.of(password);
    }

    /** The number of the database. */
    int database() {
        String path = Optional.ofNullable(uri(URL, url).getPath()).orElse("");
        return path.length() > 1 ? Integer.parseInt(path.substring(1)) : 0;
    }

    /** The server without user and password, for logs: {@code redis://host:port}. */
    public String server() {
        URI uri = uri(URL, url);
        return "%s://%s:%d".formatted(uri.getScheme(), uri.getHost(), port());
    }

    /** Without the password. */
    @Override
    public String toString() {
        return "RedisSettings[%s prefix=%s ttl=%s connections=%d]"
                .formatted(server(), prefix, ttl, limits.connections());
    }
}
