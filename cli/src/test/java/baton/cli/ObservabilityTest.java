package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Instances.Instance;
import baton.cli.Instances.Reply;
import baton.kv.FreePorts;
import baton.testkit.Await;
import baton.trace.StandInCollector;
import baton.trace.StandInCollector.Received;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * The output of a router and two instances, processes that hand a prompt over, for operators: one trace, explanations, and the dashboard's
 * metrics.
 */
class ObservabilityTest {
    private static final int TOKENS = 4;
    private static final String TRACE = "4bf92f3577b34da6a3ce929d0e0e4736";
    private static final String CALLER = "00f067aa0ba902b7";
    private static final String TRACEPARENT = "00-" + TRACE + "-" + CALLER + "-01";

    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    @AutoClose
    private static final StandInCollector COLLECTOR = new StandInCollector();

    private static Instance prefill;
    private static Instance decode;
    private static Instance router;

    @BeforeAll
    static void start() throws Exception {
        String endpoint = COLLECTOR.endpoint().toString();
        prefill = INSTANCES.serveBlocks("prefill", "NixlConnector", "kv_producer", "--otlp-traces-endpoint", endpoint);
        decode = INSTANCES.serveBlocks("decode", "NixlConnector", "kv_consumer", "--otlp-traces-endpoint", endpoint);
        router = INSTANCES.route(
                "router",
                List.of(prefill),
                List.of(decode),
                "--flow",
                "kv_transfer_params",
                "--local-prefill-threshold",
                "40",
                "--otlp-traces-endpoint",
                endpoint);
    }

    private static List<Received> trace(String id) throws InterruptedException {
        return COLLECTOR.await("the trace " + id, all -> ended(all, id)).stream()
                .filter(span -> span.trace().equals(id))
                .toList();
    }

    /** The processes export by themselves: the last spans may be of any of them. */
    private static boolean ended(List<Received> all, String id) {
        List<Received> spans =
                all.stream().filter(span -> span.trace().equals(id)).toList();
        return spans.stream().filter(span -> span.kind() == 2).count() == 3
                && spans.stream().filter(span -> span.name().equals("stream")).count() == 2;
    }

    private static Received only(List<Received> spans, String name, String parent) {
        List<Received> named = spans.stream()
                .filter(span -> span.name().equals(name) && span.parent().equals(parent))
                .toList();
        assertThat(named).as(name + " in " + parent + " of " + spans).hasSize(1);
        return named.getFirst();
    }

    @Test
    void aRequestIsOneTraceOverRouterPrefillAndDecode() throws Exception {
        int[] prompt = Ledgers.prompt(120, 4711);
        Reply reply = router.post(
                "/v1/completions",
                Instances.greedy(prompt, TOKENS).toString(),
                "X-Request-Id",
                "traced",
                "traceparent",
                TRACEPARENT);
        assertThat(reply.tokenIds()).hasSize(TOKENS);
        List<Received> spans = trace(TRACE);
        Received request = only(spans, "POST /v1/completions", CALLER);
        assertThat(request.service()).isEqualTo("baton-router");
        Received firstLeg = only(spans, "prefill", request.id());
        Received secondLeg = only(spans, "decode", request.id());
        assertThat(firstLeg.attribute("gen_ai.usage.prompt_tokens")).isEqualTo("" + prompt.length);

        Received prefilled = only(spans, "POST /v1/completions", firstLeg.id());
        Received decoded = only(spans, "POST /v1/completions", secondLeg.id());
        assertThat(List.of(prefilled, decoded)).extracting(Received::service).containsOnly("baton-serve");
        assertThat(prefilled.attribute("baton.tokens.local_compute")).isEqualTo("" + prompt.length);
        int transferred = Integer.parseInt(decoded.attribute("baton.tokens.external_kv_transfer"));
        assertThat(transferred).isGreaterThanOrEqualTo(prompt.length - 1);

        Received handoff = only(spans, "hand-off", decoded.id());
        assertThat(handoff.attributes())
                .containsEntry("baton.kv.connector", "NixlConnector")
                .containsEntry("baton.kv.retries", "0")
                .containsEntry("baton.kv.failures", "0");
        assertThat(handoff.attribute("baton.kv.source")).startsWith("127.0.0.1:");
        long blocks = Long.parseLong(handoff.attribute("baton.kv.blocks"));
        assertThat(blocks).isEqualTo(Math.ceilDiv(transferred, 16));
        assertThat(Long.parseLong(handoff.attribute("baton.kv.bytes")))
                .isPositive()
                .matches(bytes -> bytes % blocks == 0);
        for (String part : List.of("read", "queue", "admission", "prefill", "first token", "stream")) {
            Received span = only(spans, part, decoded.id());
            assertThat(span.start()).as(part).isBetween(decoded.start(), decoded.end());
        }
        assertThat(only(spans, "queue", decoded.id()).end()).isEqualTo(handoff.start());
        assertThat(spans.stream().filter(span -> span.name().equals("hand-off")))
                .hasSize(1);
        // The processes share a clock, but each anchors its spans to that by itself.
        assertThat(prefilled.end()).isLessThan(decoded.end());
    }

