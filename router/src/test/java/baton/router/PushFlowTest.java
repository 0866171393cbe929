package baton.router;

import static org.assertj.core.api.Assertions.assertThat;

import baton.messages.PeerAddress;
import baton.messages.PeerChannel;
import baton.messages.p2p.Registration;
import baton.messages.zeromq.ZeroMqPeerChannel;
import baton.router.flow.KvTransferParamsFlow;
import baton.router.flow.PushFlow;
import baton.router.policy.LocalPrefill;
import baton.router.policy.PolicySettings;
import baton.router.upstream.ConnectorAddress;
import baton.router.upstream.Registrations;
import baton.testkit.Await;
import io.vertx.core.http.HttpServerResponse;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BiConsumer;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Both legs at once, for connectors that push. */
@Timeout(300)
class PushFlowTest {
    private static final String BODY = "{\"prompt\":[1,2],\"max_tokens\":9}";
    private static final String PREFILLED =
            "{\"id\":\"p\",\"kv_transfer_params\":{\"do_remote_prefill\":true,\"do_remote_decode\":false,"
                    + "\"remote_block_ids\":[[1,2]],\"remote_engine_id\":\"engine-1\",\"remote_request_id\":\"cmpl-x\","
                    + "\"remote_host\":\"10.0.0.7\",\"remote_port\":5600,\"tp_size\":2,\"pp_size\":1,\"baton\":{\"mac\":\"m\"}}}";
    private static final String TARGET =
            "\"kv_transfer_params\":{\"do_remote_prefill\":true,\"do_remote_decode\":false,"
                    + "\"remote_engine_id\":\"engine-1\",\"remote_host\":\"10.0.0.7\",\"remote_port\":5600,\"tp_size\":2,\"pp_size\":1";

    @AutoClose
    private final RouterFixture fixture = new RouterFixture();

    private final FakeInstance prefill = fixture.instance();
    private final FakeInstance decode = fixture.instance();

    PushFlowTest() {
        prefill.behaviour = FakeInstance.json(200, PREFILLED);
    }

    private Router router(List<FakeInstance> prefills, List<FakeInstance> decodes) {
        return fixture.router(PushFlow.NAME, prefills, decodes, Optional.empty(), LocalPrefill.NEVER);
    }

    private static String id(FakeInstance instance, int request) {
        return instance.received.get(request).headers().get("X-Request-Id");
    }

    /** A decode leg's kv_transfer_params without block names: vLLM's decode instance needs the request's id too, which is that of both legs. */
    private String told(int request) {
        return TARGET + ",\"remote_request_id\":\"" + id(decode, request) + "\"}";
    }

    @Test
    void bothLegsAreSentAtOnceIfTheConnectorAddressIsKnown() throws Exception {
        Router router = router(List.of(prefill), List.of(decode));
        HttpResponse<String> first = fixture.post(router, BODY, "X-Request-Id", "mine");
        assertThat(first.statusCode()).isEqualTo(200);
        assertThat(first.headers().firstValue("X-Request-Id")).contains("mine");
        assertThat(first.headers().firstValue("X-Baton-Handoff-Id")).contains(id(decode, 0));
        assertThat(prefill.only().nanos()).isLessThan(decode.only().nanos());
        assertThat(prefill.only().body())
                .contains("\"max_tokens\":1", "\"kv_transfer_params\":{\"do_remote_decode\":true,");
        // The legs ran one after the other, so prefill's answer names the blocks.
        assertThat(decode.only().body())
                .isEqualTo("{\"prompt\":[1,2],\"max_tokens\":9," + PREFILLED.substring("{\"id\":\"p\",".length()));
        assertThat(id(prefill, 0)).isEqualTo(id(decode, 0)).matches("mine\\.[0-9a-f]{16}");

        BlockingQueue<HttpServerResponse> prefillHeld = prefill.hold();
        BlockingQueue<HttpServerResponse> decodeHeld = decode.hold();
        CompletableFuture<HttpResponse<String>> second = fixture.postAndGoOn(router, BODY, "X-Request-Id", "mine");
        HttpServerResponse prefilling = RouterFixture.take(prefillHeld);
        HttpServerResponse decoding = RouterFixture.take(decodeHeld);
        assertThat(decode.received.get(1).body()).isEqualTo("{\"prompt\":[1,2],\"max_tokens\":9," + told(1) + "}");
        assertThat(id(prefill, 1)).isEqualTo(id(decode, 1)).isNotEqualTo(id(prefill, 0));
        prefilling.end(PREFILLED);
        decoding.end(RouterFixture.ANSWER);
        assertThat(RouterFixture.result(second).body()).isEqualTo(RouterFixture.ANSWER);
        assertThat(fixture.metric(router, "baton:router_handoffs_total{params=\"carried\"}"))
                .isEqualTo(2);
    }

