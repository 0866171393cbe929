package baton.router;

import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.Ticker;
import baton.router.flow.ContentKeyedFlow;
import baton.router.policy.LocalPrefill;
import baton.testkit.Await;
import baton.trace.OtlpExporter;
import baton.trace.OtlpSettings;
import baton.trace.StandInCollector;
import baton.trace.StandInCollector.Received;
import io.vertx.core.MultiMap;
import java.time.Clock;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import tools.jackson.databind.json.JsonMapper;

/** Traces of requests: the headers for instances, and the spans for a collector. */
@Timeout(300)
class TracingTest {
    private static final JsonMapper MAPPER = JsonMapper.builder().build();
    private static final String BODY = "{\"prompt\":\"a secret\",\"stream\":false}";
    private static final String TRACE = "4bf92f3577b34da6a3ce929d0e0e4736";
    private static final String CALLER = "00f067aa0ba902b7";
    private static final String GIVEN = "00-" + TRACE + "-" + CALLER + "-01";

    private final StandInCollector collector = new StandInCollector();
    private final RouterFixture fixture = new RouterFixture();
    private final FakeInstance prefill = fixture.instance();
    private final FakeInstance decode = fixture.instance();

    @AfterEach
    void stopAll() throws Exception {
        fixture.close();
        collector.close();
    }

    private Router silent() {
        return fixture.router(
                ContentKeyedFlow.NAME, List.of(prefill), List.of(decode), Optional.empty(), LocalPrefill.NEVER);
    }

    private Router exporting(List<FakeInstance> prefills, List<FakeInstance> decodes, LocalPrefill local) {
        OtlpSettings settings = new OtlpSettings(
                collector.endpoint(), "baton-router", 1000, 100, Duration.ZERO, Duration.ofSeconds(10));
        return fixture.start(
                RouterFixture.config(ContentKeyedFlow.NAME, prefills, decodes, Optional.empty(), local),
                Optional.of(new OtlpExporter(settings, "test", Ticker.system(), Clock.systemUTC())));
    }

    private static MultiMap headers(FakeInstance instance) {
        return instance.received.getLast().headers();
    }

    private static String parent(FakeInstance instance) {
        return String.valueOf(headers(instance).get("traceparent"));
    }

    private static String parentOf(Received span) {
        return "00-" + span.trace() + "-" + span.id() + "-01";
    }

    private static Received only(List<Received> spans, String name) {
        List<Received> named =
                spans.stream().filter(span -> span.name().equals(name)).toList();
        assertThat(named).as(name).hasSize(1);
        return named.getFirst();
    }

    @Test
    void aRouterThatExportsNothingPassesTheCallersSpanOn() throws Exception {
        Router router = silent();
        fixture.post(router, BODY, "X-Request-Id", "traced", "traceparent", GIVEN, "tracestate", "vendor=1");
        assertThat(List.of(parent(prefill), parent(decode))).containsOnly(GIVEN);
        assertThat(headers(decode).getAll("traceparent")).hasSize(1);
        assertThat(headers(decode).get("tracestate")).isEqualTo("vendor=1");
        String explained = fixture.get(router, "/v1/requests/traced/explain").body();
        assertThat(MAPPER.readTree(explained).path("trace_id").asString()).isEqualTo(TRACE);
        assertThat(MAPPER.readTree(explained).path("text").asString())
                .endsWith("It belongs to the trace " + TRACE + ".");
        fixture.post(router, BODY);
        assertThat(parent(prefill)).matches("00-[0-9a-f]{32}-[0-9a-f]{16}-00").doesNotContain(TRACE);
        assertThat(parent(decode).substring(0, 35)).isEqualTo(parent(prefill).substring(0, 35));
    }

    @Test
    void severalStatesAreOneListAndArePassedOn() throws Exception {
        Router router = silent();
        fixture.post(router, BODY, "traceparent", GIVEN, "tracestate", "a=1,b=2", "tracestate", "c=3");
        assertThat(headers(prefill).getAll("tracestate")).containsExactly("a=1,b=2", "c=3");
        assertThat(headers(decode).getAll("tracestate")).containsExactly("a=1,b=2", "c=3");
    }

    @Test
    void aSecondTraceparentMakesBothInvalid() throws Exception {
        Router router = silent();
        fixture.post(router, BODY, "traceparent", GIVEN, "traceparent", GIVEN, "tracestate", "vendor=1");
        assertThat(headers(decode).getAll("traceparent")).hasSize(1);
        assertThat(parent(decode)).doesNotContain(TRACE);
        assertThat(headers(decode).contains("tracestate")).isFalse();
    }

    @ParameterizedTest
    @ValueSource(strings = {"00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", "garbage"})
    void aMalformedTraceparentIsReplacedAndItsStateDropped(String given) throws Exception {
        Router router = silent();
        fixture.post(router, BODY, "traceparent", given, "tracestate", "vendor=1");
        assertThat(parent(decode)).matches("00-[0-9a-f]{32}-[0-9a-f]{16}-00").doesNotContain(TRACE);
        assertThat(headers(decode).contains("tracestate")).isFalse();
    }

