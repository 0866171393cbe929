package baton.router;

import static org.assertj.core.api.Assertions.assertThat;

import baton.router.flow.ContentKeyedFlow;
import baton.router.policy.LatencyGoals;
import baton.router.policy.LocalPrefill;
import baton.router.policy.PolicySettings;
import baton.router.role.RoleSettings;
import baton.router.upstream.Discovery;
import baton.testkit.Await;
import io.vertx.core.Vertx;
import io.vertx.core.http.HttpServerResponse;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.Queue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.function.BiConsumer;
import java.util.stream.Stream;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/** Instances that change their role while the router runs, by their answers in the new one. */
@Timeout(300)
class RoleSwitchTest {
    private static final JsonMapper MAPPER = JsonMapper.builder().build();
    private static final String BODY = "{\"prompt\":\"hello\"}";
    private static final String KEY = "an-admin-key";
    private static final String PATH = "/v1/pd_role";
    private static final String STREAM = "{\"id\":\"cmpl-1\",\"created\":7,\"seed\":9}";
    private static final String FIRST = "data: {\"text\":\"a\"}\n\n";
    private static final String LAST = ":t 0 13 end\n\ndata: [DONE]\n\n";

    @AutoClose
    private final RouterFixture fixture = new RouterFixture();

    private final FakeInstance prefill = fixture.instance();
    private final FakeInstance decode = fixture.instance();
    private final FakeInstance other = fixture.instance();

    /** With two prefill instances and one decode instance. */
    private Router router(Duration proof) {
        return router(
                PolicySettings.DEFAULT, new RoleSettings(proof, RoleSettings.Mode.OFF, Duration.ofSeconds(5), false));
    }

    private Router router(PolicySettings policy, RoleSettings roles) {
        return fixture.start(TestConfigs.router(
                "127.0.0.1",
                0,
                RouterFixture.uris(List.of(prefill, other)),
                RouterFixture.uris(List.of(decode)),
                ContentKeyedFlow.NAME,
                Optional.empty(),
                RouterFixture.LIMITS,
                Optional.empty(),
                policy,
                false,
                new RouterConfig.Sources(Discovery.Settings.NONE, Optional.of(KEY), roles, Optional.of("own-key"))));
    }

    /** Answers of {@code /v1/pd_role}, and of all other paths. */
    private static BiConsumer<FakeInstance.Received, HttpServerResponse> roles(
            BiConsumer<FakeInstance.Received, HttpServerResponse> ofRole,
            BiConsumer<FakeInstance.Received, HttpServerResponse> ofOthers) {
        return (request, response) -> (request.uri().equals(PATH) ? ofRole : ofOthers).accept(request, response);
    }

    private HttpResponse<String> toDecode(Router router) throws Exception {
        return admin(router, "role", "decode", other);
    }

    private HttpResponse<String> admin(Router router, String action, String role, FakeInstance instance)
            throws Exception {
        return fixture.postTo(
                router,
                "/v1/instances/" + action,
                "{\"role\":\"%s\",\"url\":\"%s\"}".formatted(role, instance.uri()),
                "Authorization",
                "Bearer " + KEY);
    }

    /** The instance in each of its roles: both, while it changes from one to the other. */
    private List<JsonNode> instances(Router router) throws Exception {
        return MAPPER.readTree(fixture.get(router, "/v1/instances").body())
                .get("instances")
                .valueStream()
                .filter(each -> each.get("url").asString().equals(other.uri().toString()))
                .toList();
    }

    private JsonNode instance(Router router) throws Exception {
        List<JsonNode> found = instances(router);
        assertThat(found).hasSize(1);
        return found.getFirst();
    }

    private void awaitChange(Router router, String state, String role) {
        Await.until(state, RouterFixture.SOON, () -> {
            // Leads requests to it.
            fixture.post(router, BODY);
            List<JsonNode> found = instances(router);
            return found.size() == 1
                    && found.getFirst().at("/role_change/state").asString().equals(state)
                    && found.getFirst().get("role").asString().equals(role);
        });
    }

