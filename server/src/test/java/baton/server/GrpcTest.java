package baton.server;

import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.FinishReason;
import baton.engine.TokenLogprobs;
import baton.kv.JsonFields;
import baton.kv.KvEventsConfig;
import baton.server.FakeEngine.Session;
import baton.server.GrpcClient.Call;
import baton.server.GrpcClient.Message;
import baton.server.grpc.ProtoStruct;
import baton.server.grpc.ProtoWriter;
import io.vertx.core.buffer.Buffer;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** The gRPC port with vLLM's messages. */
@Timeout(300)
class GrpcTest {
    private static final String GENERATE = "vllm.Inference/Generate";
    private static final String STREAM = "vllm.Inference/GenerateStream";
    private static final String CHECK = "grpc.health.v1.Health/Check";
    private static final int[] PROMPT = {5, 300, 7};

    private final Queue<String> accessLines = new ConcurrentLinkedQueue<>();
    private final ServerFixture fixture = new ServerFixture(
            config -> config.grpcPort(0)
                    .servedModelNames(List.of(ServerFixture.MODEL, "alias"))
                    .apiKey("secret")
                    .maxBodyBytes(10_000)
                    .accessLog(accessLines::add)
                    .kvEventSources(
                            Map.of(
                                    0,
                                    KvEventsConfig.fromJson(
                                            JsonFields.parse(
                                                    "events",
                                                    "{\"enable_kv_cache_events\": true, \"topic\": \"kv\", \"endpoint\": \"tcp://*:5557\"}")))));
    private final GrpcClient client = new GrpcClient(fixture.server.grpcPort().orElseThrow());

    @AfterEach
    void close() throws Exception {
        client.close();
        fixture.close();
    }

    private Call call(String method, ProtoWriter message, String... headers) throws Exception {
        String[] all = new String[headers.length + 2];
        all[0] = "authorization";
        all[1] = "Bearer secret";
        System.arraycopy(headers, 0, all, 2, headers.length);
        return client.call(method, message, all);
    }

    private static ProtoWriter request() {
        return new ProtoWriter().string(1, "id-1").message(4, new ProtoWriter().integers(1, PROMPT));
    }

    private static ProtoWriter withStopping(ProtoWriter stopping) {
        return request().message(8, stopping);
    }

    @Test
    void generateAnswersWithTextAndTheHandOver() throws Exception {
        JsonFields given =
                JsonFields.parse("given", "{\"remote_port\": 5600, \"remote_block_ids\": [[1, 2]], \"x\": null}");
        JsonFields taken =
                JsonFields.parse("taken", "{\"do_remote_prefill\": true, \"remote_host\": \"h\", \"f\": 0.5}");
        fixture.engine.script(session -> {
            session.handsOver(taken);
            session.output(0, "one ");
            session.output(0, "two");
            session.finish(0, FinishReason.STOP);
        });
        Message response = call(
                        GENERATE,
                        request()
                                .string(2, "alias")
                                .message(
                                        10,
                                        new ProtoWriter().string(2, "salt").message(3, ProtoStruct.of(given.toJson()))))
                .answer();
        Session session = fixture.engine.nextSubmitted();
        assertThat(session.request.id()).startsWith("id-1-");
        assertThat(session.request.prompt()).containsExactly(PROMPT);
        assertThat(session.request.kvTransferParams()).hasToString("Optional[" + given + "]");
        assertThat(session.request.cacheSalt()).contains("salt");
        assertThat(session.request.sampling().temperature()).isZero();
        assertThat(session.request.sampling().maxTokens()).isEmpty();

        assertThat(response.message(1).number(1)).isEqualTo(PROMPT.length);
        Message output = response.message(2);
        assertThat(output.text(2)).isEqualTo("one two");
        assertThat(output.number(3)).isEqualTo(2);
        assertThat(output.has(4)).isFalse();
        Message end = output.message(8);
        assertThat(end.number(1)).isEqualTo(2);
        assertThat(end.number(2)).isEqualTo(2);
        assertThat(end.number(4)).as("the token that ended it").isEqualTo(101);
        assertThat(end.number(9)).isEqualTo(FakeEngine.CACHED_TOKENS);
        Map<String, Message> params = new HashMap<>();
        end.message(6).messages(1).forEach(entry -> params.put(entry.text(1), entry.message(2)));
        assertThat(params.keySet()).isEqualTo(taken.names());
        assertThat(Objects.requireNonNull(params.get("do_remote_prefill")).number(4))
                .isEqualTo(1);
        assertThat(Objects.requireNonNull(params.get("remote_host")).text(3)).isEqualTo("h");
        assertThat(Double.longBitsToDouble(
                        Objects.requireNonNull(params.get("f")).number(2)))
                .isEqualTo(0.5);
    }

