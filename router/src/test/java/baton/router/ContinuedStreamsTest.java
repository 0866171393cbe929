package baton.router;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.router.FakeInstance.Received;
import baton.router.policy.PolicySettings;
import baton.router.role.RoleSettings;
import baton.router.upstream.Discovery;
import baton.testkit.Await;
import io.vertx.core.Future;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpServerResponse;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.BiConsumer;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/** Answers of a decode instance that breaks off continue at another one, by the token ids that instances send in comments. */
@Timeout(300)
class ContinuedStreamsTest {
    private static final JsonMapper MAPPER = JsonMapper.builder().build();
    private static final String BODY = "{\"prompt\":\"hello\",\"stream\":true}";
    private static final String STREAM = "{\"id\":\"cmpl-1\",\"created\":7,\"seed\":9}";
    private static final String FIRST = "data: {\"text\":\"a\"}\n\n";
    private static final String SECOND = "data: {\"text\":\"b\"}\n\n";
    private static final String DONE = "data: [DONE]\n\n";
    private static final String WHOLE = "{\"prompt\":\"hello\"}";

    @AutoClose
    private final RouterFixture fixture = new RouterFixture();

    private FakeInstance prefill;
    private FakeInstance decode;
    private FakeInstance other;

    @BeforeEach
    void startInstances() {
        prefill = fixture.instance();
        decode = fixture.instance();
        other = fixture.instance();
        other.behaviour = whole(SECOND + ":t 0 13 end\n\n" + DONE);
    }

    private Router router(FakeInstance... decodes) {
        return router(RouterFixture.LIMITS, decodes);
    }

    private Router router(RouterConfig.Limits limits, FakeInstance... decodes) {
        return fixture.start(TestConfigs.router(
                "127.0.0.1",
                0,
                RouterFixture.uris(List.of(prefill)),
                RouterFixture.uris(List.of(decodes)),
                RouterConfig.DEFAULT_FLOW,
                Optional.empty(),
                limits,
                Optional.empty(),
                PolicySettings.DEFAULT));
    }

    private static HttpServerResponse stream(HttpServerResponse response, String... events) {
        return FakeInstance.events(response.putHeader("X-Baton-Stream", STREAM), events);
    }

    private static BiConsumer<Received, HttpServerResponse> whole(String events) {
        return (_, response) -> stream(response).end(events);
    }

    /** Answers with events and closes the connection. */
    private static BiConsumer<Received, HttpServerResponse> breakingOff(String events) {
        return (_, response) -> stream(response).write(Buffer.buffer(events)).onComplete(_ -> response.reset());
    }

    private static boolean continues(Received leg) {
        return leg.body().contains("baton_continue");
    }

    private static JsonNode continued(Received leg) {
        return MAPPER.readTree(leg.body()).path("baton_continue");
    }

    private double continued(Router router) {
        return outcome(router, "continued");
    }

    /** Of answers that connections were lost of. */
    private double outcome(Router router, String label) {
        return fixture.metric(
                router, "baton:router_streams_continued_total{outcome=\"%s\",reason=\"lost\"}".formatted(label));
    }

    private void assertIsContinuedBehindTwoTokens(Router router) throws Exception {
        JsonNode expected = MAPPER.readTree(
                "{\"id\":\"cmpl-1\",\"created\":7,\"seed\":9,\"choices\":[{\"index\":0,\"token_ids\":[11,12]}]}");
        assertThat(continued(other.only())).isEqualTo(expected);
        assertThat(continued(prefill.received.getLast())).isEqualTo(expected);
        assertThat(continued(router)).isEqualTo(1);
        assertThat(fixture.metric(router, "baton:router_stream_pause_seconds_count"))
                .isEqualTo(1);
        assertThat(fixture.metric(router, "baton:router_requests_total{outcome=\"ok\"}"))
                .isEqualTo(1);
    }

    private static String error(HttpResponse<String> answer) {
        String last = answer.body().strip();
        return MAPPER.readTree(last.substring(last.lastIndexOf("data: ") + 6))
                .path("error")
                .path("message")
                .asString("");
    }

    @Test
    void anotherInstanceContinuesBehindTheTokensThatTheClientHas() throws Exception {
        decode.behaviour = breakingOff(FIRST + ":t 0 11\n\n:t 0 12\n\n" + SECOND);
        Router router = router(decode, other);

        HttpResponse<String> answer = fixture.post(router, BODY, "X-Request-Id", "mine");

        assertThat(answer.body()).isEqualTo(FIRST + SECOND + DONE);
        assertThat(answer.headers().firstValue("X-Baton-Stream")).isEmpty();
        assertThat(decode.only().headers().get("X-Baton-Token-Ids")).isEqualTo("1");
        assertThat(prefill.received).hasSize(2);
        assertThat(prefill.received.getFirst().headers().contains("X-Baton-Token-Ids"))
                .isFalse();
        assertIsContinuedBehindTwoTokens(router);
        assertThat(fixture.get(router, "/v1/requests/mine/explain", "Accept", "text/plain")
                        .body())
                .contains(decode.uri() + " broke off")
                .contains("continues the answer after 2 tokens");
    }

    @Test
    void aStreamWithTheLongestIdContinues() throws Exception {
        decode.behaviour = breakingOff(FIRST + ":t 0 11\n\n");

        fixture.post(router(decode, other), BODY, "X-Request-Id", "a".repeat(256));

        assertThat(other.only().headers().get("X-Request-Id")).isEqualTo("a".repeat(254) + ".1");
    }

