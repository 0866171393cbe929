package baton.server;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.engine.FinishReason;
import baton.engine.ThinkingBudget;
import baton.engine.TokenLogprobs;
import baton.grammar.OutputFormat;
import java.io.InputStream;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import tools.jackson.databind.JsonNode;

class ReasoningTest {
    private static final String CHAT = "/v1/chat/completions";
    private static final String ASKED = "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]";
    private static final String[] ANSWER = {"<think>", "Hm", ".", "</think>", "Seven", "."};

    @AutoClose
    private final ServerFixture fixture =
            new ServerFixture(config -> config.reasoningParser("qwen3").toolCallParser("hermes"));

    private JsonNode answer(String path, String fields) throws Exception {
        HttpResponse<String> response = fixture.post(path, "{" + fields + "}");
        assertThat(response.statusCode()).as(response.body()).isEqualTo(200);
        return ServerFixture.json(response);
    }

    @Test
    void aMessageHasItsReasoning() throws Exception {
        fixture.engine.answers(ANSWER);
        JsonNode answer = answer(CHAT, ASKED);
        assertThat(answer.at("/choices/0/message").toString())
                .isEqualTo("{\"role\":\"assistant\",\"content\":\"Seven.\",\"refusal\":null,\"reasoning\":\"Hm.\"}");
        assertThat(answer.at("/usage/completion_tokens_details").toString()).isEqualTo("{\"reasoning_tokens\":2}");
        fixture.engine.answers("Hm");
        assertThat(answer(CHAT, ASKED).at("/choices/0/message").toString())
                .isEqualTo("{\"role\":\"assistant\",\"content\":null,\"refusal\":null,\"reasoning\":\"Hm\"}");
    }

    @Test
    void aStreamHasItInDeltas() throws Exception {
        fixture.engine.answers(ANSWER);
        List<String> events = StreamingTest.events(
                fixture.post(CHAT, "{" + ASKED + ",\"stream\":true,\"stream_options\":{\"include_usage\":true}}"));
        assertThat(events.stream()
                        .filter(event -> event.contains("\"delta\""))
                        .map(event -> ServerFixture.MAPPER
                                .readTree(event)
                                .at("/choices/0/delta")
                                .toString()))
                .containsExactly(
                        "{\"role\":\"assistant\",\"content\":\"\"}",
                        "{\"reasoning\":\"Hm\"}",
                        "{\"reasoning\":\".\"}",
                        "{\"content\":\"Seven\"}",
                        "{\"content\":\".\"}",
                        "{\"content\":\"\"}");
        assertThat(events.get(events.size() - 2)).contains("\"completion_tokens_details\":{\"reasoning_tokens\":2}");
    }

    @Test
    void aBudgetEndsItByItsMarks() throws Exception {
        fixture.engine.answers(ANSWER);
        for (String path : List.of(CHAT, "/v1/responses")) {
            assertThat(budget(path, 5))
                    .contains(new ThinkingBudget(5, ids("<think>"), List.of(ids("</think>"), ids("<tool_call>"))));
            assertThat(budget(path, -1)).isEmpty();
            HttpResponse<String> response =
                    fixture.post(path, "{" + ASKED + ",\"input\":\"x\",\"thinking_token_budget\":-2}");
            assertThat(response.statusCode()).isEqualTo(400);
            assertThat(response.body())
                    .contains("thinking_token_budget: is -2, must be at least 0, or -1 for no limit");
        }
    }

    private Optional<ThinkingBudget> budget(String path, int tokens) throws Exception {
        JsonNode _ = answer(path, ASKED + ",\"input\":\"x\",\"thinking_token_budget\":" + tokens);
        return fixture.engine.nextSubmitted().request.sampling().thinkingBudget();
    }

    private List<Integer> ids(String mark) {
        return Arrays.stream(fixture.engine.tokenizer().encode(mark, false))
                .boxed()
                .toList();
    }

