package baton.server;

import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.FinishReason;
import baton.engine.GenerationRequest;
import baton.engine.SamplingParams;
import baton.engine.TokenLogprobs;
import baton.engine.TokenLogprobs.Candidate;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.List;
import java.util.OptionalInt;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import tools.jackson.databind.JsonNode;

class ChatTest {
    private static final String HELLO = "\"messages\":[{\"role\":\"user\",\"content\":\"Item 7?\"}]";

    @AutoClose
    private final ServerFixture fixture = new ServerFixture(config -> config.toolCallParser("hermes"));

    @Test
    void answersWithTheShapeOfOpenAiAndVllm() throws Exception {
        fixture.engine.answers("Hello", " world");
        HttpResponse<String> response = fixture.send(HttpRequest.newBuilder(fixture.uri("/v1/chat/completions"))
                .header("Content-Type", "application/json")
                .header("X-Request-Id", "abc-1")
                .POST(HttpRequest.BodyPublishers.ofString("{\"model\":\"tiny-ledger\"," + HELLO + "}")));
        assertThat(response.statusCode()).as(response.body()).isEqualTo(200);
        GenerationRequest request = fixture.engine.nextSubmitted().request;
        assertThat(request.id()).matches("chatcmpl-abc-1-[0-9a-f]{8}");
        assertThat(fixture.engine.tokenizer().decode(request.prompt(), false))
                .isEqualTo("<|bos|><|user|>Item 7?<|end|><|assistant|>");
        assertThat(request.sampling())
                .isEqualTo(
                        SamplingParams.builder().maxTokens(OptionalInt.empty()).build());
        int prompt = request.prompt().length;
        assertThat(response.body().replaceFirst("\"created\":\\d+", "\"created\":0"))
                .isEqualTo("{\"id\":\"chatcmpl-abc-1\",\"object\":\"chat.completion\",\"created\":0,"
                        + "\"model\":\"tiny-ledger\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\","
                        + "\"content\":\"Hello world\",\"refusal\":null},\"logprobs\":null,\"finish_reason\":\"stop\","
                        + "\"stop_reason\":null}],\"service_tier\":null,\"system_fingerprint\":null,"
                        + "\"usage\":{\"prompt_tokens\":" + prompt + ",\"total_tokens\":" + (prompt + 2)
                        + ",\"completion_tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":3}},"
                        + "\"kv_transfer_params\":null}");
    }

    @Test
    void messagesHaveRolesPartsAndTools() throws Exception {
        fixture.engine.answers("x");
        assertThat(promptOf("""
                        "messages":[{"role":"system","content":"A"},{"role":"developer","content":"B"},
                        {"role":"user","name":"n","content":[{"type":"text","text":"C"},{"type":"text","text":"D"}]},
                        {"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function",
                        "function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"1","content":"E"}],
                        "tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"auto"
                        """))
                .isEqualTo(
                        "<|bos|><|user|>A\n\nB<|end|><|user|>C\nD<|end|><|assistant|><|end|><|user|>E<|end|><|assistant|>");
        assertThat(promptOf(HELLO + ",\"add_generation_prompt\":false")).isEqualTo("<|bos|><|user|>Item 7?<|end|>");
        assertThat(promptOf("\"messages\":[{\"role\":\"assistant\",\"content\":\"It is\"}],"
                        + "\"continue_final_message\":true,\"add_generation_prompt\":false"))
                .isEqualTo("<|bos|><|assistant|>It is");
        assertThat(promptOf(HELLO + ",\"kv_transfer_params\":{\"prompt_token_ids\":[2,3]}"))
                .isEqualTo("<|user|><|assistant|>");
        try (ServerFixture strict = new ServerFixture(config -> config.kvPromptTokenIds(false))) {
            strict.engine.answers("x");
            strict.post("/v1/chat/completions", "{" + HELLO + ",\"kv_transfer_params\":{\"prompt_token_ids\":[2,3]}}");
            assertThat(strict.engine
                            .tokenizer()
                            .decode(strict.engine.nextSubmitted().request.prompt(), false))
                    .contains("Item 7?");
        }
    }

    @Test
    void contentPartsMayBeStringsOrOfNewerTypes() throws Exception {
        fixture.engine.answers("x");
        assertThat(
                        promptOf(
                                "\"messages\":[{\"role\":\"user\",\"content\":[\"A\",{\"type\":\"input_text\",\"text\":\"B\"}]}]"))
                .isEqualTo("<|bos|><|user|>A\nB<|end|><|assistant|>");
    }

    @Test
    void echoRepeatsTheMessageThatIsContinued() throws Exception {
        fixture.engine.answers(" seven", ".");
        String body =
                "\"messages\":[{\"role\":\"user\",\"content\":\"?\"},{\"role\":\"assistant\",\"content\":\"It is\"}],"
                        + "\"continue_final_message\":true,\"add_generation_prompt\":false,\"echo\":true";
        assertThat(ServerFixture.json(fixture.post("/v1/chat/completions", "{" + body + "}"))
                        .at("/choices/0/message/content")
                        .asString())
                .isEqualTo("It is seven.");
        assertThat(StreamingTest.events(fixture.post("/v1/chat/completions", "{" + body + ",\"stream\":true}")))
                .element(0)
                .asString()
                .contains("\"content\":\"It is seven\"");
        // There is no echo if the model begins a new message.
        assertThat(ServerFixture.json(fixture.post("/v1/chat/completions", "{" + HELLO + ",\"echo\":true}"))
                        .at("/choices/0/message/content")
                        .asString())
                .isEqualTo(" seven.");
    }

    @Test
    void aTrustedTemplateReadsItsVariables() throws Exception {
        try (ServerFixture trusting = new ServerFixture(
                config -> config.trustRequestChatTemplate(true).toolCallParser("hermes"))) {
            trusting.engine.answers("x");
            String template = "{{ bos_token }}{{ messages[0].content }} {{ reasoning_effort }} {{ documents[0].text }}"
                    + " {{ mood }}{% if add_generation_prompt %}:{% endif %}";
            HttpResponse<String> response = trusting.post(
                    "/v1/chat/completions",
                    "{" + HELLO + ",\"chat_template\":\"" + template
                            + "\",\"reasoning_effort\":\"low\",\"documents\":[{\"text\":\"D\"}],"
                            + "\"chat_template_kwargs\":{\"mood\":\"sad\"}}");
            assertThat(response.statusCode()).as(response.body()).isEqualTo(200);
            assertThat(trusting.engine
                            .tokenizer()
                            .decode(trusting.engine.nextSubmitted().request.prompt(), false))
                    .isEqualTo("<|bos|>Item 7? low D sad:");
            HttpResponse<String> broken =
                    trusting.post("/v1/chat/completions", "{" + HELLO + ",\"chat_template\":\"{% if %}\"}");
            assertThat(broken.statusCode()).isEqualTo(400);
            assertThat(broken.body()).contains("chat_template, ");
        }
    }

    /** The variables of templates beside messages; each expectation is vLLM 0.32's. */
    @ParameterizedTest
    @CsvSource(delimiter = '|', quoteCharacter = '`', textBlock = """
            {{ reasoning_effort }} {{ enable_thinking }}      | "reasoning_effort":"none"                                  | none False
            {{ reasoning_effort }} {{ enable_thinking }}      | "reasoning_effort":"high"                                  | high True
            {{ reasoning_effort }} {{ enable_thinking }}      | "reasoning_effort":"none","chat_template_kwargs":{"enable_thinking":true,"reasoning_effort":"x"} | none True
            {{ enable_thinking is defined }}                  | "reasoning_effort":"none","chat_template_kwargs":{"enable_thinking":null} | False
            {{ enable_thinking is defined }}                  | "reasoning_effort":null                                    | False
            {{ a is defined }}{{ b is defined }}{{ c }}       | "chat_template_kwargs":{"a":null,"b":"auto","c":[1]}       | FalseFalse[1]
            {{ add_generation_prompt }}                       | "chat_template_kwargs":{"add_generation_prompt":false}     | True
            {{ padding is defined }}                          | "chat_template_kwargs":{"padding":true}                    | False
            `{{ range(2) | list }}`                             | "chat_template_kwargs":{"range":7}                         | [0, 1]
            {{ documents }}                                   | "documents":[{"b":"1"}],"chat_template_kwargs":{"documents":[]} | [{'b': '1'}]
            `{{ tools | tojson }}`                            | "tools":[{"function":{"parameters":{"z":1,"a":2},"name":"f","x":1},"y":1}] | [{"type": "function", "function": {"name": "f", "description": null, "parameters": {"z": 1, "a": 2}}}]
            `{{ tools | tojson }}`                            | "tools":[{"function":{"strict":true,"description":"d","name":"f"},"defer_loading":true}] | [{"type": "function", "function": {"name": "f", "description": "d", "parameters": null, "strict": true, "defer_loading": true}, "defer_loading": true}]
            {{ tools }}                                       | "tools":[{"function":{"name":"f"}}],"chat_template_kwargs":{"tools":[{"a":1}]} | [{'a': 1}]
            T                                                 | "chat_template_kwargs":{"chat_template":"U"}               | T
            ``                                                | "chat_template_kwargs":{"chat_template":"U"}               | U
            """)
    void variablesOfTemplates(String template, String fields, String prompt) throws Exception {
        try (ServerFixture trusting = new ServerFixture(
                config -> config.trustRequestChatTemplate(true).toolCallParser("hermes"))) {
            trusting.engine.answers("x");
            HttpResponse<String> response = trusting.post(
                    "/v1/chat/completions", "{" + HELLO + ",\"chat_template\":\"" + template + "\"," + fields + "}");
            assertThat(response.statusCode()).as(response.body()).isEqualTo(200);
            assertThat(trusting.engine
                            .tokenizer()
                            .decode(trusting.engine.nextSubmitted().request.prompt(), false))
                    .isEqualTo(prompt);
        }
    }

    @Test
    void maxTokensAndMaxCompletionTokensLimitTheOutput() throws Exception {
        fixture.engine.answers("x");
        fixture.post("/v1/chat/completions", "{" + HELLO + ",\"max_tokens\":5}");
        assertThat(fixture.engine.nextSubmitted().request.sampling().maxTokens())
                .hasValue(5);
        fixture.post("/v1/chat/completions", "{" + HELLO + ",\"max_tokens\":5,\"max_completion_tokens\":6}");
        assertThat(fixture.engine.nextSubmitted().request.sampling().maxTokens())
                .hasValue(6);
    }

    @Test
    void logprobsHaveTheChatForm() throws Exception {
        int[] ids = fixture.engine.tokenizer().encode("ab", false);
        fixture.engine.script(session -> {
            session.output(
                    0,
                    new int[] {ids[0]},
                    "a",
                    List.of(new TokenLogprobs(
                            ids[0],
                            -0.5f,
                            1,
                            List.of(new Candidate(ids[0], -0.5f), new Candidate(1, Float.NEGATIVE_INFINITY)))));
            session.finish(0, FinishReason.STOP);
        });
        String token = fixture.engine.tokenizer().token(ids[0]);
        JsonNode json = ServerFixture.json(
                fixture.post("/v1/chat/completions", "{" + HELLO + ",\"logprobs\":true,\"top_logprobs\":2}"));
        JsonNode first = json.at("/choices/0/logprobs/content/0");
        assertThat(first.get("token").asString()).isEqualTo(token);
        assertThat(first.get("logprob").asDouble()).isEqualTo(-0.5);
        assertThat(first.get("bytes"))
                .isEqualTo(ServerFixture.MAPPER.readTree(
                        java.util.Arrays.toString(fixture.engine.tokenizer().tokenBytes(ids[0]))));
        assertThat(first.at("/top_logprobs/1/logprob").asDouble()).isEqualTo(-9999);
        assertThat(fixture.engine.nextSubmitted().request.sampling().logprobs()).hasValue(2);
    }

    @Test
    void anSseStreamBeginsWithTheRole() throws Exception {
        fixture.engine.script(session -> {
            for (int index = 0; index < 2; index++) {
                session.output(index, "a" + index);
                session.output(index, "b" + index);
                session.finish(index, FinishReason.LENGTH);
            }
        });
        HttpResponse<String> response = fixture.post(
                "/v1/chat/completions",
                "{" + HELLO
                        + ",\"stream\":true,\"n\":2,\"stream_options\":{\"include_usage\":true},\"request_id\":\"r\"}");
        int prompt = fixture.engine.nextSubmitted().request.prompt().length;
        String begin = "data: {\"id\":\"chatcmpl-r\",\"object\":\"chat.completion.chunk\",\"created\":0,"
                + "\"model\":\"tiny-ledger\",\"choices\":[";
        String none = "\"logprobs\":null,\"finish_reason\":null,\"stop_reason\":null}]}\n\n";
        String length = "\"logprobs\":null,\"finish_reason\":\"length\",\"stop_reason\":null}]}\n\n";
        assertThat(response.body().replaceAll("\"created\":\\d+", "\"created\":0"))
                .isEqualTo(begin + "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"a0\"}," + none
                        + begin + "{\"index\":0,\"delta\":{\"content\":\"b0\"}," + none
                        + begin + "{\"index\":0,\"delta\":{\"content\":\"\"}," + length
                        + begin + "{\"index\":1,\"delta\":{\"role\":\"assistant\",\"content\":\"a1\"}," + none
                        + begin + "{\"index\":1,\"delta\":{\"content\":\"b1\"}," + none
                        + begin + "{\"index\":1,\"delta\":{\"content\":\"\"}," + length
                        + begin + "],\"usage\":{\"prompt_tokens\":" + prompt + ",\"total_tokens\":" + (prompt + 4)
                        + ",\"completion_tokens\":4,\"prompt_tokens_details\":{\"cached_tokens\":3}}}\n\n"
                        + "data: [DONE]\n\n");
    }

    @ParameterizedTest
    @CsvSource(delimiter = '|', quoteCharacter = '`', textBlock = """
            {}                                                                                | messages: is missing, must be an array of messages
            {"messages":[]}                                                                   | messages: is empty, must have at least one message
            {"messages":["hi"]}                                                               | messages[0]: must be an object, is "hi"
            {"messages":[{"content":"x"}]}                                                    | messages[0].role: is missing, must be a string such as user
            {"messages":[{"role":"user","content":null}]}                                     | messages[0].content: is null, must be a string or an array of parts in this role
            {"messages":[{"role":"user","content":5}]}                                        | messages[0].content: must be a string or an array of parts, is 5
            {"messages":[{"role":"user","content":[{"type":"image_url"}]}]}                   | messages[0].content[0].type: unsupported value 'image_url'; allowed: text, input_text, output_text, refusal, thinking, tool_reference
            {"messages":[{"role":"user","content":"x"},{"role":"user","content":[{"type":"text","text":5}]}]} | messages[1].content[0].text: must be a string, is 5
            {"messages":[{"role":"user","content":[["x"]]}]}                                  | messages[0].content[0]: must be an object or a string, is ["x"]
            {"messages":[{"role":"user","content":"x"}],"chat_template":"{{ 1 }}"}            | chat_template: is a program that this server runs only with --trust-request-chat-template
            {"messages":[{"role":"user","content":"x"}],"documents":{}}                       | documents: must be an array of objects, is {}
            {"messages":[{"role":"user","content":[{"text":"x"}]}]}                           | messages[0].content[0].type: is missing, must be text
            {"messages":[{"role":"user","content":[{"type":"text"}]}]}                        | messages[0].content[0].text: is missing, must be a string
            {"messages":[{"role":"user","content":"x"}],"response_format":{"type":"x"}} | response_format.type: unsupported value 'x'; allowed: text, json_object, json_schema, structural_tag
            {"messages":[{"role":"user","content":"x"}],"tool_choice":"required"}             | tool_choice: is "required", which needs tools
            {"messages":[{"role":"user","content":"x"}],"top_logprobs":2}                     | top_logprobs: is 2, which needs logprobs to be true
            {"messages":[{"role":"user","content":"x"}],"logprobs":true,"top_logprobs":21}    | top_logprobs: is 21, must be between 0 and 20
            {"messages":[{"role":"user","content":"x"}],"max_completion_tokens":4000}         | max_completion_tokens: is 4000, must be at most 2041: prompt and output together may have 2048 tokens and the prompt has 7
            {"messages":[{"role":"user","content":"x"}],"continue_final_message":true,"add_generation_prompt":true} | continue_final_message: cannot be true while add_generation_prompt is true
            {"messages":[{"role":"user","content":"x"}],"continue_final_message":true}        | continue_final_message: cannot be true while add_generation_prompt is true, which it is by default
            {"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"chat_template":"x"}} | chat_template_kwargs.chat_template: is a program that this server runs only with --trust-request-chat-template
            {"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"messages":[]}} | chat_template_kwargs.messages: is not allowed, messages are a field of the request
            {"messages":[{"role":"user","content":"x"}],"reasoning_effort":"huge"}            | reasoning_effort: unsupported value 'huge'; allowed: none, minimal, low, medium, high, xhigh, max
            {"messages":[{"role":"user","content":"x"}],"documents":[{"a":1}]}                | documents[0].a: must be a string, is 1
            {"messages":[{"role":"user","content":"x"}],"tools":[]}                           | tools: is empty, must have at least one tool or be absent
            {"messages":[{"role":"user","content":"x"}],"tools":[{"function":{}}]}            | tools[0].function.name: is missing, must be a string
            {"messages":[{"role":"user","content":"x"}],"tools":[{"type":"x"}]}               | tools[0].type: unsupported value 'x'; allowed: function
            {"messages":[{"role":"user","content":"x"}],"tools":[{"function":{"name":"f","parameters":[]}}]} | tools[0].function.parameters: must be an object, is []
            """)
    void aBadFieldIsNamedWithWhatWasFound(String body, String message) throws Exception {
        HttpResponse<String> response = fixture.post("/v1/chat/completions", body);
        String found = ServerFixture.json(response).at("/error/message").asString();
        assertThat(response.statusCode()).isEqualTo(400);
        if (message.contains("the prompt has")) {
            int length = fixture.engine.tokenizer().encode("<|bos|><|user|>x<|end|><|assistant|>", false).length;
            assertThat(found)
                    .isEqualTo(message.replace("2041", "" + (2048 - length)).replace("has 7", "has " + length));
        } else {
            assertThat(found).isEqualTo(message);
        }
    }

    @Test
    void tokenizeRendersMessages() throws Exception {
        JsonNode json = ServerFixture.json(fixture.post("/tokenize", "{" + HELLO + "}"));
        assertThat(json.get("tokens"))
                .isEqualTo(ServerFixture.MAPPER.valueToTree(
                        fixture.engine.tokenizer().encode("<|bos|><|user|>Item 7?<|end|><|assistant|>", false)));
    }

    private String promptOf(String fields) throws Exception {
        HttpResponse<String> response = fixture.post("/v1/chat/completions", "{" + fields + "}");
        assertThat(response.statusCode()).as(response.body()).isEqualTo(200);
        return fixture.engine
                .tokenizer()
                .decode(fixture.engine.nextSubmitted().request.prompt(), false);
    }
}