    @Test
    void theInstancesCountOfItsWorkProvesTheRole() throws Exception {
        other.behaviour = roles(
                (request, response) -> response.end(
                        request.method().equals("POST")
                                ? "{\"role\":\"decode\"}"
                                : "{\"role\":\"decode\",\"decode\":{\"requests\":3,\"tokens\":30}}"),
                FakeInstance.json(200, RouterFixture.ANSWER));
        Router router = router(RouterFixture.SOON);
        assertThat(toDecode(router).body()).contains("\"changed\":true");
        assertThat(instances(router))
                .allSatisfy(each ->
                        assertThat(each.at("/role_change/state").asString()).isIn("pending", "proven"));
        awaitChange(router, "proven", "decode");
        assertThat(instance(router).at("/role_change/reason").asString()).contains("served 3 requests");
        assertThat(other.received.getFirst().body()).isEqualTo("{\"role\":\"decode\"}");
        assertThat(other.received.getFirst().headers().get("Authorization")).isEqualTo("Bearer own-key");
        assertThat(toDecode(router).body()).contains("\"changed\":false");
        assertThat(fixture.metric(router, "baton:router_role_changes_total{result=\"proven\",role=\"decode\"}"))
                .isEqualTo(1);
    }

    @Test
    void answersProveTheRoleOfAnInstanceThatHasNoCount() throws Exception {
        other.behaviour = roles(FakeInstance.json(404, "{}"), FakeInstance.json(200, RouterFixture.ANSWER));
        Router router = router(RouterFixture.SOON);
        assertThat(toDecode(router).body()).contains("\"changed\":true");
        awaitChange(router, "proven", "decode");
    }

    @Test
    void anInstanceThatRefusesTheRoleKeepsItsFormerOne() throws Exception {
        other.behaviour = roles(
                FakeInstance.json(409, "{\"error\":{\"message\":\"kv_role only gives\"}}"),
                FakeInstance.json(200, RouterFixture.ANSWER));
        Router router = router(RouterFixture.SOON);
        HttpResponse<String> refused = toDecode(router);
        assertThat(refused.statusCode()).isEqualTo(400);
        assertThat(refused.body()).contains(other.uri().toString(), "409", "kv_role only gives");
        awaitChange(router, "refused", "prefill");
    }

    @Test
    void anInstanceThatDoesNotComeUpInTheRoleKeepsItsFormerOne() throws Exception {
        other.behaviour = roles(
                (request, response) -> {
                    other.health = request.body().contains("decode") ? 503 : 200;
                    response.end("{\"role\":\"decode\"}");
                },
                FakeInstance.json(200, RouterFixture.ANSWER));
        Router router = router(Duration.ofMillis(300));
        HttpResponse<String> refused = toDecode(router);
        assertThat(refused.statusCode()).isEqualTo(400);
        assertThat(refused.body()).contains("it does not come up as a decode instance");
        awaitChange(router, "refused", "prefill");
    }

    @Test
    void aChangeWithoutWorkIsTakenBack() throws Exception {
        other.behaviour = roles(
                (request, response) -> response.end("{\"role\":\"decode\",\"decode\":{\"requests\":0,\"tokens\":0}}"),
                FakeInstance.json(500, "{}"));
        Router router = router(Duration.ofMillis(300));
        assertThat(toDecode(router).body()).contains("\"changed\":true");
        awaitChange(router, "rolled_back", "prefill");
        Await.until(
                "the instance learns its former role",
                RouterFixture.SOON,
                () -> other.received.stream().anyMatch(each -> each.body().equals("{\"role\":\"prefill\"}")));
    }

    @Test
    void streamsOfAFormerDecodeInstanceContinueAtAnother() throws Exception {
        other.behaviour = roles(FakeInstance.json(404, "{}"), FakeInstance.json(200, RouterFixture.ANSWER));
        CompletableFuture<HttpServerResponse> open = new CompletableFuture<>();
        decode.behaviour = roles(FakeInstance.json(404, "{}"), (_, response) -> open.complete(response));
        Router router = router(RouterFixture.SOON);
        assertThat(toDecode(router).body()).contains("\"changed\":true");
        other.behaviour = (_, response) -> FakeInstance.events(response.putHeader("X-Baton-Stream", STREAM))
                .end(LAST);

        CompletableFuture<HttpResponse<String>> answer =
                fixture.postAndGoOn(router, "{\"prompt\":\"hello\",\"stream\":true}");
        HttpServerResponse response = RouterFixture.result(open);
        assertThat(admin(router, "role", "prefill", decode).body()).contains("\"changed\":true");
        FakeInstance.events(response.putHeader("X-Baton-Stream", STREAM), FIRST + ":t 0 11\n\n");

        assertThat(RouterFixture.result(answer).body()).isEqualTo(FIRST + "data: [DONE]\n\n");
        assertThat(MAPPER.readTree(other.received.getLast().body())
                        .at("/baton_continue/choices/0/token_ids/0")
                        .asInt())
                .isEqualTo(11);
    }

