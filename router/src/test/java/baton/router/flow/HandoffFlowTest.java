package baton.router.flow;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import baton.router.body.JsonObjectText;
import baton.router.body.PromptField;
import baton.router.upstream.ConnectorAddress;
import baton.router.upstream.Instance;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

class HandoffFlowTest {
    private static final Instance PREFILL = new Instance(Instance.Role.PREFILL, URI.create("http://p:1"));
    private static final Instance DECODE = new Instance(Instance.Role.DECODE, URI.create("http://d:2"));

    private static JsonObjectText parse(String text) {
        return JsonObjectText.parse("body", text.getBytes(StandardCharsets.UTF_8));
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            value = {
                "{}|{\"max_tokens\":1,\"stream\":false}",
                "{\"max_tokens\":5,\"stream\":true,\"stream_options\":{}}|{\"max_tokens\":1,\"stream\":false}",
                "{\"max_completion_tokens\":5}|{\"max_completion_tokens\":1,\"max_tokens\":1,\"stream\":false}",
                "{\"min_tokens\":5,\"min_completion_tokens\":5}|{\"max_tokens\":1,\"stream\":false}",
                "{\"cache_hit_threshold\":0.5}|{\"cache_hit_threshold\":0,\"max_tokens\":1,\"stream\":false}",
                "{\"n\":4,\"best_of\":8}|{\"n\":1,\"best_of\":1,\"max_tokens\":1,\"stream\":false}",
                "{\"cache_salt\":\"s\",\"messages\":[]}|{\"cache_salt\":\"s\",\"messages\":[],\"return_token_ids\":true,\"max_tokens\":1,\"stream\":false}",
                "{\"prompt\":\"a\",\"return_token_ids\":false}|{\"prompt\":\"a\",\"return_token_ids\":true,\"max_tokens\":1,\"stream\":false}",
                "{\"input\":\"a\",\"max_output_tokens\":9}|{\"input\":\"a\",\"max_output_tokens\":1,\"return_token_ids\":true,\"stream\":false}",
                "{\"input\":[{}]}|{\"input\":[{}],\"return_token_ids\":true,\"max_output_tokens\":1,\"stream\":false}",
                "{\"input\":\"a\",\"messages\":[]}|{\"input\":\"a\",\"messages\":[],\"return_token_ids\":true,\"max_output_tokens\":1,\"max_tokens\":1,\"stream\":false}",
                "{\"prompt\":[1,2]}|{\"prompt\":[1,2],\"max_tokens\":1,\"stream\":false}",
                "{\"prompt\":\"a\",\"echo\":true}|{\"prompt\":\"a\",\"echo\":true,\"max_tokens\":1,\"stream\":false}",
                "{\"response_format\":{\"type\":\"json_object\"},\"guided_regex\":\"a\"}|{\"response_format\":{\"type\":\"json_object\"},\"guided_regex\":\"a\",\"max_tokens\":1,\"stream\":false}"
            })
    void prefillLegIsAskedForOneTokenOnly(String body, String prefillBody) {
        HandoffFlow.Handoff handoff = new ContentKeyedFlow().begin(parse(body), "id", PREFILL, DECODE);
        assertThat(handoff.prefillBody().toString()).isEqualTo(prefillBody);
        assertThat(handoff.requestId()).isEqualTo("id");
        assertThat(handoff.decode())
                .isInstanceOfSatisfying(
                        HandoffFlow.AfterPrefill.class,
                        after -> assertThat(
                                        after.body().apply(parse("{}")).text().toString())
                                .isEqualTo(body));
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            value = {
                "\"text\"|1",
                "[1,2,3]|1",
                "[]|1",
                "[\"a\"]|1",
                "[[1,2]]|1",
                "[\"a\",\"b\",\"c\"]|3",
                "[[1,[2]],[3]]|2",
                "null|1"
            })
    void promptsAreCounted(String prompt, int count) {
        JsonObjectText body = parse("{\"prompt\":" + prompt + "}");
        assertThat(PromptField.count(body)).isEqualTo(count);
        assertThat(PromptField.split(body)).hasSize(count > 1 ? count : 0);
    }