    @Test
    void aRequestIsOneSpanWithOneForEachLeg() throws Exception {
        prefill.behaviour = FakeInstance.json(
                200,
                "{\"usage\":{\"prompt_tokens\":60,\"prompt_tokens_details\":{\"cached_tokens\":48}},\"choices\":[]}");
        Router router = exporting(List.of(prefill), List.of(decode), LocalPrefill.NEVER);
        fixture.post(router, BODY, "X-Request-Id", "traced", "traceparent", GIVEN.substring(0, 53) + "ff");
        List<Received> spans = collector.await(3);
        Received request = only(spans, "POST /v1/completions");
        Received first = only(spans, "prefill");
        Received second = only(spans, "decode");
        assertThat(spans).allSatisfy(span -> {
            assertThat(span.trace()).isEqualTo(TRACE);
            assertThat(span.service()).isEqualTo("baton-router");
            assertThat(span.status()).isZero();
        });
        assertThat(request.parent()).isEqualTo(CALLER);
        assertThat(request.kind()).isEqualTo(2);
        assertThat(request.attribute("baton.request_id")).isEqualTo("traced");
        assertThat(request.attribute("http.response.status_code")).isEqualTo("200");
        assertThat(request.attribute("baton.outcome")).isEqualTo("ok");
        assertThat(request.events()).containsExactly("first byte");
        assertThat(List.of(first, second)).allSatisfy(leg -> {
            assertThat(leg.parent()).isEqualTo(request.id());
            assertThat(leg.kind()).isEqualTo(3);
            assertThat(leg.start()).isGreaterThanOrEqualTo(request.start());
            assertThat(leg.end()).isBetween(leg.start(), request.end());
            assertThat(leg.attribute("baton.policy.reason")).isEqualTo("it was its turn");
        });
        assertThat(second.start()).isGreaterThanOrEqualTo(first.end());
        assertThat(first.attribute("server.port")).isEqualTo("" + prefill.uri().getPort());
        assertThat(first.attribute("gen_ai.usage.prompt_tokens")).isEqualTo("60");
        assertThat(first.attribute("baton.tokens.cached")).isEqualTo("48");
        assertThat(parent(prefill)).isEqualTo(parentOf(first));
        assertThat(parent(decode)).isEqualTo(parentOf(second));
        assertThat(spans.toString()).doesNotContain("a secret");
        Await.until(
                "spans are counted",
                RouterFixture.SOON,
                () -> fixture.metric(router, "baton:trace_spans_total{result=\"exported\"}") == 3);
        assertThat(fixture.get(router, "/v1/requests/traced/explain").body())
                .contains("with 48 of the prompt's 60 tokens from its caches");
    }

    @Test
    void aRequestWithoutATraceBeginsOneThatIsRecorded() throws Exception {
        Router router = exporting(List.of(prefill), List.of(decode), LocalPrefill.NEVER);
        fixture.post(router, BODY);
        List<Received> spans = collector.await(3);
        assertThat(only(spans, "POST /v1/completions").parent()).isEmpty();
        assertThat(parent(decode)).isEqualTo(parentOf(only(spans, "decode")));
    }

    @Test
    void aTraceThatTheCallerDoesNotRecordIsNotRecorded() throws Exception {
        Router router = exporting(List.of(prefill), List.of(decode), LocalPrefill.NEVER);
        String unsampled = GIVEN.substring(0, 53) + "00";
        fixture.post(router, BODY, "traceparent", unsampled);
        assertThat(parent(decode)).isEqualTo(unsampled);
        fixture.post(router, BODY, "traceparent", GIVEN);
        assertThat(collector.await(3)).hasSize(3);
    }

    @Test
    void eachAttemptIsASpanAndThoseThatFailedSayWhy() throws Exception {
        FakeInstance failing = fixture.instance();
        failing.behaviour = FakeInstance.json(500, "{\"error\":{\"message\":\"out of order\"}}");
        FakeInstance alsoFailing = fixture.instance();
        alsoFailing.behaviour = failing.behaviour;
        FakeInstance lost = fixture.instance();
        lost.behaviour = (request, response) -> response.reset();
        Router router = exporting(
                List.of(failing, alsoFailing), List.of(lost, decode), new LocalPrefill(true, 0, 0, Integer.MAX_VALUE));
        fixture.post(router, BODY);
        List<Received> spans = collector.await(5);
        Received request = only(spans, "POST /v1/completions");
        assertThat(request.attribute("baton.local_prefill")).isEqualTo("the prefill leg failed for good");
        List<Received> legs = spans.stream().filter(span -> span.kind() == 3).toList();
        assertThat(legs).extracting(Received::name).containsExactly("prefill", "prefill", "decode", "decode");
        assertThat(legs).extracting(Received::status).containsExactly(2, 2, 2, 0);
        assertThat(legs.getFirst().message()).contains("HTTP 500: out of order");
        assertThat(legs).extracting(Received::parent).containsOnly(request.id());
        assertThat(legs).extracting(Received::id).doesNotHaveDuplicates();
        assertThat(request.status()).isZero();
    }

    @Test
    void aRequestThatFailsAndOneWhoseClientLeavesAreSpansToo() throws Exception {
        prefill.behaviour = FakeInstance.json(500, "{}");
        Router router = exporting(List.of(prefill), List.of(decode), LocalPrefill.NEVER);
        fixture.post(router, BODY);
        Received failed = only(collector.await(2), "POST /v1/completions");
        assertThat(failed.status()).isEqualTo(2);
        assertThat(failed.message()).contains("HTTP 502");
        assertThat(failed.attribute("error.type")).isEqualTo("prefill_failed");
        prefill.behaviour = (request, response) -> {};
        try (RawClient client = new RawClient(router.port())) {
            client.post(RouterFixture.COMPLETIONS, BODY);
            Await.until("prefill asked", RouterFixture.SOON, () -> prefill.received.size() == 2);
        }
        List<Received> spans = collector.await(4);
        assertThat(spans.getLast().attribute("baton.outcome")).isEqualTo("client_disconnected");
        assertThat(spans.get(2).attribute("baton.leg.given_up")).isEqualTo("true");
    }
}
