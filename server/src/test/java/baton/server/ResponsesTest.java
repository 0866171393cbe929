package baton.server;

import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.FinishReason;
import baton.engine.GenerationRequest;
import baton.engine.SamplingParams;
import baton.engine.TokenLogprobs;
import baton.engine.TokenLogprobs.Candidate;
import baton.kv.JsonFields;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.OptionalInt;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import tools.jackson.databind.JsonNode;

class ResponsesTest {
    @AutoClose
    private final ServerFixture fixture = new ServerFixture();

    @Test
    void answersWithTheShapeOfOpenAiAndVllm() throws Exception {
        fixture.engine.answers("Hello", " world");
        HttpResponse<String> response = fixture.send(HttpRequest.newBuilder(fixture.uri("/v1/responses"))
                .header("Content-Type", "application/json")
                .header("X-Request-Id", "abc-1")
                .POST(HttpRequest.BodyPublishers.ofString("""
                        {"model":"tiny-ledger","input":"Item 7?","instructions":"Brief.","max_output_tokens":9,
                        "temperature":0,"metadata":{"a":"b"},"store":true,"unknown":1}""")));
        assertThat(response.statusCode()).as(response.body()).isEqualTo(200);
        GenerationRequest request = fixture.engine.nextSubmitted().request;
        assertThat(request.id()).matches("resp_abc-1-[0-9a-f]{8}");
        assertThat(fixture.engine.tokenizer().decode(request.prompt(), false))
                .isEqualTo("<|bos|><|user|>Brief.<|end|><|user|>Item 7?<|end|><|assistant|>");
        assertThat(request.sampling())
                .isEqualTo(SamplingParams.builder()
                        .maxTokens(OptionalInt.of(9))
                        .temperature(0)
                        .build());
        int prompt = request.prompt().length;
        assertThat(response.body().replaceFirst("\"created_at\":\\d+", "\"created_at\":0"))
                .isEqualTo("{\"id\":\"resp_abc-1\",\"object\":\"response\",\"created_at\":0,\"status\":\"completed\","
                        + "\"error\":null,\"incomplete_details\":null,\"model\":\"tiny-ledger\",\"output\":[{"
                        + "\"id\":\"msg_abc-1_0\",\"type\":\"message\",\"role\":\"assistant\",\"content\":[{"
                        + "\"type\":\"output_text\",\"text\":\"Hello world\",\"annotations\":[],\"logprobs\":[]}],"
                        + "\"status\":\"completed\"}],\"instructions\":\"Brief.\",\"metadata\":{\"a\":\"b\"},"
                        + "\"max_output_tokens\":9,\"max_tool_calls\":null,\"parallel_tool_calls\":true,"
                        + "\"tool_choice\":\"none\",\"tools\":[],\"text\":null,\"reasoning\":null,\"prompt\":null,"
                        + "\"service_tier\":\"auto\",\"top_logprobs\":null,\"truncation\":\"disabled\",\"user\":null,"
                        + "\"temperature\":0.0,\"top_p\":1.0,\"presence_penalty\":0.0,\"frequency_penalty\":0.0,"
                        + "\"background\":false,\"store\":false,\"previous_response_id\":null,"
                        + "\"kv_transfer_params\":null,\"usage\":{\"input_tokens\":" + prompt
                        + ",\"input_tokens_details\":{\"cached_tokens\":3,\"cache_write_tokens\":0},"
                        + "\"output_tokens\":2,\"output_tokens_details\":{\"reasoning_tokens\":0},"
                        + "\"total_tokens\":" + (prompt + 2) + "}}");
    }

    @Test
    void streamsTheEventsOfOpenAi() throws Exception {
        fixture.engine.script(session -> {
            session.output(0, "Hello");
            session.output(0, " world");
            session.finish(0, FinishReason.LENGTH);
        });
        List<JsonNode> events = events(post("\"input\":\"Item 7?\",\"stream\":true"));
        assertThat(events)
                .extracting(event -> event.path("type").asString())
                .containsExactly(
                        "response.created",
                        "response.in_progress",
                        "response.output_item.added",
                        "response.content_part.added",
                        "response.output_text.delta",
                        "response.output_text.delta",
                        "response.output_text.done",
                        "response.content_part.done",
                        "response.output_item.done",
                        "response.incomplete");
        for (int i = 0; i < events.size(); i++) {
            assertThat(events.get(i).path("sequence_number").asInt()).isEqualTo(i);
        }
        assertThat(events.getFirst().at("/response/status").asString()).isEqualTo("in_progress");
        assertThat(events.getFirst().at("/response/usage").isNull()).isTrue();
        assertThat(events.get(4).path("delta").asString()).isEqualTo("Hello");
        assertThat(events.get(6).path("text").asString()).isEqualTo("Hello world");
        JsonNode item = events.get(8).path("item");
        assertThat(item.path("status").asString()).isEqualTo("incomplete");
        JsonNode last = events.getLast().path("response");
        assertThat(last.path("status").asString()).isEqualTo("incomplete");
        assertThat(last.at("/incomplete_details/reason").asString()).isEqualTo("max_output_tokens");
        assertThat(last.at("/output/0")).isEqualTo(item);
        assertThat(last.at("/usage/output_tokens").asInt()).isEqualTo(2);
    }