    @Test
    void aThirdInstanceContinuesWhatASecondOneContinued() throws Exception {
        FakeInstance third = fixture.instance();
        CompletableFuture<HttpServerResponse> open = new CompletableFuture<>();
        List<Received> continued = new CopyOnWriteArrayList<>();
        other.behaviour = (received, response) -> {
            continued.add(received);
            if (continued.size() == 1) {
                open.complete(stream(response, ":t 0 12\n\n"));
            } else {
                stream(response).end(SECOND + ":t 0 13 end\n\n" + DONE);
            }
        };
        third.behaviour = other.behaviour;
        decode.behaviour = (received, response) ->
                (continues(received) ? other.behaviour : breakingOff(FIRST + ":t 0 11\n\n")).accept(received, response);
        Router router = router(decode, other, third);

        CompletableFuture<HttpResponse<String>> answer = fixture.postAndGoOn(router, BODY);
        HttpServerResponse second = RouterFixture.result(open);
        Await.until("the second instance continues", RouterFixture.SOON, () -> continued(router) == 1);
        second.reset();

        assertThat(RouterFixture.result(answer).body()).isEqualTo(FIRST + SECOND + DONE);
        assertThat(continued(continued.getLast()).path("choices").path(0).path("token_ids"))
                .isEqualTo(MAPPER.readTree("[11,12]"));
    }

    @Test
    void severalChoicesContinueWithoutAPrefillLeg() throws Exception {
        decode.behaviour = breakingOff(FIRST + ":t 1 5 end\n\n" + FIRST + ":t 0\n\n");
        Router router = router(decode, other);

        fixture.post(router, "{\"prompt\":\"hello\",\"stream\":true,\"n\":2}");

        assertThat(prefill.received).hasSize(1);
        assertThat(continued(other.only()).path("choices"))
                .isEqualTo(MAPPER.readTree(
                        "[{\"index\":0,\"token_ids\":[]},{\"index\":1,\"finished\":true,\"token_ids\":[5]}]"));
    }

    @ParameterizedTest
    @ValueSource(ints = {400, 500})
    void theDecodeInstanceComputesThePromptIfPrefillIsGoneToo(int status) throws Exception {
        decode.behaviour = (_, response) -> stream(response)
                .write(Buffer.buffer(FIRST + ":t 0 11\n\n"))
                .onComplete(_ -> {
                    prefill.behaviour = FakeInstance.json(status, "{}");
                    response.reset();
                });

        assertThat(fixture.post(router(decode, other), BODY).body()).isEqualTo(FIRST + SECOND + DONE);
        assertThat(continued(other.only()).path("choices")).hasSize(1);
    }

    @Test
    void aStreamLeavesAnInstanceThatIsSilent() throws Exception {
        decode.behaviour = (_, response) -> stream(response, FIRST + ":t 0 11\n\n");
        RouterConfig.Limits limits = RouterFixture.LIMITS.withContinueAfter(Optional.of(Duration.ofMillis(150)));

        assertThat(fixture.post(router(limits, decode, other), BODY).body()).isEqualTo(FIRST + SECOND + DONE);
        Await.until("the leg ends", RouterFixture.SOON, () -> decode.aborted.get() == 1);
    }

    @Test
    void aStreamLeavesTheNextInstanceTooIfThatHangs() throws Exception {
        FakeInstance third = fixture.instance();
        CompletableFuture<FakeInstance> hung = new CompletableFuture<>();
        for (FakeInstance each : List.of(other, third)) {
            each.behaviour = (received, response) -> {
                if (hung.complete(each)) {
                    each.health = 500;
                } else {
                    whole(SECOND + ":t 0 13 end\n\n" + DONE).accept(received, response);
                }
            };
        }
        decode.behaviour = breakingOff(FIRST + ":t 0 11\n\n");
        RouterConfig.Limits limits = RouterFixture.LIMITS.withContinueAfter(Optional.of(Duration.ofSeconds(1)));
        Router router = router(limits, decode, other, third);

        assertThat(fixture.post(router, BODY, "X-Request-Id", "mine").body()).isEqualTo(FIRST + SECOND + DONE);
        assertThat(fixture.get(router, "/v1/requests/mine/explain").body())
                .contains(RouterFixture.result(hung).uri() + ": no answer within 1s, nor to health probes");
    }

    @Test
    void aStreamGoesBackToAnInstanceThatWasSilent() throws Exception {
        decode.behaviour = (received, response) -> {
            if (continues(received)) {
                stream(response).end(SECOND + ":t 0 13 end\n\n" + DONE);
            } else {
                stream(response, FIRST + ":t 0 11\n\n");
            }
        };
        other.behaviour = (_, response) -> stream(response, ":t 0 12\n\n");
        RouterConfig.Limits limits = RouterFixture.LIMITS.withContinueAfter(Optional.of(Duration.ofMillis(100)));

        assertThat(fixture.post(router(limits, decode, other), BODY).body()).isEqualTo(FIRST + SECOND + DONE);
        assertThat(continued(decode.received.getLast()).at("/choices/0/token_ids"))
                .isEqualTo(MAPPER.readTree("[11,12]"));
    }

    @Test
    void aStreamStaysAtTheOnlyInstanceThatIsSilent() throws Exception {
        CompletableFuture<HttpServerResponse> open = new CompletableFuture<>();
        decode.behaviour = (_, response) -> open.complete(stream(response, FIRST + ":t 0 11\n\n"));
        RouterConfig.Limits limits = RouterFixture.LIMITS.withContinueAfter(Optional.of(Duration.ofMillis(30)));
        Router router = router(limits, decode);
        CompletableFuture<HttpResponse<String>> answer = fixture.postAndGoOn(router, BODY);
        HttpServerResponse response = RouterFixture.result(open);
        Await.until(
                "the first event",
                RouterFixture.SOON,
                () -> fixture.metric(router, "baton:router_first_byte_seconds_count") > 0);

        assertThatThrownBy(() -> answer.get(150, TimeUnit.MILLISECONDS)).isInstanceOf(TimeoutException.class);
        response.end(SECOND + ":t 0 13 end\n\n" + DONE);

        assertThat(RouterFixture.result(answer).body()).isEqualTo(FIRST + SECOND + DONE);
        assertThat(decode.aborted.get()).isZero();
    }