    @Test
    void streamsLeaveAnInstanceThatHasItsFormerRoleAgain() throws Exception {
        CompletableFuture<HttpServerResponse> open = new CompletableFuture<>();
        other.behaviour = roles(
                FakeInstance.json(200, "{\"role\":\"decode\",\"decode\":{\"requests\":0,\"tokens\":0}}"),
                (_, response) -> open.complete(response));
        decode.behaviour = (_, response) -> FakeInstance.events(response.putHeader("X-Baton-Stream", STREAM))
                .end(LAST);
        Router router = router(Duration.ofMillis(300));
        assertThat(toDecode(router).body()).contains("\"changed\":true");
        String body = "{\"prompt\":\"hello\",\"stream\":true}";
        List<CompletableFuture<HttpResponse<String>>> answers =
                List.of(fixture.postAndGoOn(router, body), fixture.postAndGoOn(router, body));
        HttpServerResponse response = RouterFixture.result(open);
        fixture.awaitMetric(router, "baton:router_role_changes_total{result=\"rolled_back\",role=\"decode\"}", 1);

        FakeInstance.events(response.putHeader("X-Baton-Stream", STREAM), FIRST + ":t 0 11\n\n");

        for (CompletableFuture<HttpResponse<String>> answer : answers) {
            assertThat(RouterFixture.result(answer).body()).endsWith("data: [DONE]\n\n");
        }
        assertThat(decode.received.getLast().body()).contains("\"token_ids\":[11]");
        assertThat(fixture.metric(
                        router, "baton:router_streams_continued_total{outcome=\"continued\",reason=\"leaving\"}"))
                .isEqualTo(1);
    }

    @Test
    void theControllerDecidesNothingWhileAChangeIsUnderWay() throws Exception {
        Queue<HttpServerResponse> asked = new ConcurrentLinkedQueue<>();
        for (FakeInstance each : List.of(prefill, other)) {
            each.behaviour = roles((_, response) -> asked.add(response), FakeInstance.json(200, RouterFixture.ANSWER));
        }
        decode.behaviour = (_, response) -> {
            FakeInstance.events(response, FIRST);
            Vertx.currentContext().owner().setTimer(5, _ -> response.end(FIRST + "data: [DONE]\n\n"));
        };
        LatencyGoals goals = new LatencyGoals(Optional.of(Duration.ofMinutes(1)), Optional.of(Duration.ofNanos(1000)));
        Router router = router(
                PolicySettings.DEFAULT.withLocalPrefill(LocalPrefill.NEVER.withGoals(goals)),
                new RoleSettings(RouterFixture.SOON, RoleSettings.Mode.ON, Duration.ofMillis(20), false));
        Await.until("an instance is asked", RouterFixture.SOON, () -> {
            streams(router);
            return !asked.isEmpty();
        });
        // Many windows, within the deadline of the question.
        long end = System.nanoTime() + Duration.ofSeconds(1).toNanos();
        while (System.nanoTime() < end) {
            streams(router);
        }
        assertThat(asked).hasSize(1);
        asked.element().end("{\"role\":\"decode\"}");
        fixture.awaitMetric(router, "baton:router_role_decisions_total{decision=\"decode\"}", 1);
    }

    /** Enough to be judged by. */
    private void streams(Router router) throws Exception {
        List<CompletableFuture<HttpResponse<String>>> answers = Stream.generate(
                        () -> fixture.postAndGoOn(router, "{\"prompt\":\"hello\",\"stream\":true}"))
                .limit(20)
                .toList();
        for (CompletableFuture<HttpResponse<String>> answer : answers) {
            assertThat(RouterFixture.result(answer).body()).endsWith("data: [DONE]\n\n");
        }
    }

    @Test
    void changesOfInstancesThatWereRemovedAreForgotten() throws Exception {
        other.behaviour = roles(FakeInstance.json(404, "{}"), FakeInstance.json(200, RouterFixture.ANSWER));
        Router router = router(RouterFixture.SOON);
        assertThat(toDecode(router).body()).contains("\"changed\":true");
        awaitChange(router, "proven", "decode");
        assertThat(admin(router, "remove", "decode", other).body()).contains("\"changed\":true");
        assertThat(admin(router, "role", "prefill", decode).body()).contains("\"changed\":true");
        assertThat(admin(router, "add", "decode", other).body()).contains("\"changed\":true");
        assertThat(instance(router).has("role_change")).isFalse();
    }
}
