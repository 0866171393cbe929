package baton.bench.serve;

import java.io.IOException;
import java.net.ConnectException;
import java.net.Socket;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.channels.UnresolvedAddressException;
import java.security.GeneralSecurityException;
import java.security.cert.X509Certificate;
import java.time.Duration;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLEngine;
import javax.net.ssl.TrustManager;
import javax.net.ssl.X509ExtendedTrustManager;
import tools.jackson.core.JacksonException;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/** Sends single requests to a server and reads JSON answers. Errors contain the URL and the answer. */
public final class EndpointClient implements AutoCloseable {
    private static final JsonMapper JSON = JsonMapper.builder().build();
    static final Duration DEADLINE = Duration.ofSeconds(30);
    private static final Duration CONNECT_DEADLINE = Duration.ofSeconds(5);
    private static final int MOST_SHOWN = 300;

    private final Endpoint endpoint;
    private final Duration deadline;
    private final HttpClient http;

    public EndpointClient(Endpoint endpoint) {
        this(endpoint, DEADLINE);
    }

    /** @param deadline for each answer */
    public EndpointClient(Endpoint endpoint, Duration deadline) {
        this.endpoint = endpoint;
        this.deadline = deadline;
        HttpClient.Builder builder =
                HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).connectTimeout(CONNECT_DEADLINE);
        if (endpoint.insecure()) {
            builder.sslContext(trusting());
        }
        http = builder.build();
    }

    /** @throws IOException that names the URL, if the answer is no JSON with status 200 within the deadline */
    public JsonNode get(String path) throws IOException {
        return send(path, HttpRequest.newBuilder().GET());
    }

    /** @throws IOException that names the URL, if the answer is no JSON with status 200 within the deadline */
    public JsonNode post(String path, JsonNode body) throws IOException {
        return post(path, body, Map.of());
    }

    /**
     * As {@link #post(String, JsonNode)}.
     *
     * @param headers of this request, beside the endpoint's
     */
    public JsonNode post(String path, JsonNode body, Map<String, String> headers) throws IOException {
        HttpRequest.Builder request = HttpRequest.newBuilder()
                .header("Content-Type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofString(body.toString()));
        headers.forEach(request::setHeader);
        return send(path, request);
    }

    private JsonNode send(String path, HttpRequest.Builder request) throws IOException {
        String url = endpoint.base() + path;
        request.uri(URI.create(url));
        endpoint.headers().forEach(request::setHeader);
        // The request's own deadline does not count the body.
        CompletableFuture<HttpResponse<String>> sent =
                http.sendAsync(request.build(), HttpResponse.BodyHandlers.ofString());
        try {
            HttpResponse<String> response = sent.get(deadline.toNanos(), TimeUnit.NANOSECONDS);
            if (response.statusCode() != 200) {
                throw new IOException(url + " answered " + response.statusCode() + ": " + shown(response.body()));
            }
            return JSON.readTree(response.body());
        } catch (JacksonException e) {
            throw new IOException(url + " answered with something other than JSON: " + e.getOriginalMessage(), e);
        } catch (TimeoutException e) {
            throw late(url, deadline, "nothing came", e);
        } catch (ExecutionException e) {
            throw new IOException(url + ": " + why(e), e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IOException(url + ": interrupted", e);
        } finally {
            sent.cancel(true);
        }
    }

    /** An answer has not come in time. */
    public static LateException late(String url, Duration deadline, String soFar, Throwable cause) {
        return new LateException(
                String.format(
                        Locale.ROOT, "%s has not answered within %.1f s: %s", url, deadline.toMillis() / 1e3, soFar),
                cause);
    }

    /** The server has not answered in time. */
    public static final class LateException extends IOException {
        LateException(String message, Throwable cause) {
            super(message, cause);
        }
    }

    /** Why a request was not answered at all. */
    public static String why(Throwable failure) {
        Throwable cause = failure;
        while (cause.getCause() != null && !(cause instanceof ConnectException)) {
            cause = cause.getCause();
        }
        if (cause instanceof ConnectException) {
            return cause.getCause() instanceof UnresolvedAddressException
                    ? "no host of that name is known"
                    : "the connection is refused" + (cause.getMessage() == null ? "" : ": " + cause.getMessage());
        }
        return "the connection broke: " + (cause.getMessage() == null ? cause : cause.getMessage());
    }

    /** An answer in one line, at most 300 characters. */
    public static String shown(String text) {
        String line = text.isBlank() ? "nothing" : text.strip().replaceAll("\\s+", " ");
        return line.length() <= MOST_SHOWN ? line : line.substring(0, MOST_SHOWN) + "...";
    }

    private static SSLContext trusting() {
        try {
            SSLContext context = SSLContext.getInstance("TLS");
            context.init(null, new TrustManager[] {new AnyCertificate()}, null);
            return context;
        } catch (GeneralSecurityException e) {
            throw new IllegalStateException("TLS cannot be set up", e);
        }
    }

    @Override
    public void close() {
        http.shutdownNow();
    }

    /** An extended trust manager, because the client adds no comparison of host names to such a one. */
    private static final class AnyCertificate extends X509ExtendedTrustManager {
        @Override
        public void checkClientTrusted(X509Certificate[] chain, String type, Socket socket) {}

        @Override
        public void checkServerTrusted(X509Certificate[] chain, String type, Socket socket) {}

        @Override
        public void checkClientTrusted(X509Certificate[] chain, String type, SSLEngine engine) {}

        @Override
        public void checkServerTrusted(X509Certificate[] chain, String type, SSLEngine engine) {}

        @Override
        public void checkClientTrusted(X509Certificate[] chain, String type) {}

        @Override
        public void checkServerTrusted(X509Certificate[] chain, String type) {}

        @Override
        public X509Certificate[] getAcceptedIssuers() {
            return new X509Certificate[0];
        }
    }
}