    @Test
    void eachExplainsItsPart() throws Exception {
        int[] prompt = Ledgers.prompt(100, 4712);
        router.post(
                "/v1/completions",
                Instances.greedy(prompt, TOKENS).toString(),
                "X-Request-Id",
                "explained",
                "traceparent",
                "00-" + TRACE.replace('4', '5') + "-" + CALLER + "-01");
        JsonNode whole = router.get("/v1/requests/explained/explain").json();
        assertThat(whole.path("prefill").path("prompt_tokens").asInt()).isEqualTo(prompt.length);
        JsonNode part = decode.get("/v1/requests/explained/explain").json();
        assertThat(part.path("trace_id").asString())
                .isEqualTo(whole.path("trace_id").asString())
                .isEqualTo(TRACE.replace('4', '5'));
        assertThat(part.path("prompt_tokens_by_source")
                        .path("external_kv_transfer")
                        .asInt())
                .isGreaterThanOrEqualTo(prompt.length - 1);
        assertThat(decode.metric("vllm:prompt_tokens_cached_by_source_total", "\"p2p\""))
                .isGreaterThanOrEqualTo(prompt.length - 1);
        assertThat(part.path("text").asString())
                .contains("NixlConnector from 127.0.0.1:")
                .contains("HTTP 200");
        assertThat(prefill.get("/v1/requests/explained/explain")
                        .json()
                        .path("text")
                        .asString())
                .contains("Of its " + prompt.length + " tokens " + prompt.length + " were computed here");
    }

    /** The names in the expressions of the dashboard. */
    private static Set<String> dashboardMetrics() throws IOException {
        JsonNode dashboard = Instances.JSON.readTree(Files.readString(
                Program.ROOT.resolve("deploy").resolve("grafana").resolve("baton.json")));
        Pattern name = Pattern.compile("(?:vllm|baton):[a-z0-9_]+");
        Set<String> names = new TreeSet<>();
        dashboard.findValuesAsString("expr").forEach(expression -> {
            Matcher found = name.matcher(expression);
            while (found.find()) {
                names.add(found.group());
            }
        });
        return names;
    }

    private static Set<String> exported(URI url) throws Exception {
        try (ApiClient client = new ApiClient()) {
            return client.metrics(url).keySet().stream()
                    .map(sample -> sample.replaceFirst("\\{.*", ""))
                    .collect(Collectors.toSet());
        }
    }

    @Test
    void everyMetricOfTheDashboardIsExported() throws Exception {
        ObjectNode streamed = Instances.greedy(Ledgers.prompt(100, 4713), TOKENS);
        HttpResponse<?> streaming = router.stream("/v1/completions", streamed);
        try (var lines = (java.io.InputStream) streaming.body()) {
            assertThat(lines.readAllBytes()).isNotEmpty();
        }
        assertThat(router.complete(new int[] {1, 2, 3}, TOKENS).status()).isEqualTo(200);
        // Failures are counted from the first one on: one hand-off of an engine that is gone, one of a host that is.
        ObjectNode params =
                (ObjectNode) prefill.get("/kv_transfer_params").json().path("kv_transfer_params");
        for (ObjectNode gone : List.of(
                params.deepCopy().put("remote_engine_id", "an engine before"),
                params.deepCopy().put("remote_port", FreePorts.inARow(1)))) {
            ObjectNode body = Instances.greedy(Ledgers.prompt(100, 4714), TOKENS);
            body.set("kv_transfer_params", gone);
            assertThat(decode.post("/v1/completions", body.toString()).status()).isEqualTo(200);
        }
        Set<String> missing = dashboardMetrics();
        assertThat(missing).hasSizeGreaterThan(30);
        // Some are exported from their first count on, which no answer waits for.
        Await.until(Instances.DEADLINE, () -> "not exported: " + missing, () -> {
            for (Instance each : List.of(router, prefill, decode)) {
                missing.removeAll(exported(each.url()));
            }
            return missing.isEmpty();
        });
    }
}
