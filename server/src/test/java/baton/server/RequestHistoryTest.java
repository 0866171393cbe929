package baton.server;

import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.FinishReason;
import baton.engine.RequestTimes;
import baton.engine.RequestTimes.KvLoad;
import baton.kv.Ticker;
import baton.trace.OtlpExporter;
import baton.trace.OtlpSettings;
import baton.trace.StandInCollector;
import baton.trace.StandInCollector.Received;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Clock;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.OptionalDouble;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import tools.jackson.databind.JsonNode;

/** Explanations and spans of an instance's requests. */
@Timeout(300)
class RequestHistoryTest {
    private static final String BODY = "{\"model\":\"tiny-ledger\",\"prompt\":[1,2,3,4,5,6,7,8,9],\"max_tokens\":2,"
            + "\"kv_transfer_params\":{\"remote_host\":\"10.0.0.1\",\"remote_port\":5600}}";
    private static final String TRACE = "4bf92f3577b34da6a3ce929d0e0e4736";
    private static final String PARENT = "00f067aa0ba902b7";

    /** A load that was begun twice, then 2 tokens. */
    private static final RequestTimes LOADED = new RequestTimes(
            Optional.of(new KvLoad(0.001, OptionalDouble.of(0.003), 8, 2, 4096, 2, 1)),
            OptionalDouble.of(0.004),
            OptionalDouble.of(0.010),
            0.020,
            1);

    private final StandInCollector collector = new StandInCollector();
    private final OtlpExporter exporter = new OtlpExporter(
            new OtlpSettings(collector.endpoint(), "baton-serve", 1000, 100, Duration.ZERO, Duration.ofSeconds(10)),
            "test",
            Ticker.system(),
            Clock.systemUTC());
    private final ServerFixture fixture = new ServerFixture(config -> config.spans(exporter));

    @AfterEach
    void stop() {
        fixture.close();
        exporter.close();
        collector.close();
    }

    private HttpResponse<String> ask(RequestTimes times, String... headers) throws Exception {
        fixture.engine.script(session -> {
            session.took(times);
            session.output(0, "a ");
            session.output(0, "b");
            session.finish(0, FinishReason.LENGTH);
        });
        HttpRequest.Builder request = HttpRequest.newBuilder(fixture.uri("/v1/completions"))
                .header("Content-Type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofString(BODY));
        return fixture.send(headers.length == 0 ? request : request.headers(headers));
    }

    private static Received only(List<Received> spans, String name) {
        List<Received> named =
                spans.stream().filter(span -> span.name().equals(name)).toList();
        assertThat(named).as(name).hasSize(1);
        return named.getFirst();
    }

    @Test
    void aRequestIsExplainedInJsonAndInWords() throws Exception {
        assertThat(ask(LOADED, "X-Request-Id", "mine").statusCode()).isEqualTo(200);
        JsonNode json = ServerFixture.json(fixture.get("/v1/requests/mine/explain"));
        assertThat(json.path("state").asString()).isEqualTo("ended");
        assertThat(json.path("finish").asString()).isEqualTo("length");
        assertThat(json.path("kv_source").asString()).isEqualTo("10.0.0.1:5600");
        JsonNode sources = json.path("prompt_tokens_by_source");
        assertThat(sources.path("local_compute").asInt()
                        + sources.path("local_cache_hit").asInt()
                        + sources.path("external_kv_transfer").asInt())
                .isEqualTo(9);
        assertThat(sources.path("external_kv_transfer").asInt()).isEqualTo(FakeEngine.TRANSFERRED_TOKENS);
        JsonNode load = json.path("sequences").path(0).path("kv_load");
        assertThat(load.path("bytes").asLong()).isEqualTo(4096);
        assertThat(load.path("ended_ms").asDouble()).isEqualTo(3);
        assertThat(load.path("attempts").asInt()).isEqualTo(2);
        assertThat(json.path("text").asString())
                .contains("Of its 9 tokens ")
                .contains("from 10.0.0.1:5600 was to bring 8 tokens, 2 blocks of 4096 bytes in all, which took 2.00 ms")
                .contains("in 2 attempts; 1 of them failed")
                .contains(
                        "Its first step began 4.00 ms after it came to the engine, its first token was there after 10 ms")
                .contains("It lost its blocks to other requests 1 times")
                .contains("with 2 tokens: length, HTTP 200.");
        HttpResponse<String> words = fixture.send(HttpRequest.newBuilder(fixture.uri("/v1/requests/cmpl-mine/explain"))
                .header("Accept", "text/plain")
                .GET());
        assertThat(words.headers().firstValue("Content-Type")).contains("text/plain; charset=utf-8");
        assertThat(words.body().strip()).isEqualTo(json.path("text").asString());
    }

    @Test
    void aRequestUnderWayIsExplainedAndAnUnknownOneIsNotFound() throws Exception {
        fixture.engine.script(session -> session.output(0, "a"));
        try (ServerFixture.RawClient client = fixture.raw()) {
            client.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: slow\r\n"
                    + "Content-Type: application/json\r\nContent-Length: "
                    + streamed().length() + "\r\n\r\n"
                    + streamed());
            client.head();
            client.chunk();
            JsonNode json = ServerFixture.json(fixture.get("/v1/requests/slow/explain"));
            assertThat(json.path("state").asString()).isEqualTo("running");
            assertThat(json.path("text").asString()).contains("It has been running for");
        }
        assertThat(fixture.get("/v1/requests/none/explain").statusCode()).isEqualTo(404);
        assertThat(fixture.get("/v1/requests/none/explain").body()).contains("X-Request-Id 'none'");
        assertThat(fixture.get("/v1/requests//explain").statusCode()).isEqualTo(404);
        assertThat(fixture.get("/v1/requests/%3Cscript%3E/explain").body()).contains("X-Request-Id '<script>'");
    }

