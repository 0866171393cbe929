package baton.router;

import baton.kv.Ticker;
import baton.router.policy.LocalPrefill;
import baton.router.policy.PolicySettings;
import baton.router.upstream.Registrations;
import baton.testkit.Await;
import baton.trace.OtlpExporter;
import io.vertx.core.Vertx;
import java.net.URI;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** Routers and instances of one test, and a client. */
final class RouterFixture implements AutoCloseable {
    static final String COMPLETIONS = "/v1/completions";
    static final String ANSWER = "{\"id\":\"d\",\"choices\":[{\"text\":\"an answer\"}]}";

    /** Far longer than anything takes on a busy machine. */
    static final Duration SOON = Duration.ofSeconds(60);

    static final RouterConfig.Limits LIMITS = TestConfigs.limits(
            Duration.ofSeconds(10),
            Duration.ofMinutes(10),
            Duration.ofMinutes(10),
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
        return start(config, spans, Ticker.system());
    }

    Router start(RouterConfig config, Optional<OtlpExporter> spans, Ticker ticker) {
        Router router = Router.start(config, spans, ticker);
        toClose.add(router);
        return router;
    }

    static List<URI> uris(List<FakeInstance> instances) {
        return instances.stream().map(FakeInstance::uri).toList();
    }

    static HttpRequest.Builder request(Router router, String path) {
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
        return result(postAndGoOn(router, body, headers));
    }

    static <T> T result(CompletableFuture<T> coming) throws Exception {
        return coming.get(SOON.toSeconds(), TimeUnit.SECONDS);
    }

    /** @param headers names and values by turns */
    HttpResponse<String> postTo(Router router, String path, String body, String... headers) throws Exception {
        HttpRequest.Builder request = request(router, path).POST(HttpRequest.BodyPublishers.ofString(body));
        return send(headers.length == 0 ? request : request.headers(headers));
    }

    HttpResponse<String> postToInstance(FakeInstance instance, String path, String body) throws Exception {
        return send(
                HttpRequest.newBuilder(instance.uri().resolve(path)).POST(HttpRequest.BodyPublishers.ofString(body)));
    }

    HttpResponse<String> send(HttpRequest.Builder request) throws Exception {
        return http.send(request.build(), BodyHandlers.ofString());
    }

    /** @param headers names and values by turns */
    HttpResponse<String> get(Router router, String path, String... headers) throws Exception {
        HttpRequest.Builder request = request(router, path).GET();
        return send(headers.length == 0 ? request : request.headers(headers));
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

    void awaitMetric(Router router, String sample, double value) {
        Await.until(sample + " " + value, SOON, () -> metric(router, sample) == value);
    }

    void awaitUp(Router router, String role, int instances) {
        awaitMetric(router, "baton:router_instances_up{role=\"" + role + "\"}", instances);
    }

    /** Waits until no request runs. */
    void awaitRest(Router router) {
        awaitMetric(router, "baton:router_requests_running", 0);
    }

    /** Takes the next element. */
    static <T> T take(BlockingQueue<T> coming) throws InterruptedException {
        return Objects.requireNonNull(coming.poll(SOON.toSeconds(), TimeUnit.SECONDS), "nothing came");
    }

    @Override
    public void close() throws Exception {
        for (AutoCloseable closeable : toClose.reversed()) {
            closeable.close();
        }
        http.close();
        vertx.close().toCompletionStage().toCompletableFuture().get(SOON.toSeconds(), TimeUnit.SECONDS);
    }
}
