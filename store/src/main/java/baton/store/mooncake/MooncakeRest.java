package baton.store.mooncake;

import baton.kv.ConfigException;
import java.net.URI;
import java.net.URISyntaxException;
import java.time.Duration;

/**
 * A REST service of a Mooncake store.
 *
 * @param url {@code http://host:port}
 * @param connections requests for reading at once, and as many for writing
 */
public record MooncakeRest(URI url, int connections, Duration connectTimeout) {
    /** @throws ConfigException if the text is not {@code http://host:port} */
    public static MooncakeRest at(String field, String text, int connections, Duration connectTimeout) {
        URI uri;
        try {
            uri = new URI(text);
        } catch (URISyntaxException e) {
            throw wrong(field, text);
        }
        boolean isHttp = "http".equals(uri.getScheme()) || "https".equals(uri.getScheme());
        String path = uri.getPath();
        if (!isHttp
                || uri.getHost() == null
                || uri.getUserInfo() != null
                || uri.getQuery() != null
                || !(path == null || path.isEmpty() || path.equals("/"))) {
            throw wrong(field, text);
        }
        return new MooncakeRest(
                URI.create(uri.getScheme() + "://" + uri.getRawAuthority()), connections, connectTimeout);
    }

    private static ConfigException wrong(String field, String text) {
        return new ConfigException(field, "is '" + text + "', must be http://host:port");
    }
}