    @Test
    void aStreamWaitsForTheOnlyInstance() throws Exception {
        CompletableFuture<HttpServerResponse> open = new CompletableFuture<>();
        decode.behaviour = (_, response) -> open.complete(stream(response, FIRST + ":t 0 11\n\n"));
        Router router = router(decode);
        CompletableFuture<HttpResponse<String>> answer = fixture.postAndGoOn(router, BODY);
        RouterFixture.result(open);
        Await.until(
                "the first event",
                RouterFixture.SOON,
                () -> fixture.metric(router, "baton:router_first_byte_seconds_count") > 0);

        decode.stop();
        decode.behaviour = whole(SECOND + ":t 0 13 end\n\n" + DONE);
        decode.restart();

        assertThat(RouterFixture.result(answer).body()).isEqualTo(FIRST + SECOND + DONE);
    }

    @Test
    void aDrainedInstanceHandsItsStreamsOver() throws Exception {
        String address = "\"remote_engine_id\":\"e\",\"remote_host\":\"h\",\"remote_port\":5,\"tp_size\":1";
        decode.ahead = FakeInstance.json(200, "{\"kv_transfer_params\":{\"do_remote_prefill\":true," + address + "}}");
        CompletableFuture<HttpServerResponse> open = new CompletableFuture<>();
        decode.behaviour = (received, response) -> {
            if (!open.complete(response)) {
                FakeInstance.json(200, "{\"prompt_token_ids\":[3]}").accept(received, response);
            }
        };
        Router router = fixture.start(TestConfigs.router(
                "127.0.0.1",
                0,
                RouterFixture.uris(List.of(prefill)),
                RouterFixture.uris(List.of(decode, other)),
                "kv_transfer_params_push",
                Optional.empty(),
                RouterFixture.LIMITS,
                Optional.empty(),
                PolicySettings.DEFAULT));
        Await.until("the probe asks", RouterFixture.SOON, () -> !decode.asked.isEmpty());
        CompletableFuture<HttpResponse<String>> answer = fixture.postAndGoOn(router, BODY);
        HttpServerResponse response = RouterFixture.result(open);
        decode.health = 503;
        fixture.awaitUp(router, "decode", 1);

        stream(response, FIRST + ":t 0 11\n\n");

        assertThat(RouterFixture.result(answer).body()).isEqualTo(FIRST + SECOND + DONE);
        assertThat(prefill.received).hasSize(1);
        assertThat(decode.received.getLast().headers().get("X-Baton-Move")).isEqualTo("1");
        assertThat(continued(decode.received.getLast())).isEqualTo(continued(other.only()));
        assertThat(fixture.metric(
                        router, "baton:router_streams_continued_total{outcome=\"continued\",reason=\"leaving\"}"))
                .isEqualTo(1);
    }

    @Test
    void anInstanceWithAFullCacheGivesAStreamToOneWithRoom() throws Exception {
        String address = "\"remote_engine_id\":\"e\",\"remote_host\":\"h\",\"remote_port\":5,\"tp_size\":1";
        decode.ahead = FakeInstance.json(200, "{\"kv_transfer_params\":{\"do_remote_prefill\":true," + address + "}}");
        List<HttpServerResponse> open = new CopyOnWriteArrayList<>();
        decode.behaviour = using("0.9", (received, response) -> {
            if (continues(received)) {
                FakeInstance.json(200, "{\"prompt_token_ids\":[3]}").accept(received, response);
            } else {
                open.add(stream(response, FIRST + ":t 0 11\n\n"));
            }
        });
        other.behaviour = using("0.1", other.behaviour);
        Router router = fixture.start(TestConfigs.router(
                "127.0.0.1",
                0,
                RouterFixture.uris(List.of(prefill)),
                RouterFixture.uris(List.of(decode, other)),
                "kv_transfer_params_push",
                Optional.empty(),
                RouterFixture.LIMITS,
                Optional.empty(),
                PolicySettings.DEFAULT,
                false,
                new RouterConfig.Sources(
                        Discovery.Settings.NONE,
                        Optional.empty(),
                        new RoleSettings(Duration.ofSeconds(1), RoleSettings.Mode.OFF, Duration.ofSeconds(1), true),
                        Optional.empty())));
        CompletableFuture<HttpResponse<String>> first = fixture.postAndGoOn(router, BODY);
        Await.until("the first stream", RouterFixture.SOON, () -> open.size() == 1);
        fixture.post(router, BODY);
        CompletableFuture<HttpResponse<String>> second = fixture.postAndGoOn(router, BODY);
        Await.until("the second stream", RouterFixture.SOON, () -> open.size() == 2);

        Await.until("a stream moves", RouterFixture.SOON, () -> {
            open.forEach(response -> response.write(":t 0\n\n"));
            return fixture.metric(
                            router, "baton:router_streams_continued_total{outcome=\"continued\",reason=\"balance\"}")
                    >= 1;
        });

        Object moved = RouterFixture.result(CompletableFuture.anyOf(first, second));
        assertThat(((HttpResponse<?>) moved).body()).isEqualTo(FIRST + SECOND + DONE);
        open.forEach(response -> response.end(SECOND + ":t 0 13 end\n\n" + DONE));
        assertThat(RouterFixture.result(first).body()).isEqualTo(FIRST + SECOND + DONE);
        assertThat(RouterFixture.result(second).body()).isEqualTo(FIRST + SECOND + DONE);
        assertThat(decode.received).anyMatch(leg -> leg.headers().contains("X-Baton-Move"));
    }

    /** An instance with that share of its KV blocks in use. */
    private static BiConsumer<Received, HttpServerResponse> using(
            String share, BiConsumer<Received, HttpServerResponse> behaviour) {
        return (received, response) -> {
            if (received.uri().equals("/metrics")) {
                response.end("# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{engine=\"0\"} " + share
                        + "\n");
            } else {
                behaviour.accept(received, response);
            }
        };
    }

    @ParameterizedTest
    @ValueSource(ints = {500, 503})
    void aPromptThatIsComputedWhileItsDecodeInstanceLeavesGoesToAnotherOne(int health) throws Exception {
        CompletableFuture<HttpServerResponse> open = new CompletableFuture<>();
        prefill.behaviour = (_, response) -> open.complete(response);
        Router router = router(decode, other);
        CompletableFuture<HttpResponse<String>> answer = fixture.postAndGoOn(router, BODY);
        HttpServerResponse computed = RouterFixture.result(open);
        decode.health = health;
        fixture.awaitUp(router, "decode", 1);

        FakeInstance.json(200, RouterFixture.ANSWER).accept(prefill.only(), computed);

        assertThat(RouterFixture.result(answer).body()).isEqualTo(SECOND + DONE);
        assertThat(decode.received).isEmpty();
        assertThat(prefill.received).hasSize(1);
    }

