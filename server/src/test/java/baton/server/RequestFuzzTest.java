package baton.server;

import static org.assertj.core.api.Assertions.assertThat;

import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.Test;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

/** Random bodies are answered with success or a 4xx, and the server goes on. */
class RequestFuzzTest {
    private static final int REQUESTS = 600;
    private static final JsonNodeFactory JSON = JsonNodeFactory.instance;

    private record Sample(String path, String body) {}

    private static final List<Sample> SAMPLES = List.of(
            new Sample("/v1/completions", """
                    {"model":"tiny-ledger","prompt":"Item 7","n":2,"best_of":2,"temperature":0.5,"top_p":0.9,"top_k":7,
                    "min_p":0.1,"seed":7,"presence_penalty":0.2,"frequency_penalty":-0.3,"repetition_penalty":1.2,
                    "stop":["END"],"stop_token_ids":[9,10],"include_stop_str_in_output":true,"ignore_eos":true,
                    "max_tokens":12,"min_tokens":3,"logprobs":2,"echo":true,"logit_bias":{"5":1.5},"bad_words":["a"],
                    "allowed_token_ids":[5,6],"truncate_prompt_tokens":4,"skip_special_tokens":false,"suffix":null,
                    "cache_salt":"pepper","priority":-4,"prompt_logprobs":1,"return_token_ids":true,"user":"u",
                    "kv_transfer_params":{"do_remote_decode":true,"prompt_token_ids":[4,5]},"request_id":"r",
                    "response_format":{"type":"text"},"return_tokens_as_token_ids":true}
                    """),
            new Sample("/v1/completions", """
                    {"prompt":[[5,6],[7]],"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}
                    """),
            new Sample("/v1/chat/completions", """
                    {"messages":[{"role":"system","content":"A"},{"role":"user","name":"n","content":[{"type":"text","text":"C"}]},
                    {"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f",
                    "arguments":"{}"}}]},{"role":"tool","tool_call_id":"1","content":"E"}],"stream":true,
                    "tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],"tool_choice":"auto",
                    "max_completion_tokens":5,"logprobs":true,"top_logprobs":2,"chat_template_kwargs":{"x":[1]},
                    "documents":[{"text":"D"}],"add_generation_prompt":true,"continue_final_message":false,"echo":true}
                    """),
            new Sample("/v1/completions", """
                    {"prompt":"a","structured_outputs":{"json":{"type":"object","properties":{"a":{"type":["integer","null"],"minimum":0},
                    "b":{"enum":["x",1]},"c":{"type":"array","items":{"$ref":"#/$defs/d"},"minItems":1}},"required":["a"],
                    "additionalProperties":false,"$defs":{"d":{"anyOf":[{"type":"string","pattern":"^a+$"},{"const":null}]}}},
                    "any_property_order":true,"disable_any_whitespace":true,"whitespace_pattern":" ?"},"stream":true}
                    """),
            new Sample(
                    "/v1/completions", "{\"prompt\":\"a\",\"structured_outputs\":{\"regex\":\"[a-c]{2,5}\\\\d+|x\"}}"),
            new Sample("/v1/completions", "{\"prompt\":\"a\",\"structured_outputs\":{\"choice\":[\"a\",\"bc\"]}}"),
            new Sample(
                    "/v1/completions", "{\"prompt\":\"a\",\"guided_grammar\":\"root ::= \\\"a\\\" root | \\\"b\\\"\"}"),
            new Sample("/v1/chat/completions", """
                    {"messages":[{"role":"user","content":"x"}],"response_format":{"type":"structural_tag","format":{
                    "type":"triggered_tags","triggers":["<f"],"tags":[{"begin":"<f>","content":{"type":"json_schema","json_schema":
                    {"type":"object"}},"end":"</f>"}],"at_least_one":false}}}
                    """),
            new Sample("/v1/chat/completions", """
                    {"messages":[{"role":"user","content":"x"}],"response_format":{"type":"json_schema","json_schema":{"name":"n",
                    "strict":true,"schema":{"type":"object","properties":{"a":{"type":"string","format":"date"}},"required":["a"]}}},
                    "include_reasoning":false,"reasoning_effort":"low","logprobs":true,"top_logprobs":1,"stream":true}
                    """),
            new Sample("/v1/chat/completions", """
                    {"messages":[{"role":"user","content":"x"}],"parallel_tool_calls":false,"tools":[{"type":"function","function":{
                    "name":"f","strict":true,"parameters":{"type":"object","properties":{"a":{"type":"integer"}}}}}],
                    "tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"required","tools":[{"type":"function",
                    "function":{"name":"f"}}]}}}
                    """),
            new Sample("/v1/chat/completions", """
                    {"messages":[{"role":"user","content":"x"}],"chat_template":"{% for m in messages %}{{ m.content[:3] }}{% endfor %}"}
                    """),
            new Sample("/v1/responses", """
                    {"model":"tiny-ledger","instructions":"A","input":[{"role":"user","content":[{"type":"input_text","text":"B"}]},
                    {"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"T"}]},
                    {"type":"message","role":"assistant","status":"completed","content":[{"type":"output_text","text":"C"}]},
                    {"type":"function_call","call_id":"1","name":"f","arguments":"{}"},
                    {"type":"function_call_output","call_id":"1","output":"D"}],"max_output_tokens":5,"stream":true,
                    "tools":[{"type":"function","name":"f","parameters":{"type":"object"},"strict":false}],"tool_choice":"auto",
                    "text":{"format":{"type":"text"}},"reasoning":{"effort":"low"},"include":["message.output_text.logprobs"],
                    "top_logprobs":2,"metadata":{"a":"b"},"store":false,"truncation":"auto","parallel_tool_calls":true}
                    """),
            new Sample("/v1/responses", "{\"input\":\"x\",\"previous_response_id\":null,\"include_reasoning\":true}"),
            new Sample("/tokenize", "{\"prompt\":\"Item 7\",\"add_special_tokens\":false,\"return_token_strs\":true}"),
            new Sample("/tokenize", "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"model\":\"tiny-ledger\"}"),
            new Sample("/detokenize", "{\"tokens\":[5,6,7]}"));