    private static final String AHEAD = "{" + TARGET + "}}";

    private static BiConsumer<FakeInstance.Received, HttpServerResponse> tells(String engine) {
        return FakeInstance.json(200, AHEAD.replace("engine-1", engine));
    }

    private double asked(Router router, String result) {
        return fixture.metric(router, "baton:router_asked_ahead_total{result=\"" + result + "\"}");
    }

    /** The body of the decode leg of a request, sent before its prefill leg was answered; the request is then answered. */
    private String sentAtOnce(Router router) throws Exception {
        return sentAtOnce(router, BODY);
    }

    private String sentAtOnce(Router router, String body) throws Exception {
        BlockingQueue<HttpServerResponse> prefillHeld = prefill.hold();
        BlockingQueue<HttpServerResponse> decodeHeld = decode.hold();
        CompletableFuture<HttpResponse<String>> answer = fixture.postAndGoOn(router, body);
        HttpServerResponse prefilling = RouterFixture.take(prefillHeld);
        HttpServerResponse decoding = RouterFixture.take(decodeHeld);
        String sent = decode.received.getLast().body();
        assertThat(id(prefill, prefill.received.size() - 1)).isEqualTo(id(decode, decode.received.size() - 1));
        double prefilled = fixture.metric(router, "baton:router_prefill_seconds_count");
        prefilling.end(PREFILLED);
        // Decode's answer would end the prefill leg.
        Await.until(
                "prefill's answer is read",
                RouterFixture.SOON,
                () -> fixture.metric(router, "baton:router_prefill_seconds_count") > prefilled);
        decoding.end(RouterFixture.ANSWER);
        assertThat(RouterFixture.result(answer).body()).isEqualTo(RouterFixture.ANSWER);
        return sent;
    }

    @Test
    void eightDecodeInstancesMayFailWithAPromptThatIsBeingComputed() throws Exception {
        prefill.ahead = tells("engine-1");
        prefill.hold();
        decode.behaviour = (_, response) -> response.reset();
        Router router = router(List.of(prefill), List.of(decode));
        Await.until("its address is known", RouterFixture.SOON, () -> asked(router, "told") >= 1);

        assertThat(fixture.post(router, "{\"prompt\":[1,2],\"stream\":true}").statusCode())
                .isEqualTo(502);
        assertThat(decode.received).hasSize(8);
    }

    @Test
    void bothLegsOfTheFirstRequestAreSentAtOnceAfterAConnectorAddressQuery() throws Exception {
        prefill.ahead = tells("engine-7");
        decode.ahead = tells("engine-9");
        Router router = router(List.of(prefill), List.of(decode));
        assertThat(sentAtOnce(router))
                .isEqualTo("{\"prompt\":[1,2],\"max_tokens\":9," + told(0).replace("engine-1", "engine-7") + "}");
    }

    /** Without that the legs of a text would not be sent at once. */
    @Test
    void decodeInstancesAreAskedForTheirConnectors() throws Exception {
        prefill.ahead = FakeInstance.json(200, "{\"kv_connector\":\"NixlConnector\"," + AHEAD.substring(1));
        decode.ahead = FakeInstance.json(200, "{\"kv_connector\":\"NixlConnector\",\"kv_transfer_params\":null}");
        Router router = router(List.of(prefill), List.of(decode));
        assertThat(sentAtOnce(router, "{\"messages\":[{}]}")).startsWith("{\"messages\":[{}]," + TARGET);
    }