    @Test
    void aStreamThatFailsEndsWithTheError() throws Exception {
        fixture.engine.script(session -> {
            session.output(0, "Hello");
            session.finish(0, FinishReason.ERROR, Optional.empty(), Optional.of("torn block"));
        });
        JsonNode last = events(post("\"input\":\"Item 7?\",\"stream\":true")).getLast();
        assertThat(last.path("type").asString()).isEqualTo("response.failed");
        assertThat(last.at("/response/status").asString()).isEqualTo("failed");
        assertThat(last.at("/response/error").toString())
                .isEqualTo("{\"code\":\"server_error\",\"message\":\"generation failed: torn block\"}");
    }

    /** The last events have all of the text several times; they are no sign of a client that does not read. */
    @Test
    void aLongStreamHasItsLastEvents() throws Exception {
        String text = "x".repeat(7_000_000);
        try (ServerFixture patient = new ServerFixture(config -> config.maxPendingBytes(8_000_000))) {
            patient.engine.answers(text);
            JsonNode last = events(patient.post("/v1/responses", "{\"input\":\"a\",\"stream\":true}"))
                    .getLast();
            assertThat(last.path("type").asString()).isEqualTo("response.completed");
            assertThat(last.at("/response/output/0/content/0/text").asString()).isEqualTo(text);
        }
    }

    @Test
    void itemsAreMessagesOfTheTemplate() throws Exception {
        fixture.engine.answers("x");
        assertThat(promptOf("""
                        "input":[{"role":"developer","content":"A"},
                        {"type":"message","role":"user","content":[{"type":"input_text","text":"B"}]},
                        {"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"T"}]},
                        {"type":"message","role":"assistant","content":[{"type":"output_text","text":"C","annotations":[]}]},
                        {"type":"function_call","call_id":"1","name":"f","arguments":"{\\"a\\":1}"},
                        {"type":"function_call","call_id":"2","name":"g","arguments":"{}"},
                        {"type":"function_call_output","call_id":"1","output":"D"},
                        {"type":"function_call_output","call_id":"2","output":[{"type":"input_text","text":"E"}]}]
                        """)).isEqualTo("""
                        system A|user B|assistant C (T) f {"a": 1} g {}|tool D 1|tool E 2|assistant:""");
        assertThat(promptOf("""
                        "input":[{"role":"user","content":"A"},
                        {"type":"message","role":"assistant","status":"incomplete","content":"It is"}]
                        """)).isEqualTo("user A|assistant It is");
        assertThat(promptOf("""
                        "input":"A","instructions":"S","reasoning":{"effort":"low","summary":"auto"},
                        "tools":[{"type":"function","name":"f","parameters":{},"strict":true}],"tool_choice":"none"
                        """)).isEqualTo("system S|user A|low f assistant:");
    }

    /** The prompt by a template that writes all that it is given. */
    private String promptOf(String fields) throws Exception {
        String template = "{% for m in messages %}{{ m.role }} {{ m.content }}"
                + "{% if m.reasoning %} ({{ m.reasoning }}){% endif %}"
                + "{% for c in m.tool_calls %} {{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}"
                + "{% if m.tool_call_id %} {{ m.tool_call_id }}{% endif %}"
                + "{% if add_generation_prompt or not loop.last %}|{% endif %}{% endfor %}"
                + "{% if reasoning_effort %}{{ reasoning_effort }} {% endif %}"
                + "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}"
                + "{% if add_generation_prompt %}assistant:{% endif %}";
        try (ServerFixture trusting = new ServerFixture(config -> config.trustRequestChatTemplate(true))) {
            trusting.engine.answers("x");
            HttpResponse<String> response = trusting.post(
                    "/v1/responses",
                    "{" + fields + ",\"chat_template\":" + ServerFixture.MAPPER.writeValueAsString(template) + "}");
            assertThat(response.statusCode()).as(response.body()).isEqualTo(200);
            return trusting.engine
                    .tokenizer()
                    .decode(trusting.engine.nextSubmitted().request.prompt(), false);
        }
    }