    /** Completions have the ids in each choice, a chat and a response have them beside choices and output. */
    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            value = {
                "{'prompt':'a','n':2}|{'choices':[{'text':'x','prompt_token_ids':[7,8],'token_ids':[9]}]}|{'prompt':[7,8],'n':2}",
                "{'prompt':['a']}|{'choices':[{'prompt_token_ids':[7]}]}|{'prompt':[7]}",
                "{'prompt':['a','b']}|{'choices':[{'prompt_token_ids':[7]},{'prompt_token_ids':[8,9]}]}|{'prompt':[[7],[8,9]]}",
                "{'messages':[{}]}|{'choices':[{'token_ids':[9]}],'prompt_token_ids':[7,8]}|{'messages':[{}],'kv_transfer_params':{'prompt_token_ids':[7,8]}}",
                "{'messages':[{}]}|{'prompt_token_ids':[7],'kv_transfer_params':{'remote_port':1}}|{'messages':[{}],'kv_transfer_params':{'remote_port':1,'prompt_token_ids':[7]}}",
                "{'input':'a'}|{'output':[],'prompt_token_ids':[7],'kv_transfer_params':{'remote_port':1}}|{'input':'a','kv_transfer_params':{'remote_port':1,'prompt_token_ids':[7]}}",
                "{'prompt':'a'}|{'choices':[{'prompt_token_ids':[7]}],'kv_transfer_params':{'remote_port':1}}|{'prompt':[7],'kv_transfer_params':{'remote_port':1}}",
                "{'messages':[{}],'kv_transfer_params':{'k':1}}|{'prompt_token_ids':[7]}|{'messages':[{}],'kv_transfer_params':{'k':1,'prompt_token_ids':[7]}}",
                // Without ids, or with those of another number of prompts, the body stays as it is.
                "{'prompt':'a'}|{'choices':[{'prompt_token_ids':null}]}|{'prompt':'a'}",
                "{'prompt':'a'}|{'choices':[{'prompt_token_ids':[]}]}|{'prompt':'a'}",
                "{'prompt':'a'}|{'choices':[{'text':'x'}]}|{'prompt':'a'}",
                "{'prompt':'a'}|{'choices':7}|{'prompt':'a'}",
                "{'prompt':['a','b']}|{'choices':[{'prompt_token_ids':[7]}]}|{'prompt':['a','b']}",
                "{'messages':[{}]}|{'prompt_token_ids':null}|{'messages':[{}]}",
                "{'prompt':'a','echo':true}|{'choices':[{'prompt_token_ids':[7]}]}|{'prompt':'a','echo':true}",
                "{'prompt':[1]}|{'choices':[{'prompt_token_ids':[7]}]}|{'prompt':[1]}"
            })
    void theDecodeLegGetsTheTokenIdsOfThePrefillLeg(String body, String answer, String decodeBody) {
        HandoffFlow.Handoff handoff =
                new ContentKeyedFlow().begin(parse(body.replace('\'', '"')), "id", PREFILL, DECODE);
        assertThat(handoff.decode()).isInstanceOfSatisfying(HandoffFlow.AfterPrefill.class, after -> {
            HandoffFlow.DecodeBody made = after.body().apply(parse(answer.replace('\'', '"')));
            assertThat(made.text().toString()).isEqualTo(decodeBody.replace('\'', '"'));
            assertThat(made.carries()).isEqualTo(answer.contains("remote_port"));
            assertThat(made.isRendered())
                    .isEqualTo(!decodeBody.equals(body) || body.contains("echo") || body.contains("[1]"));
        });
    }

    /** Text is rendered by both legs at once only if both compare the results. */
    @ParameterizedTest
    @CsvSource({
        "baton, baton, true, true",
        "baton, vllm, true, false",
        "vllm, baton, true, false",
        "vllm, vllm, true, false",
        "vllm, vllm, false, true"
    })
    void legsWithATextAreSentAtOnceBetweenInstancesOfBatonOnly(
            String prefill, String decode, boolean isText, boolean atOnce) {
        Instance from = new Instance(
                Instance.Role.PREFILL, URI.create("http://p:1?connector=NixlPushConnector&engine=" + prefill));
        Instance to = new Instance(
                Instance.Role.DECODE, URI.create("http://d:2?connector=NixlPushConnector&engine=" + decode));
        assertThat(from.markUp()).isTrue();
        JsonObjectText body = parse(isText ? "{\"messages\":[{}]}" : "{\"prompt\":[1,2]}");
        for (String address : List.of(
                "{\"remote_engine_id\":\"e\",\"remote_host\":\"h\",\"remote_port\":5600,\"tp_size\":1}",
                "{\"remote_engine_id\":\"e\",\"remote_bootstrap_addr\":\"http://p:8998\"}")) {
            from.learnConnectorAddress(ConnectorAddress.parse(address.getBytes(StandardCharsets.UTF_8))
                    .orElseThrow());
            HandoffFlow flow = address.contains("bootstrap") ? new MooncakeFlow() : new PushFlow();
            HandoffFlow.Handoff handoff = flow.begin(body, "id", from, to);
            assertThat(handoff.decode() instanceof HandoffFlow.AtOnce).isEqualTo(atOnce);
            if (handoff.decode() instanceof HandoffFlow.AfterPrefill after) {
                assertThat(after.body()
                                .apply(parse("{\"prompt_token_ids\":[7],\"kv_transfer_params\":"
                                        + (address.contains("bootstrap") ? "null" : address) + "}"))
                                .text()
                                .toString())
                        .contains("\"remote_engine_id\":\"e\"", "\"prompt_token_ids\":[7]");
            }
        }
    }

    @Test
    void eachPromptIsFoundAsItsText() {
        assertThat(PromptField.split(parse("{\"prompt\": [ \"a\\\"]\" , [1, [2]],\"\u00e9\",\"\" ]}")))
                .map(each -> new String(each, StandardCharsets.UTF_8))
                .containsExactly("\"a\\\"]\"", "[1, [2]]", "\"\u00e9\"", "\"\"");
    }

    @Test
    void anUnknownFlowIsRefusedByName() {
        assertThat(HandoffFlow.named("content-keyed")).isInstanceOf(ContentKeyedFlow.class);
        assertThat(HandoffFlow.named("kv_transfer_params").name()).isEqualTo("kv_transfer_params");
        assertThatThrownBy(() -> HandoffFlow.named("magic"))
                .isInstanceOf(ConfigException.class)
                .hasMessage(
                        "flow: unsupported value 'magic'; allowed: content-keyed, kv_transfer_params, kv_transfer_params_push, p2p_nccl, mooncake, auto");
    }

    /** Both legs at once once the prefill instance's registry is known, one after the other before; every attempt is another transfer. */
    @Test
    void mooncakeLegsShareATransferId() throws Exception {
        Instance prefill = new Instance(Instance.Role.PREFILL, URI.create("http://p:1"));
        JsonObjectText body = parse("{\"prompt\":[1],\"max_tokens\":9}");
        HandoffFlow.Handoff first = new MooncakeFlow().begin(body, "id", prefill, DECODE);
        assertThat(first.decode())
                .isInstanceOfSatisfying(
                        HandoffFlow.AfterPrefill.class,
                        after -> assertThat(after.body()
                                        .apply(parse("{\"kv_transfer_params\":{\"transfer_id\":\"t\"}}"))
                                        .text()
                                        .toString())
                                .isEqualTo(
                                        "{\"prompt\":[1],\"max_tokens\":9,\"kv_transfer_params\":{\"transfer_id\":\"t\"}}"));
        assertThat(prefill.markUp()).isTrue();
        prefill.learnConnectorAddress(ConnectorAddress.parse(
                        "{\"remote_engine_id\":\"e\",\"remote_bootstrap_addr\":\"http://p:8998\",\"transfer_id\":\"t\"}"
                                .getBytes(StandardCharsets.UTF_8))
                .orElseThrow());
        HandoffFlow.Handoff second = new MooncakeFlow().begin(body, "id", prefill, DECODE);
        JsonMapper json = JsonMapper.builder().build();
        JsonNode ofPrefill = json.readTree(second.prefillBody().getBytes()).get("kv_transfer_params");
        assertThat(ofPrefill.get("do_remote_decode").asBoolean()).isTrue();
        assertThat(second.decode()).isInstanceOfSatisfying(HandoffFlow.AtOnce.class, atOnce -> {
            JsonNode ofDecode = json.readTree(atOnce.body().get().getBytes()).get("kv_transfer_params");
            assertThat(ofDecode.get("transfer_id")).isEqualTo(ofPrefill.get("transfer_id"));
            assertThat(ofDecode.get("remote_engine_id").asString()).isEqualTo("e");
            assertThat(ofDecode.get("remote_bootstrap_addr").asString()).isEqualTo("http://p:8998");
            assertThat(ofDecode.get("do_remote_prefill").asBoolean()).isTrue();
        });
        assertThat(new MooncakeFlow().begin(body, "id", prefill, DECODE).prefillBody())
                .isNotEqualTo(second.prefillBody());
        assertThatThrownBy(() -> new MooncakeFlow().begin(parse("{\"prompt\":[\"a\",\"b\"]}"), "id", prefill, DECODE))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("holds 2 prompts");
    }
}