    @Test
    void connectorAddressOfARestartedEngineIsQueriedAgain() throws Exception {
        prefill.ahead = tells("engine-1");
        Router router = router(List.of(prefill), List.of(decode));
        prefill.stop();
        fixture.awaitUp(router, "prefill", 0);
        double before = asked(router, "told");
        prefill.ahead = tells("engine-2");
        prefill.restart();
        Await.until("it has told", RouterFixture.SOON, () -> asked(router, "told") > before);
        assertThat(sentAtOnce(router)).contains("engine-2");
    }

    @Test
    void connectorAddressOfAReplacedEngineIsQueriedWithoutADownProbe() throws Exception {
        prefill.ahead = tells("engine-1");
        Router router = router(List.of(prefill), List.of(decode));
        assertThat(sentAtOnce(router)).contains("engine-1");
        prefill.ahead = tells("engine-2");
        double before = asked(router, "told");
        // One more query may have been in flight.
        Await.until("it has told", RouterFixture.SOON, () -> asked(router, "told") > before + 1);
        assertThat(sentAtOnce(router)).contains("engine-2");
    }

    @Test
    void connectorAddressInAnAnswerReplacesTheKnownOne() throws Exception {
        BlockingQueue<HttpServerResponse> silent = new LinkedBlockingQueue<>();
        prefill.ahead = tells("engine-0");
        Router router = router(List.of(prefill), List.of(decode));
        prefill.ahead = (request, response) -> silent.add(response);
        RouterFixture.take(silent);
        assertThat(sentAtOnce(router)).contains("engine-0");
        assertThat(sentAtOnce(router)).contains("engine-1").doesNotContain("engine-0");
    }

    @Test
    void connectorAddressQueryCarriesTheRoutersApiKey() throws Exception {
        prefill.ahead = (request, response) -> {
            boolean known = "Bearer s3cret".equals(request.headers().get("Authorization"));
            (known ? tells("engine-1") : FakeInstance.json(401, "{}")).accept(request, response);
        };
        for (String key : List.of("s3cret", "another")) {
            try (Router router = Router.start(TestConfigs.router(
                    "127.0.0.1",
                    0,
                    List.of(prefill.uri()),
                    List.of(decode.uri()),
                    PushFlow.NAME,
                    Optional.of(key),
                    RouterFixture.LIMITS))) {
                assertThat(asked(router, key.equals("s3cret") ? "told" : "failed"))
                        .isPositive();
            }
        }
    }

    /** As with a request of a client without a key. */
    @Test
    void connectorAddressQueryToARegisteredInstanceCarriesTheRoutersApiKey() throws Exception {
        prefill.ahead = tells("engine-1");
        try (Router router = Router.start(TestConfigs.router(
                        "127.0.0.1",
                        0,
                        List.of(),
                        List.of(decode.uri()),
                        PushFlow.NAME,
                        Optional.of("s3cret"),
                        RouterFixture.LIMITS,
                        Optional.of(new Registrations.Settings(
                                "127.0.0.1", 0, Duration.ofSeconds(60), 10, Registrations.Settings.PRIVATE_NETWORKS)),
                        PolicySettings.DEFAULT));
                PeerChannel channel = new ZeroMqPeerChannel();
                PeerChannel.Call call = channel.call(
                        "127.0.0.1",
                        router.registerPort().orElseThrow(),
                        "10.0.0.7:5600",
                        RouterFixture.SOON,
                        () -> {})) {
            Registration registration = new Registration(
                    Registration.Kind.PREFILL,
                    new PeerAddress("127.0.0.1", prefill.uri().getPort()),
                    new PeerAddress("10.0.0.7", 5600));
            call.tell(List.of(registration.encode()), RouterFixture.SOON);
            Await.until("it has told", RouterFixture.SOON, () -> asked(router, "told") > 0);
            assertThat(sentAtOnce(router)).contains("engine-1");
        }
        assertThat(prefill.asked.getFirst().headers().get("Authorization")).isEqualTo("Bearer s3cret");
        assertThat(prefill.only().headers().get("Authorization")).isEqualTo("Bearer s3cret");
    }

