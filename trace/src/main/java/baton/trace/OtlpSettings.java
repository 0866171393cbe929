package baton.trace;

import baton.kv.ConfigException;
import java.net.URI;
import java.time.Duration;

/**
 * The destination of spans, and the limits of their buffer.
 *
 * @param endpoint of a collector's OTLP/HTTP receiver, which takes JSON: {@code http://host:4318/v1/traces}
 * @param service name of this process's part, {@code service.name}
 * @param queued spans that wait at most; further ones are dropped
 * @param batch spans in a request at most
 * @param delay for which spans are collected before they are sent
 * @param timeout of a request, its answer included
 */
public record OtlpSettings(URI endpoint, String service, int queued, int batch, Duration delay, Duration timeout) {
    static final String TRACES_PATH = "/v1/traces";
    private static final int QUEUED = 16_384;
    private static final int BATCH = 512;
    private static final Duration DELAY = Duration.ofMillis(500);
    private static final Duration TIMEOUT = Duration.ofSeconds(10);

    public OtlpSettings {
        if (queued < 1 || batch < 1 || delay.isNegative() || !timeout.isPositive()) {
            throw new IllegalArgumentException(
                    "queued=" + queued + " batch=" + batch + " delay=" + delay + " timeout=" + timeout);
        }
    }

    /**
     * The defaults.
     *
     * @param text {@code http://host:port/path} or {@code https://...}; the path is {@code /v1/traces} if it has none
     * @throws ConfigException naming the field if it is no such address
     */
    public static OtlpSettings of(String field, String text, String service) {
        URI given;
        try {
            given = URI.create(text);
        } catch (IllegalArgumentException e) {
            throw unsupported(field, text);
        }
        boolean http = "http".equals(given.getScheme()) || "https".equals(given.getScheme());
        if (!http
                || given.getHost() == null
                || given.getPort() == 0
                || given.getPort() > 65535
                || given.getUserInfo() != null
                || given.getFragment() != null) {
            throw unsupported(field, text);
        }
        String path = given.getRawPath();
        URI endpoint = path.isEmpty() || path.equals("/") ? given.resolve(TRACES_PATH) : given;
        return new OtlpSettings(endpoint, service, QUEUED, BATCH, DELAY, TIMEOUT);
    }

    private static ConfigException unsupported(String field, String text) {
        return ConfigException.unsupported(
                field, text, "http://host:port/v1/traces or https://..., a collector's OTLP/HTTP receiver");
    }
}
