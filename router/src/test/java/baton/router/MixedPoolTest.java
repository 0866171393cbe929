package baton.router;

import static org.assertj.core.api.Assertions.assertThat;

import baton.router.flow.AutoFlow;
import baton.router.policy.LatencyGoals;
import baton.router.policy.LocalPrefill;
import baton.router.policy.PolicySettings;
import baton.router.policy.SplitPrompts;
import baton.testkit.Await;
import java.net.URI;
import java.net.http.HttpResponse;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/** Instances of Baton and of vLLM, with different connectors, in one pool: each pair has its flow. */
@Timeout(300)
class MixedPoolTest {
    private static final JsonMapper JSON = JsonMapper.builder().build();
    private static final String BLOCKS =
            "{\"kv_transfer_params\":{\"do_remote_prefill\":true,\"remote_engine_id\":\"e\",\"remote_host\":\"127.0.0.1\",\"remote_port\":5600,\"remote_block_ids\":[1],\"remote_request_id\":\"r\",\"tp_size\":1}}";

    @AutoClose
    private final RouterFixture fixture = new RouterFixture();

    /** Tells its connector, as Baton's do. */
    private FakeInstance baton(String connector, String params) {
        FakeInstance instance = fixture.instance();
        instance.ahead = FakeInstance.json(
                200, "{\"kv_transfer_params\":" + params + ",\"kv_connector\":\"" + connector + "\"}");
        return instance;
    }

    private FakeInstance batonNixl() {
        return baton(
                "NixlConnector",
                "{\"remote_engine_id\":\"e\",\"remote_host\":\"127.0.0.1\",\"remote_port\":5600,\"tp_size\":1}");
    }

    private static URI vllm(FakeInstance instance, String connector) {
        return URI.create(instance.uri() + "?connector=" + connector);
    }

    private Router router(List<URI> prefills, List<URI> decodes, LocalPrefill local) {
        return fixture.start(TestConfigs.router(
                "127.0.0.1",
                0,
                prefills,
                decodes,
                AutoFlow.NAME,
                Optional.empty(),
                RouterFixture.LIMITS,
                Optional.empty(),
                PolicySettings.DEFAULT.withLocalPrefill(local)));
    }

    private static JsonNode params(FakeInstance.Received request) {
        return JSON.readTree(request.body()).path("kv_transfer_params");
    }

    @Test
    void eachPairHandsOverInTheWayOfItsConnectors() throws Exception {
        FakeInstance prefill = batonNixl();
        prefill.behaviour = FakeInstance.json(200, BLOCKS);
        FakeInstance vllmPrefill = fixture.instance();
        vllmPrefill.behaviour = FakeInstance.json(200, BLOCKS);
        FakeInstance decode = batonNixl();
        FakeInstance vllmDecode = fixture.instance();
        Router router = router(
                List.of(prefill.uri(), vllm(vllmPrefill, "NixlConnector")),
                List.of(decode.uri(), vllm(vllmDecode, "NixlConnector")),
                LocalPrefill.NEVER);
        List<String> explanations = new ArrayList<>();
        for (int i = 0; i < 24; i++) {
            HttpResponse<String> answer = fixture.post(router, "{\"prompt\":\"a\"}");
            assertThat(answer.statusCode()).as(answer.body()).isEqualTo(200);
            String id = answer.headers().firstValue("X-Request-Id").orElseThrow();
            explanations.add(fixture.get(router, "/v1/requests/" + id + "/explain", "Accept", "text/plain")
                    .body());
        }
        // A vLLM that reads breaks on a request that names no blocks.
        assertThat(vllmDecode.received)
                .hasSize(12)
                .allSatisfy(request ->
                        assertThat(params(request).path("remote_block_ids")).hasSize(1));
        assertThat(vllmPrefill.received).hasSize(12);
        assertThat(explanations)
                .anyMatch(text -> text.contains("the two hand over by kv_transfer_params_push"))
                .anyMatch(text -> text.contains("the two hand over by kv_transfer_params."));
        double push = fixture.metric(router, "baton:router_pair_flows_total{flow=\"kv_transfer_params_push\"}");
        double pull = fixture.metric(router, "baton:router_pair_flows_total{flow=\"kv_transfer_params\"}");
        assertThat(push + pull).isEqualTo(24);
        assertThat(push)
                .isEqualTo(decode.received.stream()
                        .filter(request ->
                                params(request).path("remote_block_ids").isMissingNode())
                        .count());
        assertThat(fixture.get(router, "/v1/instances").body())
                .contains("\"connector\":\"NixlConnector\",\"engine\":\"baton\"")
                .contains("\"connector\":\"NixlConnector\",\"engine\":\"vllm\"");
    }

