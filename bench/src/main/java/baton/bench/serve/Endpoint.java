package baton.bench.serve;

import baton.kv.ConfigException;
import java.net.URI;
import java.net.URISyntaxException;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;

/**
 * Where requests go.
 *
 * @param base the server's URL without a slash at its end
 * @param path on that server
 * @param headers of each request
 * @param insecure whether any certificate is accepted
 */
public record Endpoint(Backend backend, String base, String path, Map<String, String> headers, boolean insecure) {
    /** @throws ConfigException if the URL or the path is malformed */
    public Endpoint {
        String wanted = "must be a server's URL such as http://127.0.0.1:8000";
        try {
            URI uri = new URI(base);
            String scheme = Optional.ofNullable(uri.getScheme()).orElse("").toLowerCase(Locale.ROOT);
            if (!List.of("http", "https").contains(scheme)
                    || uri.getHost() == null
                    || uri.getRawQuery() != null
                    || uri.getRawFragment() != null) {
                throw new ConfigException("base-url", "is '" + base + "', " + wanted);
            }
        } catch (URISyntaxException e) {
            throw new ConfigException("base-url", "is '" + base + "', " + wanted, e);
        }
        String end = backend == Backend.OPENAI_CHAT ? "chat/completions" : "completions";
        if (!path.startsWith("/") || !path.endsWith(end)) {
            throw new ConfigException(
                    "endpoint",
                    "is '" + path + "', must begin with / and end with " + end + " for backend " + backend.label());
        }
        base = base.replaceFirst("/+$", "");
        headers = Map.copyOf(headers);
    }

    /** One of an URL, with the path that the backend has. */
    public static Endpoint of(Backend backend, String base) {
        return new Endpoint(backend, base, backend.path(), Map.of(), false);
    }

    String url() {
        return base + path;
    }
}
