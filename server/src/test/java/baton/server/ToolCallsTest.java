package baton.server;

import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.FinishReason;
import baton.engine.TokenLogprobs;
import baton.engine.TokenLogprobs.Candidate;
import java.net.http.HttpResponse;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import tools.jackson.databind.JsonNode;

class ToolCallsTest {
    private static final String CHAT = "/v1/chat/completions";
    private static final String TOOLS = """
            "messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f"}},
            {"type":"function","function":{"name":"g"}}]""";
    private static final String[] CALL = {
        "Well.", "<tool_call>", "\n{\"name\": \"f\", \"arguments\": {", "\"a\": ", "1}}", "\n</tool_call>"
    };

    @AutoClose
    private final ServerFixture fixture = new ServerFixture(config -> config.toolCallParser("hermes"));

    private JsonNode answer(String more) throws Exception {
        HttpResponse<String> response = fixture.post(CHAT, "{" + TOOLS + more + "}");
        assertThat(response.statusCode()).as(response.body()).isEqualTo(200);
        return ServerFixture.json(response);
    }

    private List<JsonNode> chunks(String more) throws Exception {
        HttpResponse<String> response = fixture.post(CHAT, "{" + TOOLS + ",\"stream\":true" + more + "}");
        assertThat(response.statusCode()).as(response.body()).isEqualTo(200);
        List<JsonNode> chunks = new ArrayList<>();
        response.body()
                .lines()
                .filter(line -> line.startsWith("data: {"))
                .forEach(line -> chunks.add(ServerFixture.MAPPER.readTree(line.substring("data: ".length()))));
        return chunks;
    }

    @Test
    void responsesHaveThoseThatAreAllowed() throws Exception {
        fixture.engine.answers(CALL);
        String asked =
                "\"input\":\"x\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"},{\"type\":\"function\",\"name\":\"g\"}]"
                        + ",\"tool_choice\":{\"type\":\"allowed_tools\",\"mode\":\"required\",\"tools\":";
        HttpResponse<String> response =
                fixture.post("/v1/responses", "{" + asked + "[{\"type\":\"function\",\"name\":\"f\"}]}}");
        assertThat(response.statusCode()).as(response.body()).isEqualTo(200);
        assertThat(ServerFixture.json(response).at("/output/1/name").asString()).isEqualTo("f");
        assertThat(fixture.engine.nextSubmitted().request.sampling().format()).isPresent();
        HttpResponse<String> other =
                fixture.post("/v1/responses", "{" + asked + "[{\"type\":\"function\",\"name\":\"h\"}]}}");
        assertThat(ServerFixture.json(other).at("/error/message").asString())
                .startsWith("tool_choice.tools[0].name: is 'h', must be the name of one of the tools: f, g");
    }

    /** A text that may begin a call comes late, and its tokens with it. */
    @Test
    void responsesHaveTheLogProbabilitiesOfAllTheirText() throws Exception {
        int id = fixture.engine.tokenizer().encode("a", false)[0];
        fixture.engine.script(session -> {
            for (String piece : List.of("Seven", " <", "tool", "s>")) {
                session.output(
                        0,
                        new int[] {id},
                        piece,
                        List.of(new TokenLogprobs(id, -0.5f, 1, List.of(new Candidate(id, -0.5f)))));
            }
            session.finish(0, FinishReason.STOP);
        });
        String asked = "{\"input\":\"x\",\"include\":[\"message.output_text.logprobs\"],\"stream\":true,"
                + "\"tools\":[{\"type\":\"function\",\"name\":\"f\"}]}";
        List<JsonNode> deltas = fixture.post("/v1/responses", asked)
                .body()
                .lines()
                .filter(line -> line.startsWith("data: ") && line.contains(".delta"))
                .map(line -> ServerFixture.MAPPER.readTree(line.substring("data: ".length())))
                .toList();
        assertThat(deltas).extracting(delta -> delta.path("delta").asString()).containsExactly("Seven", " ", "<tools>");
        assertThat(deltas).extracting(delta -> delta.path("logprobs").size()).containsExactly(1, 1, 2);
    }