    @Test
    void aStreamHasTokensTheirProbabilitiesAndTheEnd() throws Exception {
        fixture.engine.script(session -> {
            session.output(
                    0,
                    new int[] {300},
                    "a",
                    List.of(new TokenLogprobs(
                            300,
                            -0.25f,
                            1,
                            List.of(new TokenLogprobs.Candidate(300, -0.25f), new TokenLogprobs.Candidate(8, -2)))));
            session.output(0, new int[] {9}, "b", List.of(new TokenLogprobs(9, -3, 4, List.of())));
            session.finish(0, FinishReason.STOP, Optional.of("b"), Optional.empty());
        });
        ProtoWriter response = new ProtoWriter()
                .bool(1, true)
                .bool(4, false)
                .bool(5, true)
                .bool(6, true)
                .message(7, new ProtoWriter().integer(1, 2));
        Call call = call(STREAM, request().message(9, response));
        Message first = call.next();
        assertThat(first.message(1).numbers(2)).containsExactly(5L, 300L, 7L);
        Message output = first.message(2);
        assertThat(output.text(2)).isEmpty();
        assertThat(output.numbers(4)).containsExactly(300L);
        assertThat(output.floats(5)).containsExactly(-0.25f);
        assertThat(output.numbers(6)).containsExactly(1L);
        List<Message> alternatives = output.message(7).messages(1);
        assertThat(alternatives).as("without the token itself").hasSize(1);
        assertThat(alternatives.getFirst().number(1)).isEqualTo(8);
        assertThat(alternatives.getFirst().number(3)).isEqualTo(2);
        Message second = call.next();
        assertThat(second.has(1)).isFalse();
        assertThat(second.message(2).numbers(4)).containsExactly(9L);
        Message last = second.message(2).has(8) ? second : call.next();
        assertThat(last.message(2).message(8).text(5)).isEqualTo("b");
        assertThat(call.end().getKey()).isZero();
    }

    /** The token of the end may have been sent before the end itself. */
    @Test
    void aStreamNamesTheTokenThatEndedIt() throws Exception {
        fixture.engine.script(session -> {
            session.output(0, new int[] {300}, "a", List.of());
            session.output(0, new int[] {9}, "", List.of());
        });
        Call call = call(STREAM, request().message(9, new ProtoWriter().bool(5, true)));
        assertThat(call.next().message(2).numbers(4)).containsExactly(300L);
        assertThat(call.next().message(2).numbers(4)).containsExactly(9L);
        fixture.engine.nextSubmitted().finish(0, FinishReason.STOP);
        assertThat(call.next().message(2).message(8).number(4)).isEqualTo(9);
    }

    @Test
    void samplingParametersReachTheEngine() throws Exception {
        fixture.engine.answers("x");
        ProtoWriter decoding = new ProtoWriter()
                .number32(2, 0.5f)
                .message(4, new ProtoWriter().integer(1, 12).number32(2, -1.5f))
                .integers(5, 3, 4)
                .message(12, new ProtoWriter().integers(1, 6, 7));
        ProtoWriter sampling =
                new ProtoWriter().integer(1, 1).integer(2, 40).number32(3, 0.9f).integer(5, -3);
        ProtoWriter stopping = new ProtoWriter()
                .integer(1, 20)
                .integer(3, 11)
                .integer(3, 12)
                .string(4, "end")
                .bool(6, true);
        call(
                        GENERATE,
                        withStopping(stopping)
                                .number32(5, 0.7f)
                                .message(6, sampling)
                                .message(7, decoding)
                                .integer(12, -2))
                .answer();
        Session session = fixture.engine.nextSubmitted();
        assertThat(session.request.priority()).isEqualTo(-2);
        assertThat(session.request.sampling()).satisfies(params -> {
            assertThat(params.temperature()).isEqualTo(0.7);
            assertThat(params.topK()).isEqualTo(40);
            assertThat(params.topP()).isEqualTo(0.9);
            assertThat(params.seed()).hasValue(-3);
            assertThat(params.frequencyPenalty()).isEqualTo(0.5);
            assertThat(params.repetitionPenalty()).isEqualTo(1);
            assertThat(params.logitBias()).isEqualTo(Map.of(12, -1.5));
            assertThat(params.allowedTokenIds()).contains(Set.of(3, 4));
            assertThat(params.badWords()).containsExactly(List.of(6, 7));
            assertThat(params.maxTokens()).hasValue(20);
            assertThat(params.stopTokenIds()).containsExactlyInAnyOrder(11, 12);
            assertThat(params.stop()).containsExactly("end");
            assertThat(params.ignoreEos()).isTrue();
        });
    }