    private final long seed = Long.getLong("tests.seed", System.nanoTime());
    private final Random random = new Random(seed);

    @AutoClose
    private final ServerFixture fixture = new ServerFixture(config -> config.trustRequestChatTemplate(true)
            .toolCallParser("hermes")
            .reasoningParser("qwen3")
            .accessLog(line -> {}));

    @Test
    void everyRandomBodyIsAnsweredAndTheServerGoesOn() throws Exception {
        fixture.engine.answers("Hello", " world");
        int accepted = 0;
        for (int i = 0; i < REQUESTS; i++) {
            Sample sample = SAMPLES.get(random.nextInt(SAMPLES.size()));
            byte[] body = mutated(sample.body());
            String what = "-Dtests.seed=" + seed + " request " + i + " to " + sample.path() + ": "
                    + Json.shortened(new String(body, StandardCharsets.UTF_8));
            HttpResponse<String> response = fixture.send(HttpRequest.newBuilder(fixture.uri(sample.path()))
                    .header("Content-Type", "application/json")
                    .POST(HttpRequest.BodyPublishers.ofByteArray(body)));
            int status = response.statusCode();
            assertThat(status).as("%s%n%s", what, response.body()).isIn(200, 400, 404);
            if (status != 200) {
                JsonNode error = ServerFixture.json(response).get("error");
                assertThat(error.get("code").asInt()).as(what).isEqualTo(status);
                assertThat(error.get("message").asString()).as(what).isNotBlank();
            } else if (response.body().startsWith("data: ")) {
                assertThat(response.body()).as(what).endsWith("data: [DONE]\n\n");
                accepted++;
            } else if (response.body().startsWith("event: response.created\n")) {
                assertThat(response.body()).as(what).contains("\n\nevent: response.completed\n");
                accepted++;
            } else {
                assertThat(ServerFixture.json(response).isObject()).as(what).isTrue();
                accepted++;
            }
        }
        // Most mutations matter, not all.
        assertThat(accepted).as("-Dtests.seed=%d", seed).isBetween(1, REQUESTS - 1);
        assertThat(fixture.engine.liveCount()).isZero();
        assertThat(fixture.post("/v1/completions", "{\"prompt\":\"a\"}").statusCode())
                .isEqualTo(200);
    }