    /** Only Baton's NIXL connectors take the blocks of a prompt's beginning, and only when they are named. */
    @Test
    void promptsAreSplitBetweenInstancesThatHandAPartOver() throws Exception {
        FakeInstance prefill = batonNixl();
        prefill.behaviour = FakeInstance.json(200, BLOCKS);
        FakeInstance decode = batonNixl();
        FakeInstance vllmDecode = fixture.instance();
        Router router = router(
                List.of(prefill.uri()),
                List.of(decode.uri(), vllm(vllmDecode, "NixlConnector")),
                new LocalPrefill(false, 0, 0, Integer.MAX_VALUE, LatencyGoals.NONE, SplitPrompts.parse("0.5")));
        for (int i = 0; i < 4; i++) {
            HttpResponse<String> answer = fixture.post(router, "{\"prompt\":\"a\"}", "X-Baton-Prompt-Share", "0.1");
            assertThat(answer.statusCode()).as(answer.body()).isEqualTo(200);
        }
        assertThat(prefill.received.stream().map(each -> each.headers().getAll("X-Baton-Prompt-Share")))
                .containsExactlyInAnyOrder(List.of("0.500000"), List.of("0.500000"), List.of(), List.of());
        assertThat(decode.received).hasSize(2).allSatisfy(request -> {
            assertThat(request.headers().contains("X-Baton-Prompt-Share")).isFalse();
            assertThat(params(request).path("remote_block_ids")).hasSize(1);
        });
        assertThat(fixture.metric(router, "baton:router_prompts_split_total")).isEqualTo(2);
    }

    @Test
    void aDecodeInstanceThatTakesWholePromptsGetsOneAfterOneThatTakesAPartRefuses() throws Exception {
        FakeInstance prefill = batonNixl();
        prefill.behaviour = FakeInstance.json(200, BLOCKS);
        FakeInstance decode = batonNixl();
        decode.behaviour = FakeInstance.json(503, "{}");
        FakeInstance vllmDecode = fixture.instance();
        Router router = router(
                List.of(prefill.uri()),
                List.of(decode.uri(), vllm(vllmDecode, "NixlConnector")),
                new LocalPrefill(false, 0, 0, Integer.MAX_VALUE, LatencyGoals.NONE, SplitPrompts.parse("0.5")));
        for (int i = 0; i < 2; i++) {
            assertThat(fixture.post(router, "{\"prompt\":\"a\"}").statusCode()).isEqualTo(200);
        }
        assertThat(decode.received).isNotEmpty();
        assertThat(vllmDecode.received).hasSize(2);
        assertThat(prefill.received.stream().filter(each -> !each.headers().contains("X-Baton-Prompt-Share")))
                .as("prefill legs of whole prompts")
                .hasSize(2);
    }

    @Test
    void instancesThatDoNotFitAreNoPair() throws Exception {
        FakeInstance storage = baton("SharedStorageConnector", "null");
        FakeInstance storageDecode = baton("SharedStorageConnector", "null");
        FakeInstance nixl = batonNixl();
        nixl.behaviour = FakeInstance.json(200, BLOCKS);
        FakeInstance nixlDecode = fixture.instance();
        FakeInstance unknown = fixture.instance();
        Router router = router(
                List.of(storage.uri(), nixl.uri()),
                List.of(storageDecode.uri(), vllm(nixlDecode, "NixlConnector"), unknown.uri()),
                LocalPrefill.NEVER);
        for (int i = 0; i < 20; i++) {
            HttpResponse<String> answer = fixture.post(router, "{\"prompt\":\"a\"}");
            assertThat(answer.statusCode()).as(answer.body()).isEqualTo(200);
            boolean byStorage = answer.headers()
                    .firstValue("X-Baton-Prefill")
                    .orElseThrow()
                    .equals(storage.uri().toString());
            assertThat(answer.headers().firstValue("X-Baton-Decode"))
                    .contains((byStorage ? storageDecode : nixlDecode).uri().toString());
        }
        assertThat(storage.received).isNotEmpty();
        assertThat(nixl.received).isNotEmpty();
        assertThat(unknown.received).isEmpty();
    }

