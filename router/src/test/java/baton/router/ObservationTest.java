package baton.router;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.router.flow.ContentKeyedFlow;
import baton.router.policy.LocalPrefill;
import baton.testkit.Await;
import java.io.IOException;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/** A router's reports about its requests and instances, and its page. */
@Timeout(300)
class ObservationTest {
    private static final JsonMapper MAPPER = JsonMapper.builder().build();
    private static final String BODY = "{\"prompt\":\"a secret\",\"stream\":false}";

    @AutoClose
    private final RouterFixture fixture = new RouterFixture();

    private final FakeInstance prefill = fixture.instance();
    private final FakeInstance decode = fixture.instance();

    private Router router(List<FakeInstance> prefills, LocalPrefill local) {
        return fixture.router(ContentKeyedFlow.NAME, prefills, List.of(decode), Optional.empty(), local);
    }

    private JsonNode json(Router router, String path) throws Exception {
        HttpResponse<String> answer = fixture.get(router, path);
        assertThat(answer.statusCode()).as(answer.body()).isEqualTo(200);
        assertThat(answer.headers().firstValue("Content-Type")).contains("application/json");
        return MAPPER.readTree(answer.body());
    }

    private static List<String> steps(JsonNode explained) {
        return explained
                .path("steps")
                .valueStream()
                .map(step -> step.path("what").asString())
                .toList();
    }

    @Test
    void aRequestIsExplained() throws Exception {
        Router router = router(List.of(prefill), LocalPrefill.NEVER);
        fixture.post(router, BODY, "X-Request-Id", "my-request");
        JsonNode explained = json(router, "/v1/requests/my-request/explain");
        assertThat(explained.path("outcome").asString()).isEqualTo("ok");
        assertThat(explained.path("prefill").path("instance").asString())
                .isEqualTo(prefill.uri().toString());
        assertThat(explained.path("decode").path("instance").asString())
                .isEqualTo(decode.uri().toString());
        double prefilled = explained.path("prefill").path("ended_ms").asDouble();
        assertThat(explained.path("ttft_ms").asDouble()).isGreaterThanOrEqualTo(prefilled);
        assertThat(explained.path("total_ms").asDouble())
                .isGreaterThanOrEqualTo(explained.path("ttft_ms").asDouble());
        assertThat(steps(explained))
                .containsExactly(
                        "prefill sent to " + prefill.uri() + ": it was its turn",
                        "prefill answered",
                        "decode sent to " + decode.uri() + ": it was its turn",
                        "first byte",
                        "ended: ok");
        assertThat(explained.path("text").asString())
                .contains("Prefill was sent to " + prefill.uri())
                .contains("Decode was sent to " + decode.uri())
                .contains("ok, HTTP 200");
        assertThat(explained.toString()).doesNotContain("a secret");
    }

    @Test
    void failuresAndRetriesAreExplained() throws Exception {
        FakeInstance failing = fixture.instance();
        failing.behaviour = FakeInstance.json(500, "{\"error\":{\"message\":\"out of order\"}}");
        FakeInstance alsoFailing = fixture.instance();
        alsoFailing.behaviour = failing.behaviour;
        Router router = router(List.of(failing, alsoFailing), new LocalPrefill(true, 0, 0, Integer.MAX_VALUE));
        fixture.post(router, BODY, "X-Request-Id", "retried");
        JsonNode explained = json(router, "/v1/requests/retried/explain");
        assertThat(steps(explained))
                .anySatisfy(step -> assertThat(step).contains(failing.uri() + ": HTTP 500: out of order"))
                .anySatisfy(step -> assertThat(step).contains(alsoFailing.uri() + ": HTTP 500: out of order"))
                .contains("no prefill leg: the prefill leg failed for good");
        assertThat(explained.path("local_prefill").asString()).isEqualTo("the prefill leg failed for good");
        assertThat(explained.path("text").asString()).contains("computed the prompt itself");
    }

    @Test
    void requestsUnderWayAndEndedAreListed() throws Exception {
        Router router = router(List.of(prefill), LocalPrefill.NEVER);
        fixture.post(router, BODY, "X-Request-Id", "one");
        fixture.post(router, BODY, "X-Request-Id", "two");
        prefill.behaviour = (request, response) -> {};
        try (RawClient client = new RawClient(router.port())) {
            client.post(RouterFixture.COMPLETIONS, BODY);
            Await.until("prefill asked", RouterFixture.SOON, () -> prefill.received.size() == 3);
            JsonNode listed = json(router, "/v1/requests?limit=10");
            assertThat(listed.path("ended")
                            .valueStream()
                            .map(each -> each.path("id").asString()))
                    .containsExactly("two", "one");
            assertThat(listed.path("running")
                            .valueStream()
                            .map(each -> each.path("state").asString()))
                    .containsExactly("running");
            String id = listed.path("running").path(0).path("id").asString();
            assertThat(json(router, "/v1/requests/" + id + "/explain")
                            .path("text")
                            .asString())
                    .contains("it has not answered")
                    .contains("It has been running for");
        }
        assertThat(json(router, "/v1/requests?limit=1").path("ended")).hasSize(1);
        for (String wrong : List.of("x", "-1", "2001", "99999")) {
            HttpResponse<String> refused = fixture.get(router, "/v1/requests?limit=" + wrong);
            assertThat(refused.statusCode()).isEqualTo(400);
            assertThat(refused.body()).contains("limit is '" + wrong + "', must be 0 to 2000");
        }
    }