    private byte[] mutated(String body) {
        if (random.nextInt(5) == 0) {
            return mutatedBytes(body.getBytes(StandardCharsets.UTF_8));
        }
        JsonNode root = ServerFixture.MAPPER.readTree(body);
        int times = 1 + random.nextInt(3);
        for (int i = 0; i < times; i++) {
            List<JsonNode> containers = new ArrayList<>();
            collect(root, containers);
            change(containers.get(random.nextInt(containers.size())));
        }
        return root.toString().getBytes(StandardCharsets.UTF_8);
    }

    private byte[] mutatedBytes(byte[] bytes) {
        byte[] changed = Arrays.copyOf(bytes, random.nextInt(4) == 0 ? random.nextInt(bytes.length) : bytes.length);
        for (int i = random.nextInt(4); i > 0 && changed.length > 0; i--) {
            changed[random.nextInt(changed.length)] = (byte) random.nextInt(256);
        }
        return changed;
    }

    private static void collect(JsonNode node, List<JsonNode> containers) {
        if (node.isContainer()) {
            containers.add(node);
            node.forEach(child -> collect(child, containers));
        }
    }

    private void change(JsonNode container) {
        if (container instanceof ObjectNode object) {
            List<String> names = new ArrayList<>(object.propertyNames());
            String name = names.isEmpty() || random.nextInt(10) == 0
                    ? "field" + random.nextInt(3)
                    : names.get(random.nextInt(names.size()));
            if (random.nextInt(6) == 0) {
                object.remove(name);
            } else {
                object.set(name, value());
            }
        } else if (container instanceof ArrayNode array) {
            if (array.isEmpty() || random.nextInt(3) == 0) {
                array.add(value());
            } else if (random.nextInt(3) == 0) {
                array.remove(random.nextInt(array.size()));
            } else {
                array.set(random.nextInt(array.size()), value());
            }
        }
    }

    private JsonNode value() {
        return switch (random.nextInt(16)) {
            case 0 -> JSON.nullNode();
            case 1 -> JSON.booleanNode(random.nextBoolean());
            case 2 -> JSON.numberNode(random.nextInt(-3, 30));
            case 3 -> JSON.numberNode(random.nextLong());
            case 4 -> JSON.numberNode(random.nextGaussian() * 3);
            case 5 -> JSON.numberNode(1e308);
            case 6 -> JSON.numberNode(Integer.MAX_VALUE);
            case 7 -> JSON.stringNode("");
            case 8 -> JSON.stringNode("\ud800 \u0000 \uffff {{ 1 }}");
            case 9 -> JSON.stringNode("x".repeat(random.nextInt(20_000)));
            case 10 -> JSON.stringNode(Integer.toString(random.nextInt(100)));
            case 11 -> JSON.arrayNode();
            case 12 -> JSON.objectNode();
            case 13 -> JSON.arrayNode().add(random.nextInt(3000)).add(JSON.nullNode());
            case 14 -> nested(random.nextInt(1, 200));
            default -> JSON.objectNode().put("type", "text").put("text", "y");
        };
    }

    private static JsonNode nested(int depth) {
        JsonNode node = JSON.arrayNode();
        for (int i = 1; i < depth; i++) {
            node = i % 2 == 0 ? JSON.arrayNode().add(node) : JSON.objectNode().set("a", node);
        }
        return node;
    }
}
