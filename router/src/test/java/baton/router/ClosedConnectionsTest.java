package baton.router;

import static org.assertj.core.api.Assertions.assertThat;

import baton.testkit.Certificates;
import io.vertx.core.Vertx;
import io.vertx.core.http.HttpServerOptions;
import io.vertx.core.net.PemKeyCertOptions;
import java.net.URI;
import java.net.http.HttpResponse;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Instances that close a connection just as its next request arrives, as an instance with a short idle timeout does. */
@Timeout(300)
class ClosedConnectionsTest {
    private static final int REQUESTS = 600;
    private static final int AT_ONCE = 8;

    @TempDir
    private static Path certificates;

    private final RouterFixture fixture = new RouterFixture();
    private final Vertx vertx = Vertx.vertx();
    private final AtomicInteger closed = new AtomicInteger();

    @AfterEach
    void stopAll() throws Exception {
        fixture.close();
        Router.await(vertx.close(), Duration.ofSeconds(10));
    }

    private URI instance(HttpServerOptions options, String answer) throws Exception {
        ConcurrentHashMap<Object, Integer> requests = new ConcurrentHashMap<>();
        int port = vertx.createHttpServer(options.setHost("127.0.0.1").setPort(0))
                .requestHandler(request -> request.body().onSuccess(_ -> {
                    if (requests.merge(request.connection(), 1, Integer::sum) == 1) {
                        request.response().end(answer);
                    } else {
                        closed.incrementAndGet();
                        request.connection().close();
                    }
                }))
                .listen()
                .toCompletionStage()
                .toCompletableFuture()
                .get(60, TimeUnit.SECONDS)
                .actualPort();
        return URI.create((options.isSsl() ? "https" : "http") + "://127.0.0.1:" + port);
    }

    /** @param filler bytes of the prompt */
    @ParameterizedTest
    @CsvSource({"false, 10", "false, 600000", "true, 10"})
    void noRequestIsLost(boolean tls, int filler) throws Exception {
        HttpServerOptions options = new HttpServerOptions().setSsl(tls);
        Security security = Security.NONE;
        if (tls) {
            Path certificate = certificates.resolve("cert.pem");
            Path key = certificates.resolve("key.pem");
            Certificates.make(certificates, certificate, key);
            options.setKeyCertOptions(
                    new PemKeyCertOptions().addCertPath(certificate.toString()).addKeyPath(key.toString()));
            security = new Security(
                    Optional.empty(),
                    Optional.empty(),
                    Security.instances(Optional.of(certificate), Optional.empty(), Optional.empty()),
                    false,
                    List.of());
        }
        Router router = fixture.start(TestConfigs.router(
                        "127.0.0.1",
                        0,
                        List.of(instance(options, "{\"id\":\"p\"}")),
                        List.of(instance(options, RouterFixture.ANSWER)),
                        RouterConfig.DEFAULT_FLOW,
                        Optional.empty(),
                        RouterFixture.LIMITS)
                .withSecurity(security));
        int requests = filler > 1000 || tls ? REQUESTS / 10 : REQUESTS;
        String body = "{\"prompt\":\"" + "x".repeat(filler) + "\"}";
        for (int sent = 0; sent < requests; sent += AT_ONCE) {
            List<CompletableFuture<HttpResponse<String>>> answers = new ArrayList<>();
            for (int i = 0; i < AT_ONCE; i++) {
                answers.add(fixture.postAndGoOn(router, body));
            }
            for (CompletableFuture<HttpResponse<String>> each : answers) {
                assertThat(RouterFixture.result(each).body()).isEqualTo(RouterFixture.ANSWER);
            }
        }
        assertThat(closed.get()).isGreaterThan(requests / 2);
    }
}
