package baton.router;

import static org.assertj.core.api.Assertions.assertThat;

import baton.router.flow.KvTransferParamsFlow;
import baton.router.policy.LocalPrefill;
import baton.router.policy.PolicySettings;
import baton.router.upstream.Discovery;
import baton.testkit.Await;
import io.vertx.core.http.HttpServerResponse;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** A request that loses its instances before the first byte of an answer waits for others. */
@Timeout(300)
class WaitingRequestsTest {
    private static final String BODY = "{\"prompt\":\"hello\"}";
    private static final String ADMIN_KEY = "an-admin-key";
    private static final String RUNNING = "baton:router_requests_running";

    @AutoClose
    private final RouterFixture fixture = new RouterFixture();

    private FakeInstance prefill;
    private FakeInstance decode;

    @BeforeEach
    void startInstances() {
        prefill = fixture.instance();
        decode = fixture.instance();
    }

    private Router router(RouterConfig.Limits limits, LocalPrefill localPrefill, FakeInstance... decodes) {
        return router(limits, localPrefill, List.of(prefill), List.of(decodes));
    }

    private Router router(
            RouterConfig.Limits limits,
            LocalPrefill localPrefill,
            List<FakeInstance> prefills,
            List<FakeInstance> decodes) {
        return fixture.start(TestConfigs.router(
                "127.0.0.1",
                0,
                RouterFixture.uris(prefills),
                RouterFixture.uris(decodes),
                KvTransferParamsFlow.NAME,
                Optional.empty(),
                limits,
                Optional.empty(),
                PolicySettings.DEFAULT.withLocalPrefill(localPrefill),
                false,
                new RouterConfig.Sources(Discovery.Settings.NONE, Optional.of(ADMIN_KEY))));
    }

    /** Nothing but health probes ends a leg in time. */
    private static RouterConfig.Limits patient(Duration continueAfter) {
        return RouterFixture.LIMITS
                .withConnect(Duration.ofSeconds(1))
                .withPrefill(Duration.ofHours(1))
                .withIdle(Duration.ofHours(1))
                .withContinueAfter(Optional.of(continueAfter));
    }

    private static LocalPrefill fallback(boolean isOn) {
        return new LocalPrefill(isOn, 0, 0, Integer.MAX_VALUE);
    }

    private Router router() {
        return router(RouterFixture.LIMITS, LocalPrefill.NEVER, decode);
    }

    private static void awaitLegs(BlockingQueue<HttpServerResponse> held, int legs) {
        Await.until("legs run", RouterFixture.SOON, () -> held.size() == legs);
    }

