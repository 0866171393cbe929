package baton.router;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import baton.kv.FreePorts;
import baton.router.flow.ContentKeyedFlow;
import baton.router.flow.KvTransferParamsFlow;
import baton.router.flow.PushFlow;
import baton.router.policy.PolicySettings;
import io.vertx.core.http.HttpServerResponse;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Routers with requests that return to them, and the limit of requests per instance. */
@Timeout(300)
class RoutingLoopTest {
    private static final String BODY = "{\"prompt\":\"hello\",\"max_tokens\":9}";
    private static final String PREFILLED = "{\"id\":\"p\",\"kv_transfer_params\":{\"remote_engine_id\":\"e\","
            + "\"remote_host\":\"10.0.0.7\",\"remote_port\":5600}}";

    private final RouterFixture fixture = new RouterFixture();
    private final HttpClient http = HttpClient.newHttpClient();
    private final FakeInstance instance = fixture.instance();

    @AfterEach
    void stopAll() throws Exception {
        http.close();
        fixture.close();
    }

    /** The instance sends each request back to the router: a loop through an address that the router does not know as its own. */
    @ParameterizedTest
    @ValueSource(strings = {ContentKeyedFlow.NAME, KvTransferParamsFlow.NAME, PushFlow.NAME})
    void aRoutingLoopEndsAfterTheAllowedHops(String flow) throws Exception {
        if (flow.equals(PushFlow.NAME)) {
            instance.ahead = FakeInstance.json(200, PREFILLED);
        }
        Router router = fixture.start(TestConfigs.router(
                "127.0.0.1",
                0,
                List.of(instance.uri()),
                List.of(instance.uri()),
                flow,
                Optional.empty(),
                RouterFixture.LIMITS,
                Optional.empty(),
                PolicySettings.DEFAULT,
                // A router behind a router gets the parameters of the one before it.
                true,
                RouterConfig.Sources.NONE));
        instance.behaviour = (request, response) -> passOn(router, request, response);
        HttpResponse<String> answer = fixture.post(router, BODY);
        assertThat(answer.statusCode()).isEqualTo(508);
        assertThat(answer.body()).contains("X-Baton-Hops is 3", "leads back");
        fixture.awaitRest(router);
        // At most two legs for each request of the hop before.
        assertThat(instance.received.size()).isBetween(3, 2 + 4 + 8);
        assertThat(instance.received.getFirst().headers().get("X-Baton-Hops")).isEqualTo("1");
    }