    @Test
    void logprobsArePartOfTheText() throws Exception {
        int id = fixture.engine.tokenizer().encode("a", false)[0];
        fixture.engine.script(session -> {
            session.output(
                    0,
                    new int[] {id},
                    "Hello",
                    List.of(new TokenLogprobs(id, -0.5f, 1, List.of(new Candidate(id, -0.5f)))));
            session.finish(0, FinishReason.STOP);
        });
        String asked = "\"input\":\"a\",\"include\":[\"message.output_text.logprobs\"],\"top_logprobs\":1";
        JsonNode token = ServerFixture.json(post(asked)).at("/output/0/content/0/logprobs/0");
        assertThat(token.path("logprob").asDouble()).isEqualTo(-0.5);
        assertThat(token.path("top_logprobs").size()).isEqualTo(1);
        List<JsonNode> events = events(post(asked + ",\"stream\":true"));
        assertThat(events.get(4).at("/logprobs/0")).isEqualTo(token);
        assertThat(events.get(5).at("/logprobs/0")).isEqualTo(token);
    }

    @Test
    void handsOver() throws Exception {
        fixture.engine.script(session -> {
            session.handsOver(JsonFields.parse("", "{\"remote_port\":7}"));
            session.output(0, "x");
            session.finish(0, FinishReason.LENGTH);
        });
        JsonNode prefill = ServerFixture.json(
                post(
                        "\"input\":\"a\",\"max_output_tokens\":1,\"return_token_ids\":true,\"kv_transfer_params\":{\"do_remote_decode\":true}"));
        GenerationRequest request = fixture.engine.nextSubmitted().request;
        assertThat(request.kvTransferParams().orElseThrow().bool("do_remote_decode"))
                .contains(true);
        assertThat(prefill.at("/kv_transfer_params/remote_port").asInt()).isEqualTo(7);
        assertThat(prefill.path("prompt_token_ids").size()).isEqualTo(request.prompt().length);
        post("\"input\":\"a\",\"kv_transfer_params\":{\"prompt_token_ids\":[2,3]}");
        assertThat(fixture.engine.nextSubmitted().request.prompt()).containsExactly(2, 3);
    }

    @ParameterizedTest
    @CsvSource(delimiter = '|', quoteCharacter = '`', textBlock = """
            "x":1                                                 | input: is missing, must be a string or an array of items
            "input":[]                                            | input: must be a string or an array of at least one item
            "input":7                                             | input: must be
            "input":[{"role":"user"}]                             | input[0].content: is missing
            "input":[{"type":"item_reference","id":"1"}]          | input[0].type: unsupported value 'item_reference'
            "input":[{"type":"function_call","name":"f"}]         | input[0].call_id: is missing
            "input":[{"type":"reasoning","encrypted_content":"x"}]| input[0].encrypted_content: is not supported
            "input":"a","previous_response_id":"resp_1"           | previous_response_id: is "resp_1", this server keeps no responses
            "input":"a","background":true                         | background: is true, this server keeps no responses
            "input":"a","prompt":{"id":"p"}                       | prompt: is not supported
            "input":"a","include":["x"]                           | include: unsupported value 'x'
            "input":"a","truncation":"some"                       | truncation: unsupported value 'some'
            "input":"a","max_output_tokens":5000                  | max_output_tokens: is 5000, must be at most
            "input":"a","max_output_tokens":0                     | max_output_tokens: is 0, must be at least 1
            "input":[{"role":"user","content":7}]                 | input: must be a string or an array of parts
            "input":"a","text":{"format":{"type":"xml"}}          | text.format.type: unsupported value 'xml'
            "input":"a","text":{"format":{"type":"json_schema","name":"x"}} | text.format.schema: is missing
            "input":"a","tools":[{"type":"function"}],"tool_choice":"none" | tools[0].name: is missing
            "input":"a","reasoning":{"effort":"huge"}             | reasoning.effort: unsupported value 'huge'
            "input":"a","tools":[{"type":"web_search"}],"tool_choice":"none" | tools[0].type: unsupported value 'web_search'
            """)
    void refusesByName(String fields, String message) throws Exception {
        HttpResponse<String> response = post(fields);
        assertThat(response.statusCode()).as(response.body()).isEqualTo(400);
        assertThat(ServerFixture.json(response).at("/error/message").asString()).startsWith(message);
    }

    private HttpResponse<String> post(String fields) throws Exception {
        return fixture.post("/v1/responses", "{" + fields + "}");
    }

    /** Each event names its type twice. */
    private static List<JsonNode> events(HttpResponse<String> response) {
        assertThat(response.statusCode()).as(response.body()).isEqualTo(200);
        List<JsonNode> events = new ArrayList<>();
        for (String event : response.body().split("\n\n")) {
            String[] lines = event.split("\n");
            assertThat(lines).hasSize(2);
            events.add(ServerFixture.MAPPER.readTree(lines[1].substring("data: ".length())));
            assertThat(lines[0])
                    .isEqualTo("event: " + events.getLast().path("type").asString());
        }
        return events;
    }
}