    private void awaitWaits(Router router, String role, int requests) {
        Await.until(
                "requests wait",
                RouterFixture.SOON,
                () -> fixture.metric(router, "baton:router_instance_waits_total{role=\"%s\"}".formatted(role))
                        >= requests);
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            value = {
                "{\"prompt\":\"hello\",\"n\":2} | 1",
                "{\"prompt\":\"hello\",\"stream\":true} | 1",
                "{\"prompt\":[\"a\",\"b\"]} | 2"
            })
    void aRequestWaitsForADecodeInstance(String body, int legs) throws Exception {
        BlockingQueue<HttpServerResponse> held = decode.hold();
        Router router = router();
        CompletableFuture<HttpResponse<String>> answer = fixture.postAndGoOn(router, body, "X-Request-Id", "mine");
        awaitLegs(held, legs);

        decode.stop();
        awaitWaits(router, "decode", legs);
        assertThat(fixture.metric(router, RUNNING)).isPositive();
        fixture.awaitUp(router, "decode", 0);
        assertThat(fixture.post(router, BODY).statusCode()).as("a new request").isEqualTo(503);
        decode.behaviour = body.contains("stream")
                ? (_, response) ->
                        FakeInstance.events(response, "data: [DONE]\n\n").end()
                : FakeInstance.json(200, RouterFixture.ANSWER);
        decode.restart();

        assertThat(RouterFixture.result(answer).statusCode()).isEqualTo(200);
        assertThat(fixture.get(router, "/v1/requests/mine" + (legs > 1 ? "-0" : "") + "/explain")
                        .body())
                .contains("waits for a decode instance");
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void aRequestWaitsForAPrefillInstanceUnlessDecodeComputesThePrompt(boolean fallback) throws Exception {
        BlockingQueue<HttpServerResponse> held = prefill.hold();
        Router router = router(RouterFixture.LIMITS, fallback(fallback), decode);
        CompletableFuture<HttpResponse<String>> answer = fixture.postAndGoOn(router, BODY);
        awaitLegs(held, 1);

        prefill.stop();
        if (!fallback) {
            awaitWaits(router, "prefill", 1);
            prefill.behaviour = FakeInstance.json(200, RouterFixture.ANSWER);
            prefill.restart();
        }

        HttpResponse<String> answered = RouterFixture.result(answer);
        assertThat(answered.body()).isEqualTo(RouterFixture.ANSWER);
        assertThat(answered.headers().firstValue("X-Baton-Local-Prefill").isPresent())
                .isEqualTo(fallback);
    }

    @Test
    void aPrefillInstanceComputesThePromptThatADecodeInstanceBegan() throws Exception {
        prefill.health = 503;
        BlockingQueue<HttpServerResponse> held = decode.hold();
        Router router = router(RouterFixture.LIMITS, fallback(true), decode);
        CompletableFuture<HttpResponse<String>> answer = fixture.postAndGoOn(router, BODY);
        awaitLegs(held, 1);

        decode.stop();
        awaitWaits(router, "decode", 1);
        prefill.health = 200;
        fixture.awaitUp(router, "prefill", 1);
        decode.behaviour = FakeInstance.json(200, RouterFixture.ANSWER);
        decode.restart();

        HttpResponse<String> answered = RouterFixture.result(answer);
        assertThat(answered.headers().firstValue("X-Baton-Prefill"))
                .contains(prefill.uri().toString());
        assertThat(answered.headers().firstValue("X-Baton-Local-Prefill")).isEmpty();
    }

    @Test
    void fewInstancesFailWithARequest() throws Exception {
        decode.behaviour = (_, response) -> response.reset();

        assertThat(fixture.post(router(), "{\"prompt\":\"hello\",\"stream\":true}")
                        .statusCode())
                .isEqualTo(502);
        assertThat(decode.received).hasSize(3);
        decode.received.clear();
        assertThat(fixture.post(router(), BODY).statusCode())
                .as("a whole answer")
                .isEqualTo(502);
        assertThat(decode.received).hasSize(8);

        prefill.behaviour = decode.behaviour;
        prefill.received.clear();
        assertThat(fixture.post(router(), BODY).statusCode()).isEqualTo(502);
        assertThat(prefill.received).hasSize(3);
    }

    @Test
    void aRequestWaitsForAWhile() throws Exception {
        BlockingQueue<HttpServerResponse> held = decode.hold();
        Router router = router(
                RouterFixture.LIMITS.withContinueAfter(Optional.of(Duration.ofMillis(50))), LocalPrefill.NEVER, decode);
        CompletableFuture<HttpResponse<String>> answer = fixture.postAndGoOn(router, BODY);
        awaitLegs(held, 1);

        decode.stop();

        assertThat(RouterFixture.result(answer).statusCode()).isEqualTo(503);
        assertThat(answer.get().body()).contains("no healthy decode instance: " + decode.uri());
        decode.restart();
    }

    @Test
    void aClientThatLeavesEndsTheWait() throws Exception {
        BlockingQueue<HttpServerResponse> held = decode.hold();
        Router router = router();
        try (RawClient client = new RawClient(router.port())) {
            client.post(RouterFixture.COMPLETIONS, BODY);
            awaitLegs(held, 1);
            decode.stop();
            awaitWaits(router, "decode", 1);
        }
        fixture.awaitRest(router);
        decode.restart();
    }

    @Test
    void anotherInstanceAnswersForASilentOne() throws Exception {
        BlockingQueue<HttpServerResponse> held = decode.hold();
        Router router = router(
                RouterFixture.LIMITS.withContinueAfter(Optional.of(Duration.ofMillis(100))),
                LocalPrefill.NEVER,
                decode,
                fixture.instance());
        CompletableFuture<HttpResponse<String>> answer = fixture.postAndGoOn(router, BODY);
        awaitLegs(held, 1);

        decode.health = 500;

        assertThat(RouterFixture.result(answer).body()).isEqualTo(RouterFixture.ANSWER);
        assertThat(held).hasSize(1);
    }

    @ParameterizedTest
    @CsvSource({"true, false", "false, false", "false, true"})
    void aPromptLeavesAPrefillInstanceThatHangs(boolean isFallback, boolean isRemoved) throws Exception {
        FakeInstance other = fixture.instance();
        BlockingQueue<HttpServerResponse> held = prefill.hold();
        Router router = router(
                patient(Duration.ofMillis(200)),
                fallback(isFallback),
                isFallback ? List.of(prefill) : List.of(prefill, other),
                List.of(decode));
        CompletableFuture<HttpResponse<String>> answer = fixture.postAndGoOn(router, BODY, "X-Request-Id", "mine");
        awaitLegs(held, 1);
        if (isRemoved) {
            String removed = "{\"role\":\"prefill\",\"url\":\"%s\"}".formatted(prefill.uri());
            assertThat(fixture.postTo(router, "/v1/instances/remove", removed, "Authorization", "Bearer " + ADMIN_KEY)
                            .body())
                    .contains("\"changed\":true");
        }

        prefill.health = 0;

        assertThat(RouterFixture.result(answer).body()).isEqualTo(RouterFixture.ANSWER);
        assertThat(other.received).hasSize(isFallback ? 0 : 1);
        assertThat(decode.received).hasSize(1);
        assertThat(fixture.get(router, "/v1/requests/mine/explain").body())
                .contains("no answer within 0.2s, nor to health probes");
        Await.until("the leg's connection closes", RouterFixture.SOON, () -> prefill.aborted.get() == 1);
        if (isRemoved) {
            prefill.health = 200;
            int probes = prefill.probes.get();
            int others = other.probes.get();
            Await.until("the other one is probed", RouterFixture.SOON, () -> other.probes.get() > others + 40);
            assertThat(prefill.probes.get())
                    .as("probes of an instance without requests")
                    .isLessThan(probes + 2);
        }
    }

    /** With a prefill leg, and with the decode leg of a prompt that is computed there. */
    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void aRequestIsPlacedAnewWhenTheOnlyInstanceHangsNoLonger(boolean isPrefill) throws Exception {
        FakeInstance hung = isPrefill ? prefill : decode;
        prefill.health = isPrefill ? 200 : 503;
        BlockingQueue<HttpServerResponse> held = hung.hold();
        Router router = router(patient(Duration.ofSeconds(2)), fallback(!isPrefill), decode);
        CompletableFuture<HttpResponse<String>> answer = fixture.postAndGoOn(router, BODY);
        awaitLegs(held, 1);

        hung.health = 0;
        awaitWaits(router, isPrefill ? "prefill" : "decode", 1);
        hung.behaviour = FakeInstance.json(200, RouterFixture.ANSWER);
        hung.health = 200;

        assertThat(RouterFixture.result(answer).body()).isEqualTo(RouterFixture.ANSWER);
        assertThat(hung.received).hasSize(2);
        Await.until("the leg's connection closes", RouterFixture.SOON, () -> hung.aborted.get() == 1);
    }

    /** Its health probes are answered, or refused as by one that takes no more requests and finishes those that it has. */
    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void aRequestStaysAtAnInstanceThatIsSlow(boolean isListening) throws Exception {
        FakeInstance other = fixture.instance();
        BlockingQueue<HttpServerResponse> held = prefill.hold();
        Router router =
                router(patient(Duration.ofMillis(100)), LocalPrefill.NEVER, List.of(prefill, other), List.of(decode));
        CompletableFuture<HttpResponse<String>> answer = fixture.postAndGoOn(router, BODY);
        awaitLegs(held, 1);
        if (!isListening) {
            prefill.stopListening();
            fixture.awaitUp(router, "prefill", 1);
        }
        int probes = other.probes.get();
        Await.until("it is probed often", RouterFixture.SOON, () -> other.probes.get() > probes + 20);

        FakeInstance.json(200, RouterFixture.ANSWER).accept(prefill.only(), held.take());

        assertThat(RouterFixture.result(answer).body()).isEqualTo(RouterFixture.ANSWER);
        assertThat(other.received).isEmpty();
        assertThat(prefill.aborted.get()).isZero();
    }

    /** As of a process that listens where another one finishes its requests. */
    @Test
    void anInstanceHangsByProbesWithoutAnAnswerNotByRefusedOnes() throws Exception {
        FakeInstance other = fixture.instance();
        BlockingQueue<HttpServerResponse> held = prefill.hold();
        // So long that the test sees the time between the first and the third probe without an answer.
        RouterConfig.Limits limits = patient(Duration.ofMillis(100)).withConnect(Duration.ofSeconds(2));
        Router router = router(limits, LocalPrefill.NEVER, List.of(prefill, other), List.of(decode));
        CompletableFuture<HttpResponse<String>> answer = fixture.postAndGoOn(router, BODY);
        awaitLegs(held, 1);
        prefill.stopListening();
        fixture.awaitUp(router, "prefill", 1);
        int refused = other.probes.get();
        Await.until("several are refused", RouterFixture.SOON, () -> other.probes.get() > refused + 10);

        prefill.health = 0;
        int before = prefill.probes.get();
        prefill.restart();
        Await.until("the first had no answer", RouterFixture.SOON, () -> prefill.probes.get() >= before + 2);
        int probes = other.probes.get();
        Await.until("legs are looked at", RouterFixture.SOON, () -> other.probes.get() > probes + 6);
        assertThat(other.received).isEmpty();

        assertThat(RouterFixture.result(answer).body()).isEqualTo(RouterFixture.ANSWER);
        assertThat(other.received).hasSize(1);
    }
}