    @Test
    void anInstanceWithoutTokenIdsEndsTheStreamWithAnErrorThatSaysSo() throws Exception {
        decode.behaviour = (_, response) ->
                FakeInstance.events(response).write(Buffer.buffer(FIRST)).onComplete(_ -> response.reset());
        Router router = router(decode, other);

        HttpResponse<String> answer = fixture.post(router, BODY);

        assertThat(answer.body()).startsWith(FIRST);
        assertThat(error(answer)).endsWith("another instance cannot continue: the instance sends no token ids");
        assertThat(other.received).isEmpty();
        assertThat(fixture.metric(
                        router, "baton:router_streams_continued_total{outcome=\"impossible\",reason=\"lost\"}"))
                .isEqualTo(1);
    }

    @Test
    void aRefusedContinuationEndsTheStreamWithItsReason() throws Exception {
        decode.behaviour = breakingOff(FIRST + ":t 0 11\n\n");
        other.behaviour = FakeInstance.json(400, "{\"error\":{\"message\":\"too long\"}}");

        assertThat(error(fixture.post(router(decode, other), BODY)))
                .contains("it cannot continue the stream: HTTP 400")
                .contains("too long");
    }

    @Test
    void aDecodeInstanceThatRefusesWhatAPrefillInstanceHasComputedComputesIt() throws Exception {
        decode.behaviour = breakingOff(FIRST + ":t 0 11\n\n");
        BiConsumer<Received, HttpServerResponse> continues = other.behaviour;
        other.behaviour = (received, response) -> (other.received.size() == 1
                        ? FakeInstance.json(500, "{\"error\":{\"message\":\"KV load failed\"}}")
                        : continues)
                .accept(received, response);

        assertThat(fixture.post(router(decode, other), BODY).body()).isEqualTo(FIRST + SECOND + DONE);
        assertThat(other.received).hasSize(2);
        assertThat(prefill.received).hasSize(2);
    }

    @Test
    void aStreamContinuesAtAnInstanceThatDoesNotRefuseIt() throws Exception {
        FakeInstance third = fixture.instance();
        third.behaviour = other.behaviour;
        decode.behaviour = breakingOff(FIRST + ":t 0 11\n\n");
        other.behaviour = FakeInstance.json(404, "{\"error\":{\"message\":\"no such model\"}}");

        assertThat(fixture.post(router(decode, other, third), BODY).body()).isEqualTo(FIRST + SECOND + DONE);
    }

    @Test
    void fewInstancesFailWithOneStream() throws Exception {
        FakeInstance third = fixture.instance();
        FakeInstance fourth = fixture.instance();
        decode.behaviour = breakingOff(FIRST + ":t 0 11\n\n");
        BiConsumer<Received, HttpServerResponse> dies = (_, response) -> response.reset();
        other.behaviour = dies;
        third.behaviour = dies;
        fourth.behaviour = dies;

        assertThat(error(fixture.post(router(decode, other, third, fourth), BODY)))
                .contains("too many instances have failed with it");
        assertThat(fourth.received).isEmpty();
    }

    @Test
    void clientsCannotContinueStreams() throws Exception {
        HttpResponse<String> answer = fixture.post(
                router(decode, other), "{\"prompt\":\"hello\",\"baton_continue\":{}}", "X-Baton-Token-Ids", "1");

        assertThat(answer.statusCode()).isEqualTo(400);
        assertThat(answer.body()).contains("baton_continue");
        decode.behaviour = FakeInstance.json(200, RouterFixture.ANSWER);
        Router router = router(RouterFixture.LIMITS.withContinueAfter(Optional.empty()), decode);
        fixture.post(router, WHOLE, "X-Baton-Token-Ids", "1", "X-Baton-Move", "1");
        assertThat(decode.only().headers().names()).doesNotContain("X-Baton-Token-Ids", "X-Baton-Move");
    }

    @Test
    void aRefusalWithoutABodyEndsTheStreamWithAnError() throws Exception {
        decode.behaviour = breakingOff(FIRST + ":t 0 11\n\n");
        other.behaviour = FakeInstance.json(500, "");

        assertThat(error(fixture.post(router(decode, other), BODY)))
                .contains("it cannot continue the stream: HTTP 500");
        assertThat(other.received).hasSize(2);
    }

    /** Sends token ids of a whole answer. */
    private static HttpServerResponse tokens(HttpServerResponse response, String comments) {
        response.putHeader("X-Baton-Stream", STREAM)
                .putHeader("Content-Type", "application/json")
                .setChunked(true)
                .write(comments);
        return response;
    }

    private static BiConsumer<Received, HttpServerResponse> tokensAndThen(String comments, String end) {
        return (_, response) -> tokens(response, comments).end(end);
    }

    private static BiConsumer<Received, HttpServerResponse> tokensAndNoMore(String comments) {
        return (_, response) -> {
            response.putHeader("X-Baton-Stream", STREAM).setChunked(true);
            response.write(Buffer.buffer(comments)).onComplete(_ -> response.reset());
        };
    }

    private void assertIsTheAnswer(HttpResponse<String> answer) {
        assertThat(answer.body()).isEqualTo(RouterFixture.ANSWER);
        assertThat(answer.statusCode()).isEqualTo(200);
        assertThat(answer.headers().firstValue("Content-Type")).contains("application/json");
        assertThat(answer.headers().firstValueAsLong("Content-Length")).hasValue(RouterFixture.ANSWER.length());
        assertThat(answer.headers().firstValue("X-Baton-Stream")).isEmpty();
    }