    @Test
    void badCallsEndWithAStatusAndTheNameOfTheField() throws Exception {
        assertEnds(call(GENERATE, new ProtoWriter()), 3, "prompt: is missing");
        assertEnds(
                call(GENERATE, withStopping(new ProtoWriter().integer(1, 1 << 20))), 3, "stopping.max_new_tokens: is");
        assertEnds(
                call(GENERATE, request().message(6, new ProtoWriter().integer(1, 2))),
                3,
                "sampling.num_sequences: is 2");
        assertEnds(call(GENERATE, request().message(6, new ProtoWriter().number32(3, 2))), 3, "sampling.top_p: is 2");
        assertEnds(call(GENERATE, request().message(6, new ProtoWriter().string(3, "x"))), 3, "sampling: is malformed");
        assertEnds(call(GENERATE, request().string(15, "lora")), 3, "lora_name: is not supported");
        assertEnds(call(GENERATE, request().message(14, new ProtoWriter())), 3, "media: is not supported");
        assertEnds(call(GENERATE, request().string(2, "other")), 5, "model 'other' does not exist");
        assertEnds(call(GENERATE, request(), "x-data-parallel-rank", "1"), 3, "x-data-parallel-rank: is '1'");
        assertEnds(call(GENERATE, request(), "grpc-timeout", "soon"), 3, "grpc-timeout: is 'soon'");
        assertEnds(call("vllm.Control/Sleep", new ProtoWriter()), 12, "vllm.Control/Sleep is not a method");
        assertEnds(call(GENERATE, request().string(3, "x".repeat(20_000))), 8, "may have 10000 bytes");
        assertEnds(client.call(GENERATE, request()), 16, "no API key");
        assertEnds(client.send(CHECK, Buffer.buffer("abc")), 3, "must have one message");
        assertThat(fixture.engine.submittedCount()).isZero();
        assertThat(call(CHECK, new ProtoWriter()).answer().number(1)).isEqualTo(1);
        assertThat(fixture.server.preparingBytes()).isZero();
    }

    private static void assertEnds(Call call, int status, String message) throws Exception {
        Map.Entry<Integer, String> end = call.end();
        assertThat(end.getValue()).contains(message);
        assertThat(end.getKey()).isEqualTo(status);
    }

    @Test
    void aCancelledCallIsAbandonedAndOthersOfItsConnectionGoOn() throws Exception {
        Call cancelled = call(STREAM, request());
        Session abandoned = fixture.engine.nextSubmitted();
        Call other = call(STREAM, request().string(1, "id-2"));
        Session kept = fixture.engine.nextSubmitted();
        abandoned.output(0, "x");
        cancelled.next();
        cancelled.cancel();
        assertThat(fixture.engine.nextAbandoned()).isEqualTo(abandoned.request.id());
        kept.output(0, "y");
        kept.finish(0, FinishReason.LENGTH);
        assertThat(other.next().message(2).text(2)).isEqualTo("y");
        assertThat(other.end().getKey()).isZero();
    }

    @Test
    void aCallEndsAtItsDeadline() throws Exception {
        Call before = call(STREAM, request(), "grpc-timeout", "5S");
        Session silent = fixture.engine.nextSubmitted();
        Call within = call(STREAM, request(), "grpc-timeout", "5000m");
        Session begun = fixture.engine.nextSubmitted();
        begun.output(0, "x");
        within.next();
        assertEnds(before, 4, "deadline of 5S");
        assertEnds(within, 4, "deadline of 5000m");
        assertThat(List.of(fixture.engine.nextAbandoned(), fixture.engine.nextAbandoned()))
                .containsExactlyInAnyOrder(silent.request.id(), begun.request.id());
    }