    private void passOn(Router router, FakeInstance.Received request, HttpServerResponse response) {
        HttpRequest again = HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + router.port() + request.uri()))
                .header("Content-Type", "application/json")
                .header("X-Baton-Hops", request.headers().get("X-Baton-Hops"))
                .POST(HttpRequest.BodyPublishers.ofString(request.body()))
                .build();
        CompletableFuture<?> _ = http.sendAsync(again, HttpResponse.BodyHandlers.ofString())
                .thenAccept(answer -> response.setStatusCode(answer.statusCode())
                        .putHeader("Content-Type", "application/json")
                        .end(answer.body()));
    }

    @ParameterizedTest
    @ValueSource(strings = {"none", "-1", "1e9", "99999999999999999999", ""})
    void aMalformedHopCountIsTreatedAsZero(String hops) throws Exception {
        Router router = router(RouterFixture.LIMITS);
        assertThat(fixture.post(router, BODY, "X-Baton-Hops", hops).statusCode())
                .isEqualTo(200);
        assertThat(instance.received.getLast().headers().getAll("X-Baton-Hops")).containsExactly("1");
    }

    @Test
    void aChainOfThreeRoutersIsAllowed() throws Exception {
        Router router = router(RouterFixture.LIMITS);
        assertThat(fixture.post(router, BODY, "X-Baton-Hops", "2").statusCode()).isEqualTo(200);
        assertThat(fixture.post(router, BODY, "X-Baton-Hops", "3").statusCode()).isEqualTo(508);
    }

    @ParameterizedTest
    @CsvSource({
        "127.0.0.1, 127.0.0.1",
        "127.0.0.1, localhost",
        "127.0.0.1, 0.0.0.0",
        "0.0.0.0, 127.0.0.7",
        "0.0.0.0, [::1]"
    })
    void theRoutersOwnAddressIsRefusedAsAnInstance(String listening, String host) throws Exception {
        int port = FreePorts.inARow(1);
        URI own = URI.create("http://" + host + ":" + port);
        for (boolean prefill : new boolean[] {true, false}) {
            RouterConfig config = TestConfigs.router(
                    listening,
                    port,
                    List.of(prefill ? own : instance.uri()),
                    List.of(prefill ? instance.uri() : own),
                    RouterConfig.DEFAULT_FLOW,
                    Optional.empty(),
                    RouterFixture.LIMITS);
            assertThatThrownBy(() -> Router.start(config))
                    .isInstanceOf(ConfigException.class)
                    .hasMessageStartingWith((prefill ? "prefill" : "decode") + ": '" + own + "' is this router's own");
        }
    }

    @Test
    void anotherAddressOfTheSameMachineIsAcceptedAsAnInstance() throws Exception {
        int port = FreePorts.inARow(1);
        fixture.start(TestConfigs.router(
                "127.0.0.1",
                port,
                List.of(URI.create("http://127.0.0.7:" + port)),
                List.of(URI.create("http://[::1]:" + port)),
                RouterConfig.DEFAULT_FLOW,
                Optional.empty(),
                RouterFixture.LIMITS));
    }

    private Router router(RouterConfig.Limits limits) {
        return fixture.start(TestConfigs.router(
                "127.0.0.1",
                0,
                List.of(instance.uri()),
                List.of(instance.uri()),
                RouterConfig.DEFAULT_FLOW,
                Optional.empty(),
                limits));
    }

    @Test
    void anInstanceAtItsRequestLimitGetsNoMoreRequests() throws Exception {
        Router router = router(RouterFixture.LIMITS.withMaxPerInstance(2));
        BlockingQueue<HttpServerResponse> held = instance.hold();
        CompletableFuture<HttpResponse<String>> first = fixture.postAndGoOn(router, BODY);
        CompletableFuture<HttpResponse<String>> second = fixture.postAndGoOn(router, BODY);
        HttpServerResponse one = RouterFixture.take(held);
        HttpServerResponse other = RouterFixture.take(held);
        HttpResponse<String> refused = fixture.post(router, BODY);
        assertThat(refused.statusCode()).isEqualTo(503);
        assertThat(refused.headers().firstValue("Retry-After")).contains("1");
        assertThat(refused.body()).contains("2 requests to it are under way, the most allowed");
        assertThat(refused.body()).contains("no healthy prefill instance");
        instance.behaviour = FakeInstance.json(200, RouterFixture.ANSWER);
        one.putHeader("Content-Type", "application/json").end(RouterFixture.ANSWER);
        other.putHeader("Content-Type", "application/json").end(RouterFixture.ANSWER);
        assertThat(RouterFixture.result(first).statusCode()).isEqualTo(200);
        assertThat(RouterFixture.result(second).statusCode()).isEqualTo(200);
        // A request stops counting as running however it ended.
        for (int i = 0; i < 5; i++) {
            instance.behaviour = FakeInstance.json(i % 2 == 0 ? 500 : 200, RouterFixture.ANSWER);
            assertThat(fixture.post(router, BODY).statusCode()).isEqualTo(i % 2 == 0 ? 502 : 200);
        }
    }

    /** Their decode legs wait for the prefill legs. */
    @Test
    void requestsInPrefillCountAtTheirDecodeInstance() throws Exception {
        FakeInstance other = fixture.instance();
        Router router = fixture.start(TestConfigs.router(
                "127.0.0.1",
                0,
                List.of(instance.uri(), other.uri()),
                List.of(fixture.instance().uri()),
                ContentKeyedFlow.NAME,
                Optional.empty(),
                RouterFixture.LIMITS.withMaxPerInstance(2)));
        BlockingQueue<HttpServerResponse> held = instance.hold();
        other.behaviour = instance.behaviour;
        List<CompletableFuture<HttpResponse<String>>> answers =
                List.of(fixture.postAndGoOn(router, BODY), fixture.postAndGoOn(router, BODY));
        List<HttpServerResponse> prefilling = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            prefilling.add(RouterFixture.take(held));
        }
        assertThat(fixture.post(router, BODY).body())
                .contains("no healthy decode instance", "2 requests to it are under way, the most allowed");
        prefilling.forEach(
                leg -> leg.putHeader("Content-Type", "application/json").end(RouterFixture.ANSWER));
        for (CompletableFuture<HttpResponse<String>> answer : answers) {
            assertThat(RouterFixture.result(answer).statusCode()).isEqualTo(200);
        }
        for (FakeInstance prefill : List.of(instance, other)) {
            prefill.behaviour = FakeInstance.json(200, RouterFixture.ANSWER);
        }
        for (int i = 0; i < 5; i++) {
            assertThat(fixture.post(router, BODY).statusCode()).isEqualTo(200);
        }
    }
}
