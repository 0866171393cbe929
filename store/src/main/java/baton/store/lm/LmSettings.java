package baton.store.lm;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.Setting;
import baton.store.remote.RemoteLimits;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.file.Path;
import java.util.List;
import java.util.Optional;

/**
 * Which server a {@link LmClient} asks, and how.
 *
 * @param url {@code lm://host:port}, {@code lms://host:port} with TLS
 * @param sharedMemory whether values are copied out of the memory of a {@code baton kv-server} of the same host and user
 * @param tokenFile a file with the secret that {@code baton kv-server --token-file} has too; empty: the server asks for none
 */
public record LmSettings(String url, boolean sharedMemory, Optional<Path> tokenFile, RemoteLimits limits) {
    private static final String URL = "url";
    private static final String SHARED_MEMORY = "shared_memory";
    private static final String TOKEN_FILE = "token_file";

    /** The settings that {@link #of} reads. */
    public static final List<Setting> SETTINGS = Setting.join(
            List.of(Setting.absent(URL, "required", "`lm://host:port`, `lms://` with TLS.")),
            RemoteLimits.SETTINGS,
            List.of(
                    Setting.of(
                            SHARED_MEMORY,
                            true,
                            "Copy values out of the memory of a `./baton kv-server` of the same host and user."),
                    Setting.absent(TOKEN_FILE, "none", "File with the secret of `./baton kv-server --token-file`."),
                    RemoteLimits.CERTIFICATES));

    /** @throws ConfigException if the URL cannot be used */
    public LmSettings {
        uri(URL, url);
    }

    /** All but the URL as by default, without a token. */
    public static LmSettings of(String url) {
        return new LmSettings(url, true, Optional.empty(), RemoteLimits.DEFAULT);
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
        uri(fields.field(URL), url);
        return new LmSettings(
                url, fields.bool(SHARED_MEMORY).orElseThrow(), fields.path(TOKEN_FILE), RemoteLimits.of(fields));
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