    @Test
    void aPrefillLegThatFailsIsRetriedWhereItFitsTheDecodeInstance() throws Exception {
        FakeInstance first = batonNixl();
        first.behaviour = FakeInstance.json(500, "{}");
        FakeInstance wrong = baton("MooncakeConnector", "null");
        FakeInstance decode = batonNixl();
        Router router = router(
                List.of(first.uri(), wrong.uri()),
                List.of(decode.uri()),
                new LocalPrefill(true, 0, 0, Integer.MAX_VALUE));
        HttpResponse<String> answer = fixture.post(router, "{\"prompt\":\"a\"}");
        assertThat(answer.statusCode()).isEqualTo(200);
        assertThat(answer.headers().firstValue("X-Baton-Local-Prefill")).contains("failed");
        assertThat(wrong.received).isEmpty();
    }

    @Test
    void poolsWithoutAPairSaySo() throws Exception {
        FakeInstance prefill = batonNixl();
        FakeInstance decode = baton("MooncakeConnector", "null");
        Router router = router(List.of(prefill.uri()), List.of(decode.uri()), LocalPrefill.NEVER);
        HttpResponse<String> answer = fixture.post(router, "{\"prompt\":\"a\"}");
        assertThat(answer.statusCode()).isEqualTo(503);
        assertThat(answer.body())
                .contains("its MooncakeConnector of Baton fits that of no prefill instance: NixlConnector of Baton");
        assertThat(fixture.get(router, "/health").statusCode()).isEqualTo(503);
        assertThat(prefill.received).isEmpty();

        Router fallback =
                router(List.of(prefill.uri()), List.of(decode.uri()), new LocalPrefill(true, 0, 0, Integer.MAX_VALUE));
        assertThat(fixture.post(fallback, "{\"prompt\":\"a\"}").statusCode()).isEqualTo(200);
    }

    @Test
    void instancesThatAreDownMakeNoPair() throws Exception {
        FakeInstance mooncake = baton("MooncakeConnector", "null");
        mooncake.health = 503;
        FakeInstance nixl = batonNixl();
        FakeInstance mooncakeDecode = baton("MooncakeConnector", "null");
        FakeInstance nixlDecode = batonNixl();
        nixlDecode.health = 503;
        Router router = router(
                List.of(vllm(mooncake, "MooncakeConnector"), nixl.uri()),
                List.of(mooncakeDecode.uri(), vllm(nixlDecode, "NixlConnector")),
                LocalPrefill.NEVER);
        HttpResponse<String> answer = fixture.post(router, "{\"prompt\":\"a\"}");
        assertThat(answer.statusCode()).isEqualTo(503);
        assertThat(answer.body())
                .contains("its MooncakeConnector of Baton fits that of no prefill instance: NixlConnector of Baton");
        assertThat(fixture.get(router, "/health").statusCode()).isEqualTo(503);
    }

    @Test
    void theConnectorOfAServerThatWasReplacedIsForgotten() throws Exception {
        FakeInstance prefill = batonNixl();
        FakeInstance decode = batonNixl();
        Router router = router(List.of(prefill.uri()), List.of(decode.uri()), LocalPrefill.NEVER);
        assertThat(fixture.post(router, "{\"prompt\":\"a\"}").statusCode()).isEqualTo(200);
        prefill.ahead = FakeInstance.json(404, "{\"detail\":\"Not Found\"}");
        Await.until(
                "its connector is not known",
                RouterFixture.SOON,
                () -> fixture.post(router, "{\"prompt\":\"a\"}").body().contains("its connector is not known"));
    }

    @Test
    void anInstanceWithAnUnknownConnectorSaysHowToTell() throws Exception {
        FakeInstance prefill = fixture.instance();
        FakeInstance decode = fixture.instance();
        Router router = router(List.of(prefill.uri()), List.of(decode.uri()), LocalPrefill.NEVER);
        assertThat(fixture.post(router, "{\"prompt\":\"a\"}").body())
                .contains("its connector is not known")
                .contains("?connector=NixlConnector");
    }
}