    @Test
    void aWholeAnswerHasNoneOfTheTokenIdsBeforeIt() throws Exception {
        decode.behaviour = tokensAndThen(":t 0 11\n\n:t 0 12\n\n", RouterFixture.ANSWER);
        Router router = router(decode);

        assertIsTheAnswer(fixture.post(router, WHOLE));
        assertThat(decode.only().headers().get("X-Baton-Token-Ids")).isEqualTo("1");
        assertThat(fixture.metric(router, "baton:router_inter_token_latency_seconds_count"))
                .isZero();
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void anotherInstanceContinuesAWholeAnswer(boolean sendsMoreTokens) throws Exception {
        decode.behaviour = tokensAndNoMore(":t 0 11\n\n:t 0 12\n\n");
        other.behaviour = sendsMoreTokens
                ? tokensAndThen(":t 0 13\n\n", RouterFixture.ANSWER)
                : FakeInstance.json(200, RouterFixture.ANSWER);
        Router router = router(decode, other);

        assertIsTheAnswer(fixture.post(router, WHOLE));

        assertIsContinuedBehindTwoTokens(router);
    }

    /** An instance that does not know how to continue it, one that fails, and one of vLLM, which is not asked. */
    @ParameterizedTest
    @ValueSource(ints = {400, 500, 0})
    void aWholeAnswerThatNoInstanceContinuesBeginsAnew(int refusal) throws Exception {
        decode.behaviour = tokensAndNoMore(":t 0 11\n\n");
        other.behaviour = (received, response) -> (continues(received)
                        ? FakeInstance.json(refusal, "{\"error\":{\"message\":\"unknown field\"}}")
                        : FakeInstance.json(200, RouterFixture.ANSWER))
                .accept(received, response);
        Router router = fixture.start(TestConfigs.router(
                "127.0.0.1",
                0,
                RouterFixture.uris(List.of(prefill)),
                List.of(decode.uri(), refusal == 0 ? vllm(other) : other.uri()),
                RouterConfig.DEFAULT_FLOW,
                Optional.empty(),
                RouterFixture.LIMITS));

        assertIsTheAnswer(fixture.post(router, WHOLE, "X-Request-Id", "mine"));

        assertThat(decode.received).hasSize(1);
        assertThat(other.received).hasSize(refusal == 0 ? 1 : 2);
        assertThat(continues(other.received.getLast())).isFalse();
        assertThat(outcome(router, "anew")).isEqualTo(1);
        assertThat(outcome(router, "continued")).isZero();
        assertThat(fixture.metric(router, "baton:router_stream_pause_seconds_count"))
                .isZero();
        assertThat(fixture.metric(router, "baton:router_requests_total{outcome=\"ok\"}"))
                .isEqualTo(1);
        assertThat(fixture.get(router, "/v1/requests/mine/explain").body())
                .contains("no instance continues the answer: it begins anew");
    }

    @Test
    void aWholeAnswerThatHasBegunAnewContinues() throws Exception {
        decode.behaviour = (received, response) -> (continues(received)
                        ? FakeInstance.json(200, RouterFixture.ANSWER)
                        : tokensAndNoMore(":t 0 11\n\n"))
                .accept(received, response);
        other.behaviour = (received, response) -> (continues(received)
                        ? FakeInstance.json(400, "{}")
                        : tokensAndNoMore(":t 0 21\n\n"))
                .accept(received, response);
        Router router = router(decode, other);

        assertIsTheAnswer(fixture.post(router, WHOLE));

        assertThat(continued(decode.received.getLast()).at("/choices/0/token_ids"))
                .isEqualTo(MAPPER.readTree("[21]"));
        assertThat(outcome(router, "anew")).isEqualTo(1);
        assertThat(outcome(router, "continued")).isEqualTo(1);
    }

    @Test
    void aWholeAnswerThatBeginsAnewWaitsForAnInstance() throws Exception {
        CompletableFuture<HttpServerResponse> open = new CompletableFuture<>();
        decode.behaviour = tokensAndNoMore(":t 0 11\n\n");
        other.behaviour = (received, response) -> {
            if (continues(received)) {
                FakeInstance.json(400, "{}").accept(received, response);
            } else {
                open.complete(response);
            }
        };
        Router router = router(decode, other);
        CompletableFuture<HttpResponse<String>> answer = fixture.postAndGoOn(router, WHOLE);
        HttpServerResponse response = RouterFixture.result(open);
        decode.health = 503;
        fixture.awaitUp(router, "decode", 1);

        other.health = 503;
        fixture.awaitUp(router, "decode", 0);
        response.reset();
        Await.until(
                "it waits",
                RouterFixture.SOON,
                () -> fixture.metric(router, "baton:router_instance_waits_total{role=\"decode\"}") > 0);
        other.behaviour = FakeInstance.json(200, RouterFixture.ANSWER);
        other.health = 200;

        assertIsTheAnswer(RouterFixture.result(answer));
    }

    /** Of which no token is known, and which continues one. */
    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void aWholeAnswerThatBreaksOffInItsTextComesFromAnotherInstance(boolean isContinued) throws Exception {
        BiConsumer<Received, HttpServerResponse> half = (_, response) -> response.putHeader("Content-Length", "1000")
                .write(RouterFixture.ANSWER)
                .onComplete(_ -> response.reset());
        decode.behaviour = isContinued
                ? (received, response) -> (continues(received)
                                ? FakeInstance.json(200, RouterFixture.ANSWER)
                                : tokensAndNoMore(":t 0 11\n\n"))
                        .accept(received, response)
                : half;
        other.behaviour = (received, response) -> (isContinued && other.received.size() == 1
                        ? half
                        : FakeInstance.json(200, RouterFixture.ANSWER))
                .accept(received, response);

        assertIsTheAnswer(fixture.post(router(decode, other), WHOLE));
    }

    @Test
    void everyInstanceGetsTheLogProbabilitiesOfAllFormerOnes() throws Exception {
        List<JsonNode> continued = new CopyOnWriteArrayList<>();
        decode.behaviour = (received, response) -> {
            continued.add(continued(received).path("choices"));
            (switch (continued.size()) {
                        case 1 -> tokensAndNoMore(":t 1 5:A\n\n:t 0 11:ab_-,12:e0\n\n");
                        case 2 -> tokensAndNoMore(":t 0 13:9A9,14:-1\n\n");
                        default -> FakeInstance.json(200, RouterFixture.ANSWER);
                    })
                    .accept(received, response);
        };
        other.behaviour = decode.behaviour;

        assertIsTheAnswer(fixture.post(router(decode, other), "{\"prompt\":\"hello\",\"n\":2,\"logprobs\":1}"));

        assertThat(continued).hasSize(3);
        assertThat(continued.getLast()).isEqualTo(MAPPER.readTree("""
                        [{"index":0,"token_ids":[11,12,13,14],"logprobs":["ab_-","e0","9A9","-1"]},
                         {"index":1,"token_ids":[5],"logprobs":["A"]}]"""));
    }

    @Test
    void aWholeAnswerWithMoreLogProbabilitiesThanAreKeptBeginsAnewElsewhere() throws Exception {
        decode.behaviour =
                tokensAndNoMore(":t 0 11:" + "A".repeat(TokenComments.MOST_LOGPROBS) + "\n\n:t 0 12:AAAA\n\n");
        Router router = router(decode, other);
        other.behaviour = tokensAndThen(":t 0 11:AAAA\n\n", RouterFixture.ANSWER);

        assertIsTheAnswer(fixture.post(router, WHOLE, "X-Request-Id", "mine"));

        assertThat(continued(other.only()))
                .isEqualTo(MAPPER.readTree("{\"id\":\"cmpl-1\",\"created\":7,\"seed\":9,\"choices\":[]}"));
        assertThat(fixture.get(router, "/v1/requests/mine/explain", "Accept", "text/plain")
                        .body())
                .contains("continues the answer after 2 tokens, which are generated again");
    }

    @Test
    void aWholeAnswerWithMoreLogProbabilitiesThanAreKeptStaysAtADrainedInstance() throws Exception {
        CompletableFuture<HttpServerResponse> open = new CompletableFuture<>();
        decode.behaviour = (_, response) ->
                open.complete(tokens(response, ":t 0 11:" + "A".repeat(TokenComments.MOST_LOGPROBS) + "\n\n"));
        Router router = router(decode, other);
        CompletableFuture<HttpResponse<String>> answer = fixture.postAndGoOn(router, WHOLE);
        HttpServerResponse response = RouterFixture.result(open);
        decode.health = 503;
        fixture.awaitUp(router, "decode", 1);

        response.write(":t 0 12:AAAA\n\n");
        response.end(RouterFixture.ANSWER);

        assertIsTheAnswer(RouterFixture.result(answer));
        assertThat(other.received).isEmpty();
    }

    @Test
    void aWholeAnswerThatIsAnErrorBehindTokenIdsHasItsStatus() throws Exception {
        decode.behaviour = tokensAndThen(":t 0 11\n\n:status 500\n\n", "{\"error\":{\"message\":\"not finite\"}}");

        HttpResponse<String> answer = fixture.post(router(decode, other), WHOLE);

        assertThat(answer.statusCode()).isEqualTo(500);
        assertThat(answer.body()).isEqualTo("{\"error\":{\"message\":\"not finite\"}}");
        assertThat(other.received).isEmpty();
    }

    @Test
    void anErrorThatBreaksOffLeavesNoStatusForTheAnswerThatContinues() throws Exception {
        decode.behaviour = tokensAndNoMore(":t 0 11\n\n:status 500\n\n{\"error\":");
        other.behaviour = tokensAndThen(":t 0 13\n\n", RouterFixture.ANSWER);

        assertIsTheAnswer(fixture.post(router(decode, other), WHOLE));
    }

    @Test
    void fewInstancesFailWithOneWholeAnswerWithoutATokenInBetween() throws Exception {
        FakeInstance third = fixture.instance();
        FakeInstance fourth = fixture.instance();
        decode.behaviour = tokensAndNoMore(":t 0 11\n\n");
        BiConsumer<Received, HttpServerResponse> dies = (_, response) -> response.reset();
        other.behaviour = dies;
        third.behaviour = dies;
        fourth.behaviour = dies;

        HttpResponse<String> answer = fixture.post(router(decode, other, third, fourth), WHOLE);

        assertThat(answer.statusCode()).isEqualTo(502);
        assertThat(answer.body()).contains("too many instances have failed with it");
        assertThat(fourth.received).isEmpty();
    }

    @Test
    void aWholeAnswerLeavesAnInstanceThatIsSilent() throws Exception {
        decode.behaviour = (_, response) -> tokens(response, ":t 0 11\n\n");
        other.behaviour = tokensAndThen(":t 0 13\n\n", RouterFixture.ANSWER);
        RouterConfig.Limits limits = RouterFixture.LIMITS.withContinueAfter(Optional.of(Duration.ofMillis(150)));

        assertIsTheAnswer(fixture.post(router(limits, decode, other), WHOLE));
        Await.until("the leg ends", RouterFixture.SOON, () -> decode.aborted.get() == 1);
    }

    @Test
    void aDrainedInstanceHandsAWholeAnswerOver() throws Exception {
        CompletableFuture<HttpServerResponse> open = new CompletableFuture<>();
        decode.behaviour = (_, response) -> open.complete(response);
        other.behaviour = tokensAndThen(":t 0 13\n\n", RouterFixture.ANSWER);
        Router router = router(decode, other);
        CompletableFuture<HttpResponse<String>> answer = fixture.postAndGoOn(router, WHOLE);
        HttpServerResponse response = RouterFixture.result(open);
        decode.health = 503;
        fixture.awaitUp(router, "decode", 1);

        tokens(response, ":t 0 11\n\n");

        assertIsTheAnswer(RouterFixture.result(answer));
        assertThat(continued(other.only()).at("/choices/0/token_ids")).isEqualTo(MAPPER.readTree("[11]"));
        assertThat(fixture.metric(
                        router, "baton:router_streams_continued_total{outcome=\"continued\",reason=\"leaving\"}"))
                .isEqualTo(1);
    }

    @Test
    void aWholeAnswerOfWhichTheClientHasAPartDoesNotContinue() throws Exception {
        // More than the router holds back.
        decode.behaviour = tokensAndNoMore(":t 0 11\n\n{\"text\":\"" + "a".repeat(3 << 20));

        assertThatThrownBy(() -> fixture.post(router(decode, other), WHOLE)).hasRootCauseInstanceOf(IOException.class);
        assertThat(other.received).isEmpty();
    }

    @Test
    void aWholeAnswerComesFromAnInstanceThatWasStartedAnew() throws Exception {
        CompletableFuture<HttpServerResponse> open = new CompletableFuture<>();
        decode.behaviour = (_, response) -> response.reset();
        other.behaviour = (_, response) -> open.complete(response);
        Router router = router(decode, other);
        CompletableFuture<HttpResponse<String>> answer = fixture.postAndGoOn(router, "{\"prompt\":\"hello\"}");
        HttpServerResponse second = RouterFixture.result(open);
        decode.stop();
        fixture.awaitUp(router, "decode", 1);
        decode.behaviour = FakeInstance.json(200, RouterFixture.ANSWER);
        decode.restart();
        fixture.awaitUp(router, "decode", 2);

        second.reset();

        assertThat(RouterFixture.result(answer).body()).isEqualTo(RouterFixture.ANSWER);
        assertThat(decode.received).hasSize(2);
    }

    @Test
    void aWholeAnswerGetsAnotherPrefillInstanceForEachDecodeInstance() throws Exception {
        FakeInstance second = fixture.instance();
        BiConsumer<Received, HttpServerResponse> computes =
                FakeInstance.json(200, "{\"kv_transfer_params\":{\"remote_engine_id\":\"p\"}}");
        BiConsumer<Received, HttpServerResponse> breaksOff = (_, response) -> response.reset();
        prefill.behaviour = (received, response) ->
                (prefill.received.size() == 1 ? breaksOff : computes).accept(received, response);
        second.behaviour =
                (received, response) -> (second.received.size() == 1 ? computes : breaksOff).accept(received, response);
        decode.behaviour = breaksOff;
        other.behaviour = FakeInstance.json(200, RouterFixture.ANSWER);
        Router router = fixture.start(TestConfigs.router(
                "127.0.0.1",
                0,
                RouterFixture.uris(List.of(prefill, second)),
                RouterFixture.uris(List.of(decode, other)),
                "kv_transfer_params",
                Optional.empty(),
                RouterFixture.LIMITS));

        assertThat(fixture.post(router, "{\"prompt\":\"hello\"}").body()).isEqualTo(RouterFixture.ANSWER);
        assertThat(prefill.received).hasSize(2);
        assertThat(second.received).hasSizeGreaterThan(1);
    }

    /** A router before vLLM instances. */
    private Router ofVllm(String flow) {
        prefill.behaviour = FakeInstance.json(200, "{\"kv_transfer_params\":{\"remote_engine_id\":\"p\"}}");
        return fixture.start(TestConfigs.router(
                "127.0.0.1",
                0,
                List.of(vllm(prefill)),
                List.of(vllm(decode), vllm(other)),
                flow,
                Optional.empty(),
                RouterFixture.LIMITS));
    }

    private static URI vllm(FakeInstance instance) {
        return URI.create(instance.uri() + "?connector=NixlConnector");
    }

    private static BiConsumer<Received, HttpServerResponse> events(boolean whole, String... data) {
        return (_, response) -> {
            FakeInstance.events(response);
            List<Future<Void>> written = new ArrayList<>();
            for (String each : data) {
                written.add(response.write("data: " + each + "\n\n"));
            }
            written.getLast().onComplete(_ -> {
                if (whole) {
                    response.end();
                } else {
                    response.reset();
                }
            });
        };
    }

    @Test
    void aStreamOfVllmContinuesByItsTokens() throws Exception {
        decode.behaviour = events(
                false,
                "{\"id\":\"c-1\",\"created\":7,\"choices\":[{\"index\":0,\"text\":\"a\",\"prompt_token_ids\":[3, 4],\"token_ids\":[11]}]}",
                "{\"id\":\"c-1\",\"created\":7,\"choices\":[{\"index\":0,\"text\":\"\",\"token_ids\":[12]}]}",
                "{\"id\":\"c-1\",\"created\":7,\"choices\":[{\"index\":0,\"text\":\"b\",\"token_ids\":[13]}]}",
                "{\"id\":\"c-1\",\"created\":7,\"choices\":[{\"index\":0,\"text\":\"\",\"token_ids\":[14]}]}");
        other.behaviour = events(
                true,
                "{\"id\":\"c-2\",\"created\":8,\"choices\":[{\"index\":0,\"text\":\"c\",\"prompt_token_ids\":[3,4,11,12,13],\"token_ids\":[14,15]}]}",
                "{\"id\":\"c-2\",\"created\":8,\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2,\"total_tokens\":7}}",
                "[DONE]");
        Router router = ofVllm("kv_transfer_params");

        HttpResponse<String> answer = fixture.post(
                router,
                "{\"prompt\":[3,4],\"stream\":true,\"max_tokens\":9,\"min_tokens\":2,\"stop\":[]}",
                "X-Request-Id",
                "mine");

        assertThat(answer.body()).isEqualTo("""
                        data: {"id":"c-1","created":7,"choices":[{"index":0,"text":"a"}]}

                        data: {"id":"c-1","created":7,"choices":[{"index":0,"text":""}]}

                        data: {"id":"c-1","created":7,"choices":[{"index":0,"text":"b"}]}

                        data: {"id":"c-1","created":7,"choices":[{"index":0,"text":""}]}

                        data: {"id":"c-1","created":7,"choices":[{"index":0,"text":"c"}]}

                        data: {"id":"c-1","created":7,"choices":[],"usage":{"prompt_tokens":2,"completion_tokens":5,"total_tokens":7}}

                        data: [DONE]

                        """);
        assertThat(decode.only().headers().contains("X-Baton-Token-Ids")).isFalse();
        JsonNode leg = MAPPER.readTree(other.only().body());
        assertThat(leg.path("prompt")).isEqualTo(MAPPER.readTree("[3,4,11,12,13]"));
        assertThat(leg.path("max_tokens").asInt()).isEqualTo(6);
        assertThat(leg.path("min_tokens").asInt()).isZero();
        assertThat(leg.path("return_token_ids").asBoolean()).isTrue();
        assertThat(leg.at("/kv_transfer_params/remote_engine_id").asString()).isEqualTo("p");
        assertThat(MAPPER.readTree(prefill.received.getLast().body()).path("prompt"))
                .isEqualTo(leg.path("prompt"));
        assertThat(fixture.get(router, "/v1/requests/mine/explain", "Accept", "text/plain")
                        .body())
                .contains("continues the answer after 3 tokens, the rest is drawn anew");
    }

    @Test
    void aChatOfVllmContinuesWithoutAnotherBeginning() throws Exception {
        String role =
                "{\"id\":\"c-%d\",\"prompt_token_ids\":%s,\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}";
        String content =
                "{\"id\":\"c-%d\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%s\"},\"token_ids\":[%d]}]}";
        decode.behaviour = events(false, role.formatted(1, "[3,4]"), content.formatted(1, "a", 11));
        other.behaviour = events(true, role.formatted(2, "[3,4,11]"), content.formatted(2, "b", 12), "[DONE]");

        HttpResponse<String> answer = fixture.postTo(
                ofVllm("kv_transfer_params"),
                "/v1/chat/completions",
                "{\"messages\":[],\"stream\":true,\"temperature\":0,\"max_completion_tokens\":5}");

        assertThat(answer.body()).isEqualTo("""
                        data: {"id":"c-1","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}

                        data: {"id":"c-1","choices":[{"index":0,"delta":{"content":"a"}}]}

                        data: {"id":"c-1","choices":[{"index":0,"delta":{"content":"b"}}]}

                        data: [DONE]

                        """);
        JsonNode leg = MAPPER.readTree(other.only().body());
        assertThat(leg.at("/kv_transfer_params/prompt_token_ids")).isEqualTo(MAPPER.readTree("[3,4,11]"));
        assertThat(leg.path("max_completion_tokens").asInt()).isEqualTo(4);
        assertThat(leg.has("max_tokens")).isFalse();
    }

    @Test
    void anAnswerThatBeginsAnewDoesNotContinueAStreamOfVllm() throws Exception {
        String event =
                "{\"id\":\"c-1\",\"prompt_token_ids\":[3,4],\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"a\"},\"token_ids\":[11]}]}";
        decode.behaviour = events(false, event);
        other.behaviour = events(true, event, "[DONE]");

        Router router = ofVllm("kv_transfer_params");
        HttpResponse<String> answer =
                fixture.postTo(router, "/v1/chat/completions", "{\"messages\":[],\"stream\":true}");

        assertThat(error(answer)).contains("its prompt is not the stream's with the tokens so far");
        assertThat(answer.body().split("\"content\":\"a\"", -1)).hasSize(2);
        assertThat(continued(router)).isZero();
    }

    @Test
    void anEventWithTextBesideItsRoleContinuesAStreamOfVllm() throws Exception {
        String event =
                "{\"id\":\"c-1\",\"prompt_token_ids\":%s,\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"%s\"},\"token_ids\":[%d]}]}";
        decode.behaviour = events(false, event.formatted("[3,4]", "a", 11));
        other.behaviour = events(true, event.formatted("[3,4,11]", "b", 12), "[DONE]");

        HttpResponse<String> answer = fixture.postTo(
                ofVllm("kv_transfer_params"), "/v1/chat/completions", "{\"messages\":[],\"stream\":true}");

        assertThat(answer.body()).isEqualTo("""
                        data: {"id":"c-1","choices":[{"index":0,"delta":{"role":"assistant","content":"a"}}]}

                        data: {"id":"c-1","choices":[{"index":0,"delta":{"content":"b"}}]}

                        data: [DONE]

                        """);
    }

    @Test
    void aStreamOfVllmThatCannotContinueSaysWhy() throws Exception {
        decode.behaviour = events(false, "{\"choices\":[{\"index\":0,\"text\":\"a\"}]}");

        HttpResponse<String> answer =
                fixture.post(ofVllm("kv_transfer_params"), "{\"prompt\":\"hello\",\"stream\":true,\"stop\":[\"x\"]}");

        assertThat(error(answer)).endsWith("a vLLM instance cannot continue a request with stop");
        assertThat(decode.only().body()).doesNotContain("return_token_ids");
        assertThat(other.received).isEmpty();
    }

    @Test
    void aPrefillInstanceOfVllmComputesNoTokensOfAStreamOfBaton() throws Exception {
        prefill.behaviour = FakeInstance.json(200, "{\"kv_transfer_params\":{\"remote_engine_id\":\"p\"}}");
        decode.behaviour = breakingOff(FIRST + ":t 0 11\n\n");
        Router router = fixture.start(TestConfigs.router(
                "127.0.0.1",
                0,
                List.of(vllm(prefill)),
                RouterFixture.uris(List.of(decode, other)),
                "kv_transfer_params",
                Optional.empty(),
                RouterFixture.LIMITS));

        assertThat(fixture.post(router, BODY).body()).isEqualTo(FIRST + SECOND + DONE);
        assertThat(prefill.received).hasSize(1);
        assertThat(other.only().body()).doesNotContain("remote_engine_id");
    }

    @Test
    void aStreamOfBatonDoesNotContinueAtVllm() throws Exception {
        decode.behaviour = breakingOff(FIRST + ":t 0 11\n\n");
        FakeInstance third = fixture.instance();
        third.behaviour = other.behaviour;
        Router router = fixture.start(TestConfigs.router(
                "127.0.0.1",
                0,
                RouterFixture.uris(List.of(prefill)),
                List.of(decode.uri(), vllm(other), third.uri()),
                RouterConfig.DEFAULT_FLOW,
                Optional.empty(),
                RouterFixture.LIMITS));

        assertThat(fixture.post(router, BODY).body()).isEqualTo(FIRST + SECOND + DONE);
        assertThat(other.received).isEmpty();
        assertThat(third.received).hasSize(1);
    }
}