    @Test
    void otherFlowsSendNoConnectorAddressQuery() throws Exception {
        Router router = fixture.router(
                KvTransferParamsFlow.NAME, List.of(prefill), List.of(decode), Optional.empty(), LocalPrefill.NEVER);
        assertThat(fixture.post(router, BODY).statusCode()).isEqualTo(200);
        assertThat(prefill.asked).isEmpty();
    }

    /** As with servers without the path: they are queried once, and their address is taken from their first answer to a request. */
    @ParameterizedTest
    @ValueSource(
            strings = {"404 {\"detail\":\"Not Found\"}", "405 ", "501 ", "200 {\"kv_transfer_params\":null}", "200 {}"})
    void connectorAddressQueryIsSentOnceToAnInstanceWithoutOne(String answer) throws Exception {
        prefill.ahead = FakeInstance.json(Integer.parseInt(answer.substring(0, 3)), answer.substring(4));
        Router router = router(List.of(prefill), List.of(decode));
        int probes = prefill.probes.get();
        Await.until("it is probed again", RouterFixture.SOON, () -> prefill.probes.get() > probes + 2);
        assertThat(prefill.asked).hasSize(1);
        // The decode instance has none either.
        assertThat(asked(router, "untold")).isEqualTo(2);
        assertLearntFromTheFirstAnswer(router);
        int since = prefill.probes.get();
        Await.until("it is probed again", RouterFixture.SOON, () -> prefill.probes.get() > since + 2);
        assertThat(prefill.asked).hasSize(1);
    }

    /** Decode legs must not name the connector of the earlier engine. */
    @ParameterizedTest
    @ValueSource(strings = {"404 {}", "200 {\"kv_transfer_params\":null}"})
    void connectorAddressIsForgottenWhenTheNewServerHasNone(String answer) throws Exception {
        prefill.ahead = tells("engine-9");
        Router router = router(List.of(prefill), List.of(decode));
        assertThat(asked(router, "told")).isPositive();
        prefill.ahead = FakeInstance.json(Integer.parseInt(answer.substring(0, 3)), answer.substring(4));
        Await.until("it has nothing to tell", RouterFixture.SOON, () -> asked(router, "untold") == 2);
        assertLearntFromTheFirstAnswer(router);
    }