    /** Its marks are messages, of which calls are a kind; like Granite's sentences, they have no budget. */
    @Test
    void gptOssHasCallsOnlyWhereTheRequestHasTools() throws Exception {
        try (ServerFixture gptOss =
                new ServerFixture(config -> config.reasoningParser("gpt_oss").toolCallParser("openai"))) {
            gptOss.engine.answers("<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>");
            String tools =
                    ASKED + ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],\"tool_choice\":";
            assertThat(gptOss.post(CHAT, "{" + tools + "\"auto\"}").body())
                    .contains("\"tool_calls\":[{", "\"finish_reason\":\"tool_calls\"");
            assertThat(gptOss.post(CHAT, "{" + tools + "\"none\"}").body())
                    .contains("\"finish_reason\":\"stop\"")
                    .doesNotContain("tool_calls");
            assertThat(gptOss.post(CHAT, "{" + ASKED + ",\"thinking_token_budget\":0}")
                            .body())
                    .contains("thinking_token_budget: is 0, which needs --reasoning-parser deepseek_r1 or qwen3");
        }
    }

    @Test
    void itIsLeftOutIfItIsNotWanted() throws Exception {
        fixture.engine.answers(ANSWER);
        JsonNode answer = answer(CHAT, ASKED + ",\"include_reasoning\":false,\"return_token_ids\":true");
        assertThat(answer.at("/choices/0/message").toString())
                .isEqualTo("{\"role\":\"assistant\",\"content\":\"Seven.\",\"refusal\":null}");
        assertThat(answer.at("/choices/0").has("token_ids")).isFalse();
        assertThat(answer.has("prompt_token_ids")).isTrue();
        assertThat(fixture.post(CHAT, "{" + ASKED + ",\"include_reasoning\":false}")
                        .body())
                .doesNotContain("Hm");
    }

    @Test
    void itsLogProbabilitiesAreLeftOutWithIt() throws Exception {
        int id = fixture.engine.tokenizer().encode("a", false)[0];
        TokenLogprobs logprobs = new TokenLogprobs(id, -0.5f, 1, List.of(new TokenLogprobs.Candidate(id, -0.5f)));
        fixture.engine.script(session -> {
            for (String piece : ANSWER) {
                session.output(0, new int[] {id}, piece, List.of(logprobs));
            }
            session.finish(0, FinishReason.STOP);
        });
        String hidden = "\"include_reasoning\":false";
        String response = "\"input\":\"x\",\"include\":[\"message.output_text.logprobs\"],";
        JsonNode part = answer("/v1/responses", response + hidden).at("/output/0/content/0");
        assertThat(part.path("text").asString()).isEqualTo("Seven.");
        assertThat(part.path("logprobs").isEmpty()).isTrue();
        List<String> events = StreamingTest.events(
                fixture.post(CHAT, "{" + ASKED + ",\"logprobs\":true,\"stream\":true," + hidden + "}"));
        assertThat(events.stream()
                        .filter(event -> event.contains("\"delta\""))
                        .map(event -> ServerFixture.MAPPER
                                .readTree(event)
                                .at("/choices/0/delta/content")
                                .asString()))
                .containsExactly("", "Seven", ".", "");
    }

    @Test
    void thePromptAndTheRequestSayWhetherItHasBegun() throws Exception {
        fixture.engine.answers("Seven.");
        assertThat(answer(CHAT, ASKED + ",\"chat_template_kwargs\":{\"enable_thinking\":false}")
                        .at("/choices/0/message/content")
                        .asString())
                .isEqualTo("Seven.");
        assertThat(answer(CHAT, ASKED + ",\"reasoning_effort\":\"none\"")
                        .at("/choices/0/message/content")
                        .asString())
                .isEqualTo("Seven.");
        String goesOn = ",\"continue_final_message\":true,\"add_generation_prompt\":false";
        assertThat(answer(
                                CHAT,
                                ASKED.replace("]", ",{\"role\":\"assistant\",\"content\":\"<think>a</think>\"}]")
                                        + goesOn)
                        .at("/choices/0/message/content")
                        .asString())
                .isEqualTo("Seven.");
        // A user's marks are those of another message.
        assertThat(answer(CHAT, ASKED.replace("\"x\"", "\"</think>\""))
                        .at("/choices/0/message/reasoning")
                        .asString())
                .isEqualTo("Seven.");
    }

    @Test
    void aFormatBeginsAfterIt() throws Exception {
        fixture.engine.answers("<think>", "Hm", "</think>", "{}");
        String format = ",\"response_format\":{\"type\":\"json_object\"}";
        assertThat(answer(CHAT, ASKED + format).at("/choices/0/message/content").asString())
                .isEqualTo("{}");
        assertThat(fixture.engine.nextSubmitted().request.sampling().format().orElseThrow())
                .isInstanceOfSatisfying(
                        OutputFormat.After.class,
                        after -> assertThat(after.format()).isInstanceOf(OutputFormat.JsonObject.class));
        answer(
                CHAT,
                ASKED.replace("]", ",{\"role\":\"assistant\",\"content\":\"<think>a</think>\"}]") + format
                        + ",\"continue_final_message\":true,\"add_generation_prompt\":false");
        assertThat(fixture.engine.nextSubmitted().request.sampling().format().orElseThrow())
                .isInstanceOf(OutputFormat.JsonObject.class);
    }

    /** OpenAI's client for Python builds a stream's response of the deltas. */
    @Test
    @Tag("peers")
    void openAisPythonClientUnderstandsResponses() throws Exception {
        String environment = System.getenv("BATON_VLLM");
        assumeTrue(environment != null, "BATON_VLLM is not set: it names a Python environment with vLLM 0.32");
        fixture.engine.answers(
                "<think>",
                "Hm",
                "</think>",
                "Well.",
                "<tool_call>",
                "{\"name\": \"f\", \"arguments\": {}}",
                "</tool_call>");
        String script;
        try (InputStream in = Objects.requireNonNull(ReasoningTest.class.getResourceAsStream("openai_responses.py"))) {
            script = new String(in.readAllBytes(), StandardCharsets.UTF_8);
        }
        Process python = new ProcessBuilder(
                        Path.of(environment, "bin", "python").toString(),
                        "-c",
                        script,
                        fixture.uri("/v1").toString(),
                        ServerFixture.MODEL)
                .redirectError(ProcessBuilder.Redirect.INHERIT)
                .start();
        try {
            String printed = new String(python.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
            assertThat(python.waitFor(2, TimeUnit.MINUTES)).isTrue();
            String expected = "case {\"status\": \"completed\", \"text\": \"Well.\", \"calls\": [\"f{}\"],"
                    + " \"reasoning\": [\"Hm\"], \"tokens\": 7}";
            assertThat(printed.lines()).containsExactly(expected, expected);
        } finally {
            python.destroyForcibly();
        }
    }

    @Test
    void responsesHaveItAsAnItem() throws Exception {
        fixture.engine.answers(
                "<think>", "Hm", "</think>", "<tool_call>", "{\"name\": \"f\", \"arguments\": {}}", "</tool_call>");
        String asked = "\"input\":\"x\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"}]";
        JsonNode answer = answer("/v1/responses", asked);
        assertThat(answer.path("output")
                        .valueStream()
                        .map(item -> item.path("type").asString()))
                .containsExactly("reasoning", "function_call");
        assertThat(answer.at("/output/0/content").toString())
                .isEqualTo("[{\"type\":\"reasoning_text\",\"text\":\"Hm\"}]");
        assertThat(answer.at("/usage/output_tokens_details/reasoning_tokens").asInt())
                .isEqualTo(1);
        assertThat(fixture.post("/v1/responses", "{" + asked + ",\"stream\":true}")
                        .body()
                        .lines()
                        .filter(line -> line.startsWith("event: "))
                        .map(line -> line.substring("event: response.".length())))
                .containsExactly(
                        "created",
                        "in_progress",
                        "output_item.added",
                        "content_part.added",
                        "reasoning_text.delta",
                        "reasoning_text.done",
                        "content_part.done",
                        "output_item.done",
                        "output_item.added",
                        "function_call_arguments.delta",
                        "function_call_arguments.done",
                        "output_item.done",
                        "completed");
        assertThat(answer("/v1/responses", asked + ",\"include_reasoning\":false")
                        .path("output")
                        .size())
                .isEqualTo(1);
    }
}