    @Test
    void aRequestThatIsNotKnownIsNotFound() throws Exception {
        Router router = router(List.of(prefill), LocalPrefill.NEVER);
        assertThat(fixture.get(router, "/v1/requests/none/explain").statusCode())
                .isEqualTo(404);
        assertThat(fixture.get(router, "/v1/requests/%3Cscript%3E/explain").body())
                .contains("no request with X-Request-Id '<script>'");
        assertThat(fixture.get(router, "/v1/requests//explain").statusCode()).isEqualTo(404);
        assertThat(fixture.get(router, "/ui/../metrics").statusCode()).isEqualTo(404);
    }

    @Test
    void instancesAreListedWithTheirState() throws Exception {
        FakeInstance sick = fixture.instance();
        sick.health = 503;
        Router router = router(List.of(prefill, sick), LocalPrefill.NEVER);
        fixture.post(router, BODY);
        JsonNode instances = json(router, "/v1/instances").path("instances");
        assertThat(instances).hasSize(3);
        assertThat(instances.path(0).path("up").asBoolean()).isTrue();
        assertThat(instances.path(0).path("requests").asInt()).isEqualTo(1);
        assertThat(instances.path(1).path("up").asBoolean()).isFalse();
        assertThat(instances.path(1).path("down").asString()).contains("503");
        assertThat(instances.path(2).path("role").asString()).isEqualTo("decode");
        String states = "baton:router_instances_by_state{role=\"prefill\",state=";
        assertThat(fixture.metric(router, states + "\"up\"}")).isEqualTo(1);
        assertThat(fixture.metric(router, states + "\"down\"}")).isEqualTo(1);
        assertThat(fixture.metric(router, states + "\"tripped\"}")).isZero();
    }

    @Test
    void timesToTheFirstTokenAndBetweenTokensAreMeasuredByWhereThePromptIsComputed() throws Exception {
        decode.behaviour =
                (request, response) -> FakeInstance.events(response, "data: 1\n\n", "data: 2\n\n", "data: [DONE]\n\n")
                        .end();
        Router router = router(List.of(prefill), new LocalPrefill(false, 10, 0, Integer.MAX_VALUE));
        fixture.post(router, BODY);
        fixture.post(router, "{\"prompt\":\"short\",\"stream\":true}");
        for (String where : List.of("remote", "local")) {
            String prefilled = "_seconds_count{prefill=\"" + where + "\"}";
            assertThat(fixture.metric(router, "baton:router_time_to_first_token" + prefilled))
                    .isEqualTo(1);
            assertThat(fixture.metric(router, "baton:router_inter_token_latency" + prefilled))
                    .isEqualTo(2);
        }
    }

    @Test
    void thePageIsServedWithAPolicyThatAllowsNothingFromElsewhere() throws Exception {
        Router router = router(List.of(prefill), LocalPrefill.NEVER);
        HttpResponse<String> page = fixture.get(router, "/ui");
        assertThat(page.headers().firstValue("Content-Type")).contains("text/html; charset=utf-8");
        assertThat(page.headers().firstValue("Content-Security-Policy").orElseThrow())
                .contains("default-src 'none'");
        assertThat(page.body()).contains("<title>Baton router</title>").doesNotContain("http://", "https://");
        assertThat(fixture.get(router, "/ui/ui.js").body()).contains("use strict");
        assertThat(fixture.get(router, "/ui/ui.css").statusCode()).isEqualTo(200);
    }

    /** The page in a browser. */
    @Test
    void thePageShowsInstancesAndRequests(@TempDir Path directory) throws Exception {
        Optional<Path> chromium = Stream.of(System.getenv("PATH").split(":"))
                .map(each -> Path.of(each, "chromium"))
                .filter(Files::isExecutable)
                .findFirst();
        assumeTrue(chromium.isPresent(), "chromium is not on the PATH (Debian's package chromium)");
        Router router = router(List.of(prefill), LocalPrefill.NEVER);
        fixture.post(router, BODY, "X-Request-Id", "shown-request");
        prefill.behaviour = FakeInstance.json(500, "{}");
        fixture.post(router, BODY, "X-Request-Id", "failed-request");
        String dom = dom(chromium.get(), directory, "http://127.0.0.1:" + router.port() + "/ui#request=failed-request");
        assertThat(dom)
                .contains("shown-request", "failed-request", "prefill_failed 502")
                .contains("<td>" + prefill.uri() + "</td><td class=\"up\">up</td>")
                .contains("up to date")
                .containsPattern("1 requests, .*: p50 [0-9.]+ ms")
                .contains("Request failed-request", "answered with HTTP 502")
                .contains("class=\"f-prefill\"");
    }

    private static String dom(Path chromium, Path directory, String url) throws IOException, InterruptedException {
        Path out = directory.resolve("dom.html");
        Process browser = new ProcessBuilder(
                        chromium.toString(),
                        "--headless",
                        "--no-sandbox",
                        "--disable-gpu",
                        "--disable-dev-shm-usage",
                        "--user-data-dir=" + directory.resolve("profile"),
                        "--virtual-time-budget=4000",
                        "--dump-dom",
                        url)
                .redirectOutput(out.toFile())
                .redirectError(ProcessBuilder.Redirect.DISCARD)
                .start();
        try {
            assertThat(browser.waitFor(60, TimeUnit.SECONDS))
                    .as("the browser has ended")
                    .isTrue();
        } finally {
            browser.descendants().forEach(ProcessHandle::destroyForcibly);
            browser.destroyForcibly().waitFor(10, TimeUnit.SECONDS);
        }
        return Files.readString(out, StandardCharsets.UTF_8);
    }
}
