package baton.bench.serve;

import baton.kv.ConfigException;
import java.net.URI;
import java.net.URISyntaxException;
import java.util.List;
import java.util.Locale;
import java.util.Map;

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
        base = base("base-url", base);
        String end = backend == Backend.OPENAI_CHAT ? "chat/completions" : "completions";
        if (!path.startsWith("/") || !path.endsWith(end)) {
            throw new ConfigException(
                    "endpoint",
                    "is '" + path + "', must begin with / and end with " + end + " for backend " + backend.label());
        }
        headers = Map.copyOf(headers);
    }

    /**
     * A server's URL without slashes at its end.
     *
     * @throws ConfigException if it is malformed
     */
    public static String base(String field, String url) {
        String wanted = "must be a server's URL such as http://127.0.0.1:8000";
        try {
            URI uri = new URI(url);
            if (List.of("http", "https")
                            .contains(String.valueOf(uri.getScheme()).toLowerCase(Locale.ROOT))
                    && uri.getHost() != null
                    && uri.getRawQuery() == null
                    && uri.getRawFragment() == null) {
                return url.replaceFirst("/+$", "");
            }
        } catch (URISyntaxException e) {
            throw new ConfigException(field, "is '" + url + "', " + wanted, e);
        }
        throw new ConfigException(field, "is '" + url + "', " + wanted);
    }

    /** One of an URL, with the path that the backend has. */
    public static Endpoint of(Backend backend, String base) {
        return new Endpoint(backend, base, backend.path(), Map.of(), false);
    }

    String url() {
        return base + path;
    }
}