    @Test
    void aConnectionIsIdleAfterItsCallsWereCancelled() throws Exception {
        try (ServerFixture brief =
                        new ServerFixture(config -> config.grpcPort(0).idleTimeout(Duration.ofSeconds(1)));
                GrpcClient own = new GrpcClient(brief.server.grpcPort().orElseThrow())) {
            Call call = own.call(STREAM, request());
            String submitted = brief.engine.nextSubmitted().request.id();
            call.cancel();
            assertThat(brief.engine.nextAbandoned()).isEqualTo(submitted);
            call.awaitClosedConnection();
            assertThat(call.goneAway()).isTrue();
        }
    }

    @Test
    void controlDescribesTheInstanceAndAbortsRequests() throws Exception {
        Message server = call("vllm.Control/GetServerInfo", new ProtoWriter()).answer();
        assertThat(server.text(1)).isEqualTo("1.2.3");
        assertThat(server.text(2)).isEqualTo("vllm");
        assertThat(server.message(4).number(3)).as("data-parallel size").isEqualTo(1);
        assertThat(server.number(5)).isEqualTo(FakeEngine.MAX_MODEL_LEN);
        assertThat(server.number(6)).isEqualTo(16);
        assertThat(server.number(7)).isEqualTo(64);
        Message model = call("vllm.Control/GetModelInfo", new ProtoWriter()).answer();
        assertThat(model.text(1)).isEqualTo(FakeEngine.MODEL.toAbsolutePath().toString());
        assertThat(model.text(2)).isEqualTo(ServerFixture.MODEL);
        assertThat(model.text(3)).isEqualTo("alias");
        assertThat(model.number(21)).isEqualTo(1);
        Message source = call("vllm.Control/GetKvEventSources", new ProtoWriter())
                .answer()
                .message(1);
        assertThat(source.text(1)).isEqualTo("zmq");
        assertThat(source.text(2)).isEqualTo("tcp://*:5557");
        assertThat(source.text(3)).isEqualTo("kv");

        Call running = call(STREAM, request());
        fixture.engine.nextSubmitted().output(0, "x");
        running.next();
        call("vllm.Control/Abort", new ProtoWriter().string(1, "other").string(1, "id-1"))
                .answer();
        assertThat(running.next().message(2).message(8).number(2)).as("aborted").isEqualTo(3);
        assertThat(running.end().getKey()).isZero();
    }

    @Test
    void anotherRequestThanACallGetsAStatusOfHttp() throws Exception {
        try (HttpClient http =
                HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build()) {
            HttpResponse<String> response = http.send(
                    HttpRequest.newBuilder(URI.create("http://127.0.0.1:"
                                    + fixture.server.grpcPort().orElseThrow() + "/" + CHECK))
                            .build(),
                    HttpResponse.BodyHandlers.ofString());
            assertThat(response.statusCode()).isEqualTo(415);
            assertThat(response.body()).contains("this port takes gRPC only");
        }
    }

    @Test
    void aControlCallHasAShortMessage() throws Exception {
        try (ServerFixture large = new ServerFixture(config -> config.grpcPort(0));
                GrpcClient own = new GrpcClient(large.server.grpcPort().orElseThrow())) {
            assertEnds(
                    own.call("vllm.Control/Abort", new ProtoWriter().string(1, "x".repeat(65_536))),
                    8,
                    "vllm.Control/Abort may have 65536 bytes");
        }
    }

    @Test
    void healthIsCheckedAndWatchedWithoutAKey() throws Exception {
        assertThat(client.call(CHECK, new ProtoWriter().string(1, "vllm.Control"))
                        .answer()
                        .number(1))
                .isEqualTo(1);
        assertEnds(client.call(CHECK, new ProtoWriter().string(1, "other")), 5, "no service 'other'");
        Call watch = client.call("grpc.health.v1.Health/Watch", new ProtoWriter().string(1, "vllm.Inference"));
        Call unknown = client.call("grpc.health.v1.Health/Watch", new ProtoWriter().string(1, "other"));
        assertThat(watch.next().number(1)).isEqualTo(1);
        assertThat(unknown.next().number(1)).isEqualTo(3);
        fixture.engine.fails("out of order");
        assertThat(watch.next().number(1)).isEqualTo(2);
        fixture.server.close(ServerFixture.SOON);
        assertThat(watch.end().getKey()).isZero();
        assertThat(accessLines).as("calls that failed").hasSize(1).allMatch(line -> line.contains(" 404 "));
    }
}
