package baton.bench.serve;

import java.io.IOException;
import java.net.Socket;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.security.GeneralSecurityException;
import java.security.cert.X509Certificate;
import java.time.Duration;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLEngine;
import javax.net.ssl.TrustManager;
import javax.net.ssl.X509ExtendedTrustManager;
import tools.jackson.core.JacksonException;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/** Asks a server what is no load: its models, its tokenizer. */
final class EndpointClient implements AutoCloseable {
    private static final JsonMapper JSON = JsonMapper.builder().build();
    private static final Duration DEADLINE = Duration.ofSeconds(30);

    private final Endpoint endpoint;
    private final HttpClient http;

    EndpointClient(Endpoint endpoint) {
        this.endpoint = endpoint;
        HttpClient.Builder builder =
                HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).connectTimeout(DEADLINE);
        if (endpoint.insecure()) {
            builder.sslContext(trusting());
        }
        http = builder.build();
    }

    /** @throws IOException that names the URL, if the answer is no JSON with status 200 within the deadline */
    JsonNode get(String path) throws IOException {
        return send(path, HttpRequest.newBuilder().GET());
    }

    /** @throws IOException that names the URL, if the answer is no JSON with status 200 within the deadline */
    JsonNode post(String path, JsonNode body) throws IOException {
        return send(
                path,
                HttpRequest.newBuilder()
                        .header("Content-Type", "application/json")
                        .POST(HttpRequest.BodyPublishers.ofString(body.toString())));
    }

    private JsonNode send(String path, HttpRequest.Builder request) throws IOException {
        String url = endpoint.base() + path;
        request.uri(URI.create(url)).timeout(DEADLINE);
        endpoint.headers().forEach(request::setHeader);
        try {
            HttpResponse<String> response = http.send(request.build(), HttpResponse.BodyHandlers.ofString());
            if (response.statusCode() != 200) {
                throw new IOException(url + " answered " + response.statusCode());
            }
            return JSON.readTree(response.body());
        } catch (JacksonException e) {
            throw new IOException(url + " answered with what is no JSON", e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IOException(url + ": interrupted", e);
        } catch (IOException e) {
            throw e.getMessage() == null ? new IOException(url + ": no server answers", e) : e;
        }
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