    private static String streamed() {
        return BODY.substring(0, BODY.length() - 1) + ",\"stream\":true}";
    }

    @Test
    void aRequestIsASpanWithItsPartsInTheCallersTrace() throws Exception {
        ask(LOADED, "X-Request-Id", "mine", "traceparent", "00-" + TRACE + "-" + PARENT + "-01");
        List<Received> spans = collector.await(8);
        Received request = only(spans, "POST /v1/completions");
        assertThat(request.parent()).isEqualTo(PARENT);
        assertThat(request.kind()).isEqualTo(2);
        assertThat(request.attribute("baton.request_id")).isEqualTo("mine");
        assertThat(request.attribute("gen_ai.usage.prompt_tokens")).isEqualTo("9");
        assertThat(request.attribute("gen_ai.usage.completion_tokens")).isEqualTo("2");
        assertThat(request.attribute("gen_ai.latency.time_in_queue")).isEqualTo("0.004");
        assertThat(request.events()).containsExactly("first token");
        List<Received> parts =
                spans.stream().filter(span -> !span.equals(request)).toList();
        assertThat(parts)
                .extracting(Received::name)
                .containsExactly("read", "queue", "hand-off", "admission", "prefill", "first token", "stream");
        assertThat(parts).extracting(Received::parent).containsOnly(request.id());
        assertThat(spans).extracting(Received::trace).containsOnly(TRACE);
        Received handoff = only(spans, "hand-off");
        assertThat(handoff.end() - handoff.start()).isEqualTo(2_000_000);
        assertThat(handoff.attributes())
                .containsEntry("baton.kv.blocks", "2")
                .containsEntry("baton.kv.bytes", "4096")
                .containsEntry("baton.kv.retries", "1")
                .containsEntry("baton.kv.source", "10.0.0.1:5600");
        assertThat(only(spans, "queue").end()).isEqualTo(handoff.start());
        assertThat(only(spans, "admission").start()).isEqualTo(handoff.end());
        assertThat(only(spans, "prefill").start())
                .isEqualTo(only(spans, "admission").end());
        assertThat(only(spans, "stream").start())
                .isEqualTo(only(spans, "prefill").end());
    }

    @Test
    void aLoadWithinAStepIsAPartOfPrefill() throws Exception {
        ask(new RequestTimes(
                Optional.of(new KvLoad(0.001, OptionalDouble.empty(), 8, 2, 4096, 1, 0)),
                OptionalDouble.of(0.001),
                OptionalDouble.of(0.010),
                0.020,
                0));
        List<Received> spans = collector.await(6);
        assertThat(only(spans, "prefill").attribute("baton.kv.tokens")).isEqualTo("8");
        assertThat(spans).extracting(Received::name).doesNotContain("hand-off");
        assertThat(only(spans, "POST /v1/completions").parent()).isEmpty();
    }

    @Test
    void aTraceThatTheCallerDoesNotRecordIsNotRecorded() throws Exception {
        ask(LOADED, "traceparent", "00-" + TRACE + "-" + PARENT + "-00");
        ask(LOADED);
        assertThat(collector.await(8)).extracting(Received::trace).doesNotContain(TRACE);
    }

    @Test
    void aRequestThatFailsIsASpanWithItsError() throws Exception {
        fixture.engine.script(
                session -> session.finish(0, FinishReason.ERROR, Optional.empty(), Optional.of("out of order")));
        assertThat(fixture.post("/v1/completions", BODY).statusCode()).isEqualTo(500);
        Received request = only(collector.await("the request", spans -> !spans.isEmpty()), "POST /v1/completions");
        assertThat(request.status()).isEqualTo(2);
        assertThat(request.message()).contains("out of order");
    }
}