    @ParameterizedTest
    @ValueSource(strings = {"500 {}", "200 <html>"})
    void connectorAddressQueryIsRepeatedAfterABadAnswer(String answer) throws Exception {
        prefill.ahead = FakeInstance.json(Integer.parseInt(answer.substring(0, 3)), answer.substring(4));
        Router router = router(List.of(prefill), List.of(decode));
        assertThat(asked(router, "failed")).isPositive();
        prefill.ahead = tells("engine-7");
        Await.until("it has told", RouterFixture.SOON, () -> asked(router, "told") > 0);
        assertThat(sentAtOnce(router)).contains("engine-7");
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "500 {}",
                "401 {}",
                "302 {}",
                "200 ",
                "200 <html>",
                "200 [1]",
                "200 {\"kv_transfer_params\":7}",
                "200 {\"kv_transfer_params\":{}}",
                "200 {\"kv_transfer_params\":{\"remote_engine_id\":\"e\",\"remote_host\":\"h\",\"remote_port\":70000}}",
                "200 {\"kv_transfer_params\":{\"remote_engine_id\":\"e\",\"remote_host\":\"h\",\"remote_port\":1,\"tp_size\":\"x\"}}"
            })
    void connectorAddressIsLearntFromTheFirstRequestAfterABadAnswer(String answer) throws Exception {
        prefill.ahead = FakeInstance.json(Integer.parseInt(answer.substring(0, 3)), answer.substring(4));
        Router router = router(List.of(prefill), List.of(decode));
        assertThat(asked(router, "failed")).isPositive();
        assertLearntFromTheFirstAnswer(router);
    }

    @Test
    void connectorAddressAnswerOverTheSizeLimitIsCutOff() throws Exception {
        CompletableFuture<Void> cutOff = new CompletableFuture<>();
        prefill.ahead = (request, response) -> {
            response.setChunked(true).closeHandler(closed -> cutOff.complete(null));
            writeOn(response);
        };
        Router router = router(List.of(prefill), List.of(decode));
        RouterFixture.result(cutOff);
        assertThat(asked(router, "failed")).isPositive();
        assertLearntFromTheFirstAnswer(router);
    }

    private static void writeOn(HttpServerResponse response) {
        response.write(" ".repeat(4096)).onSuccess(written -> writeOn(response));
    }

    /** While the query has no answer yet. */
    @Test
    void requestsDoNotWaitForTheConnectorAddressQuery() throws Exception {
        prefill.health = 503;
        Router router = router(List.of(prefill), List.of(decode));
        BlockingQueue<HttpServerResponse> silent = new LinkedBlockingQueue<>();
        prefill.ahead = (request, response) -> silent.add(response);
        prefill.health = 200;
        HttpServerResponse open = RouterFixture.take(silent);
        assertLearntFromTheFirstAnswer(router);
        Await.until("the question is given up", RouterFixture.SOON, () -> asked(router, "failed") > 0);
        Await.until("its connection is closed", RouterFixture.SOON, open::closed);
        // An address from an answer to a request does not stop the queries.
        prefill.ahead = tells("engine-2");
        Await.until("it has told", RouterFixture.SOON, () -> asked(router, "told") > 0);
        assertThat(sentAtOnce(router)).contains("engine-2");
    }

    /** The legs of the first request run one after the other, those of the second at once. */
    private void assertLearntFromTheFirstAnswer(Router router) throws Exception {
        assertThat(fixture.post(router, BODY).statusCode()).isEqualTo(200);
        assertThat(decode.only().body())
                .isEqualTo("{\"prompt\":[1,2],\"max_tokens\":9," + PREFILLED.substring("{\"id\":\"p\",".length()));
        String sent = sentAtOnce(router);
        assertThat(sent).isEqualTo("{\"prompt\":[1,2],\"max_tokens\":9," + told(decode.received.size() - 1) + "}");
    }

    /** An answer names the blocks of the first prompt. */
    @Test
    void blockNamesAreNotPassedOnForSeveralPrompts() throws Exception {
        Router router = router(List.of(prefill), List.of(decode));
        assertThat(fixture.post(router, "{\"prompt\":[\"a\",\"b\"]}").statusCode())
                .isEqualTo(200);
        assertThat(decode.only().body()).isEqualTo("{\"prompt\":[\"a\",\"b\"]," + told(0) + "}");
    }

    @Test
    void connectorAddressIsForgottenWhenTheInstanceGoesDown() throws Exception {
        Router router = router(List.of(prefill), List.of(decode));
        fixture.post(router, BODY);
        prefill.stop();
        fixture.awaitUp(router, "prefill", 0);
        prefill.behaviour = FakeInstance.json(200, PREFILLED.replace("engine-1", "engine-2"));
        prefill.restart();
        fixture.awaitUp(router, "prefill", 1);
        fixture.post(router, BODY);
        assertThat(decode.received.get(1).body()).contains("engine-2").doesNotContain("engine-1");
    }

    @Test
    void aFailedPrefillLegEndsItsDecodeLeg() throws Exception {
        FakeInstance other = fixture.instance();
        other.behaviour = FakeInstance.json(200, PREFILLED.replace("engine-1", "engine-2"));
        Router router = router(List.of(prefill, other), List.of(decode));
        fixture.post(router, BODY);
        fixture.post(router, BODY);
        int before = decode.received.size();
        BlockingQueue<HttpServerResponse> decodeHeld = decode.hold();
        prefill.behaviour = FakeInstance.json(500, "{}");
        other.behaviour = prefill.behaviour;
        BlockingQueue<HttpServerResponse> goodHeld = other.hold();
        CompletableFuture<HttpResponse<String>> answer = fixture.postAndGoOn(router, BODY);
        // The legs of the failed pair, then those of the next pair.
        RouterFixture.take(decodeHeld);
        HttpServerResponse good = RouterFixture.take(goodHeld);
        HttpServerResponse decoding = RouterFixture.take(decodeHeld);
        Await.until("the first decode leg closed", RouterFixture.SOON, () -> decode.aborted.get() == 1);
        assertThat(id(decode, before)).isNotEqualTo(id(decode, before + 1));
        assertThat(id(decode, before + 1)).isEqualTo(id(other, other.received.size() - 1));
        assertThat(decode.received.get(before).body()).contains("engine-1");
        assertThat(decode.received.get(before + 1).body()).contains("engine-2");
        good.end(PREFILLED.replace("engine-1", "engine-2"));
        decoding.end(RouterFixture.ANSWER);
        assertThat(RouterFixture.result(answer).statusCode()).isEqualTo(200);

        other.behaviour = FakeInstance.json(500, "{}");
        HttpResponse<String> failed = fixture.post(router, BODY);
        assertThat(failed.statusCode()).isEqualTo(502);
        assertThat(failed.body()).contains("prefill instance", "HTTP 500");
        Await.until(
                "all decode legs closed", RouterFixture.SOON, () -> decode.aborted.get() == decode.received.size() - 3);
    }

    @Test
    void aDecodeRetryIsANewHandOff() throws Exception {
        FakeInstance other = fixture.instance();
        Router router = router(List.of(prefill), List.of(decode, other));
        fixture.post(router, BODY);
        fixture.post(router, BODY);
        int prefilled = prefill.received.size();
        // A refusal ends the prefill leg, which may not have arrived yet.
        AtomicInteger refusals = new AtomicInteger();
        decode.behaviour = (request, response) -> {
            int attempt = refusals.incrementAndGet();
            Thread.startVirtualThread(() -> {
                Await.until("prefill asked", RouterFixture.SOON, () -> prefill.received.size() == prefilled + attempt);
                FakeInstance.json(503, "{}").accept(request, response);
            });
        };
        other.behaviour = decode.behaviour;
        HttpResponse<String> refused = fixture.post(router, BODY);
        assertThat(refused.statusCode()).isEqualTo(503);
        assertThat(prefill.received).hasSize(prefilled + 2);
        assertThat(List.of(id(prefill, prefilled), id(prefill, prefilled + 1)))
                .doesNotHaveDuplicates()
                .containsExactlyInAnyOrder(
                        id(decode, decode.received.size() - 1), id(other, other.received.size() - 1));
    }

    @Test
    void aClientDisconnectEndsBothLegs() throws Exception {
        Router router = router(List.of(prefill), List.of(decode));
        fixture.post(router, BODY);
        BlockingQueue<HttpServerResponse> prefillHeld = prefill.hold();
        BlockingQueue<HttpServerResponse> decodeHeld = decode.hold();
        try (RawClient client = new RawClient(router.port())) {
            client.post(RouterFixture.COMPLETIONS, BODY);
            RouterFixture.take(prefillHeld);
            RouterFixture.take(decodeHeld);
        }
        Await.until(
                "both legs closed", RouterFixture.SOON, () -> prefill.aborted.get() == 1 && decode.aborted.get() == 1);
        assertThat(fixture.metric(router, "baton:router_requests_running")).isZero();
    }

    @Test
    void decodeGetsThePlainBodyIfPrefillNamesNoBlocks() throws Exception {
        prefill.behaviour = FakeInstance.json(200, "{\"id\":\"p\"}");
        Router router = router(List.of(prefill), List.of(decode));
        assertThat(fixture.post(router, BODY).statusCode()).isEqualTo(200);
        assertThat(decode.only().body()).isEqualTo(BODY);
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "{}",
                "{\"remote_engine_id\":1,\"remote_host\":\"h\",\"remote_port\":1}",
                "{\"remote_engine_id\":\"e\",\"remote_host\":\"h\",\"remote_port\":\"1\"}",
                "{\"remote_engine_id\":\"e\",\"remote_host\":null,\"remote_port\":1}",
                "{\"remote_engine_id\":\"\",\"remote_host\":\"h\",\"remote_port\":1}",
                "{\"remote_engine_id\":\"e\",\"remote_host\":\"h\",\"remote_port\":0}",
                "{\"remote_engine_id\":\"e\",\"remote_host\":\"h\",\"remote_port\":99999999999}",
                "{\"remote_engine_id\":\"e\",\"remote_host\":\"h\",\"remote_port\":1,\"tp_size\":0}"
            })
    void malformedConnectorAddressesAreNotUsed(String params) {
        assertThat(ConnectorAddress.parse(params.getBytes(StandardCharsets.UTF_8)))
                .isEmpty();
    }
}