    @Test
    void aMessageHasItsCalls() throws Exception {
        fixture.engine.answers(CALL);
        JsonNode choice = answer("").at("/choices/0");
        assertThat(choice.at("/finish_reason").asString()).isEqualTo("tool_calls");
        assertThat(choice.at("/message").toString().replaceFirst("chatcmpl-tool-[0-9a-f]{16}", "ID"))
                .isEqualTo(
                        "{\"role\":\"assistant\",\"content\":\"Well.\",\"refusal\":null,\"tool_calls\":"
                                + "[{\"id\":\"ID\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": 1}\"}}]}");
        fixture.engine.answers(List.of(CALL).subList(1, CALL.length).toArray(String[]::new));
        JsonNode message = answer("").at("/choices/0/message");
        assertThat(message.get("content").isNull()).isTrue();
        assertThat(message.get("tool_calls").size()).isEqualTo(1);
    }

    @Test
    void aStreamHasTheNameAndThenTheArguments() throws Exception {
        fixture.engine.answers(CALL);
        List<String> deltas = chunks("").stream()
                .map(chunk -> chunk.at("/choices/0/delta").toString().replaceFirst("chatcmpl-tool-[0-9a-f]{16}", "ID"))
                .toList();
        assertThat(deltas)
                .containsExactly(
                        "{\"role\":\"assistant\",\"content\":\"Well.\"}",
                        "{\"tool_calls\":[{\"index\":0,\"id\":\"ID\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\"}}]}",
                        "{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"\\\"a\\\": \"}}]}",
                        "{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"1}\"}}]}",
                        "{\"content\":\"\"}");
        assertThat(chunks("").getLast().at("/choices/0/finish_reason").asString())
                .isEqualTo("tool_calls");
        assertThat(chunks(",\"stream_interval\":5")).hasSize(3);
    }

    @Test
    void tokensWithoutAPieceHaveIdsAndLogprobsInTheStream() throws Exception {
        fixture.engine.script(session -> {
            for (int i = 0; i < CALL.length; i++) {
                session.output(
                        0,
                        new int[] {50 + i},
                        CALL[i],
                        List.of(new TokenLogprobs(50 + i, -0.5f, 1, List.of(new Candidate(50 + i, -0.5f)))));
            }
            session.finish(0, FinishReason.STOP);
        });
        List<Integer> ids = new ArrayList<>();
        int logprobs = 0;
        for (JsonNode chunk : chunks(",\"return_token_ids\":true,\"logprobs\":true")) {
            chunk.at("/choices/0/token_ids").forEach(id -> ids.add(id.asInt()));
            logprobs += chunk.at("/choices/0/logprobs/content").size();
        }
        assertThat(ids).containsExactly(50, 51, 52, 53, 54, 55);
        assertThat(logprobs).isEqualTo(6);
        JsonNode last = chunks(",\"stream_options\":{\"include_usage\":true}").getLast();
        assertThat(last.at("/usage/completion_tokens").asInt()).isEqualTo(6);
    }

    @Test
    void eachChoiceHasItsOwnCalls() throws Exception {
        fixture.engine.script(session -> {
            for (String part : CALL) {
                session.output(0, part);
                session.output(1, part.replace("\"f\"", "\"g\""));
            }
            session.output(2, "No.");
            for (int i = 0; i < 3; i++) {
                session.finish(i, i == 1 ? FinishReason.LENGTH : FinishReason.STOP);
            }
        });
        JsonNode choices = answer(",\"n\":3").get("choices");
        assertThat(choices.at("/0/message/tool_calls/0/function/name").asString())
                .isEqualTo("f");
        assertThat(choices.at("/1/message/tool_calls/0/function/name").asString())
                .isEqualTo("g");
        assertThat(choices.at("/1/finish_reason").asString()).isEqualTo("length");
        assertThat(choices.at("/2/message/content").asString()).isEqualTo("No.");
        assertThat(choices.at("/2/finish_reason").asString()).isEqualTo("stop");
        assertThat(choices.at("/2/message").has("tool_calls")).isFalse();
    }

    @Test
    void noneLeavesCallsInTheText() throws Exception {
        fixture.engine.answers(CALL);
        JsonNode choice = answer(",\"tool_choice\":\"none\"").at("/choices/0");
        assertThat(choice.at("/message/content").asString()).isEqualTo(String.join("", CALL));
        assertThat(choice.at("/finish_reason").asString()).isEqualTo("stop");
    }

    @Test
    void aNamedFunctionStops() throws Exception {
        fixture.engine.answers(CALL);
        JsonNode choice = answer(",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}}")
                .at("/choices/0");
        assertThat(choice.at("/message/tool_calls").size()).isEqualTo(1);
        assertThat(choice.at("/finish_reason").asString()).isEqualTo("stop");
    }

    @ParameterizedTest
    @CsvSource(delimiter = '|', quoteCharacter = '`', textBlock = """
            "x"                                               | tool_choice: unsupported value 'x'; allowed: none, auto, required,
            5                                                 | tool_choice: is 5, must be none, auto, required,
            {"type":"x"}                                      | tool_choice: is {"type":"x"}, must be none, auto, required,
            {"type":"function"}                               | tool_choice.function: is missing, must be an object
            {"type":"function","function":{"name":"h"}}       | tool_choice.function.name: is 'h', must be the name of one of the tools: f, g
            {"type":"allowed_tools","allowed_tools":{"tools":[]}} | tool_choice.allowed_tools.tools: is missing or empty, must be an array of tools
            {"type":"allowed_tools","allowed_tools":{"mode":"x","tools":[{"type":"function","function":{"name":"f"}}]}} | tool_choice.allowed_tools.mode: unsupported value 'x'; allowed: auto, required
            """)
    void otherChoicesAreRefused(String choice, String message) throws Exception {
        HttpResponse<String> response = fixture.post(CHAT, "{" + TOOLS + ",\"tool_choice\":" + choice + "}");
        assertThat(response.statusCode()).isEqualTo(400);
        assertThat(ServerFixture.json(response).at("/error/message").asString()).startsWith(message);
    }

    @Test
    void aNamedFunctionHasNoStructuredOutputsBeside() throws Exception {
        HttpResponse<String> response = fixture.post(
                CHAT,
                "{" + TOOLS
                        + ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}},\"structured_outputs\":{\"regex\":\"a\"}}");
        assertThat(response.statusCode()).isEqualTo(400);
        assertThat(ServerFixture.json(response).at("/error/param").asString()).isEqualTo("structured_outputs");
    }

    @Test
    void aServerWithoutAParserRefusesToolsButWithNone() throws Exception {
        try (ServerFixture without = new ServerFixture()) {
            without.engine.answers("x");
            for (String choice : List.of("", ",\"tool_choice\":\"auto\"", ",\"tool_choice\":\"required\"")) {
                HttpResponse<String> response = without.post(CHAT, "{" + TOOLS + choice + "}");
                assertThat(response.statusCode()).isEqualTo(400);
                assertThat(ServerFixture.json(response).at("/error/message").asString())
                        .startsWith("tool_choice: is \"")
                        .endsWith("requires --enable-auto-tool-choice and --tool-call-parser to be set");
            }
            for (String choice : List.of("null", "\"none\"")) {
                assertThat(without.post(CHAT, "{" + TOOLS + ",\"tool_choice\":" + choice + "}")
                                .statusCode())
                        .isEqualTo(200);
            }
        }
    }
}
