package baton.router;

import baton.router.policy.LocalPrefill;
import baton.router.policy.PolicySettings;
import baton.router.upstream.Registrations;
import baton.trace.OtlpExporter;
import io.vertx.core.Vertx;
import java.net.URI;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** Routers and instances of one test, and a client. */
final class RouterFixture implements AutoCloseable {
    static final String COMPLETIONS = "/v1/completions";
    static final String ANSWER = "{\"id\":\"d\",\"choices\":[{\"text\":\"an answer\"}]}";
    static final Duration SOON = Duration.ofSeconds(10);

    static final RouterConfig.Limits LIMITS = TestConfigs.limits(
            Duration.ofSeconds(2),
            Duration.ofSeconds(10),
            Duration.ofSeconds(10),
            Duration.ofMillis(50),
            Duration.ofMillis(200),
            1 << 20,
            1000);

    private final List<AutoCloseable> toClose = new ArrayList<>();
    private final java.net.http.HttpClient http = java.net.http.HttpClient.newHttpClient();
    private final Vertx vertx = Vertx.vertx();

    FakeInstance instance() {
        FakeInstance instance = new FakeInstance(vertx, FakeInstance.json(200, ANSWER));
        toClose.add(instance);
        return instance;
    }

    Router router(
            String flow,
            List<FakeInstance> prefills,
            List<FakeInstance> decodes,
            Optional<Registrations.Settings> registry,
            LocalPrefill localPrefill) {
        return start(config(flow, prefills, decodes, registry, localPrefill));
    }

    static RouterConfig config(
            String flow,
            List<FakeInstance> prefills,
            List<FakeInstance> decodes,
            Optional<Registrations.Settings> registry,
            LocalPrefill localPrefill) {
        return TestConfigs.router(
                "127.0.0.1",
                0,
                uris(prefills),
                uris(decodes),
                flow,
                Optional.empty(),
                LIMITS,
                registry,
                PolicySettings.DEFAULT.withLocalPrefill(localPrefill));
    }

    Router start(RouterConfig config) {
        return start(config, Optional.empty());
    }

    Router start(RouterConfig config, Optional<OtlpExporter> spans) {
        Router router = Router.start(config, spans);
        toClose.add(router);
        return router;
    }

    static List<URI> uris(List<FakeInstance> instances) {
        return instances.stream().map(FakeInstance::uri).toList();
    }

    private static HttpRequest.Builder request(Router router, String path) {
        return HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + router.port() + path))
                .version(java.net.http.HttpClient.Version.HTTP_1_1)
                .header("Content-Type", "application/json");
    }

    /** @param headers names and values by turns */
    CompletableFuture<HttpResponse<String>> postAndGoOn(Router router, String body, String... headers) {
        HttpRequest.Builder request = request(router, COMPLETIONS).POST(HttpRequest.BodyPublishers.ofString(body));
        return http.sendAsync(
                (headers.length == 0 ? request : request.headers(headers)).build(), BodyHandlers.ofString());
    }

    /** @param headers names and values by turns */
    HttpResponse<String> post(Router router, String body, String... headers) throws Exception {
        return postAndGoOn(router, body, headers).get(20, TimeUnit.SECONDS);
    }

    /** @param headers names and values by turns */
    HttpResponse<String> postTo(Router router, String path, String body, String... headers) throws Exception {
        HttpRequest.Builder request = request(router, path).POST(HttpRequest.BodyPublishers.ofString(body));
        return http.send((headers.length == 0 ? request : request.headers(headers)).build(), BodyHandlers.ofString());
    }

    HttpResponse<String> postToInstance(FakeInstance instance, String path, String body) throws Exception {
        return http.send(
                HttpRequest.newBuilder(instance.uri().resolve(path))
                        .POST(HttpRequest.BodyPublishers.ofString(body))
                        .build(),
                BodyHandlers.ofString());
    }

    /** @param headers names and values by turns */
    HttpResponse<String> get(Router router, String path, String... headers) throws Exception {
        HttpRequest.Builder request = request(router, path).GET();
        return http.send((headers.length == 0 ? request : request.headers(headers)).build(), BodyHandlers.ofString());
    }

    /** A sample's value, 0 where there is none. */
    double metric(Router router, String sample) {
        try {
            return get(router, "/metrics")
                    .body()
                    .lines()
                    .filter(line -> line.startsWith(sample + " "))
                    .mapToDouble(line -> Double.parseDouble(line.substring(sample.length() + 1)))
                    .sum();
        } catch (Exception e) {
            throw new AssertionError(e);
        }
    }

    @Override
    public void close() throws Exception {
        for (AutoCloseable closeable : toClose.reversed()) {
            closeable.close();
        }
        http.close();
        vertx.close().toCompletionStage().toCompletableFuture().get(10, TimeUnit.SECONDS);
    }
}
