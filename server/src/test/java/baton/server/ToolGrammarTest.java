package baton.server;

import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.EngineConfig;
import baton.engine.local.LocalEngine;
import baton.kv.DType;
import com.fasterxml.jackson.annotation.JsonClassDescription;
import com.openai.client.OpenAIClient;
import com.openai.client.okhttp.OpenAIOkHttpClient;
import com.openai.core.http.StreamResponse;
import com.openai.helpers.ChatCompletionAccumulator;
import com.openai.models.chat.completions.ChatCompletion;
import com.openai.models.chat.completions.ChatCompletionChunk;
import com.openai.models.chat.completions.ChatCompletionCreateParams;
import com.openai.models.chat.completions.ChatCompletionMessageFunctionToolCall;
import com.openai.models.chat.completions.ChatCompletionToolChoiceOption;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Set;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import tools.jackson.databind.JsonNode;

/** A model that knows nothing of tools calls them as {@code tool_choice} and their schemas say. */
class ToolGrammarTest {
    private static final String CHAT = """
            "messages":[{"role":"user","content":"In which town does Tomas live?"}],"max_tokens":400,"temperature":1,
            "tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{
            "count":{"type":"integer","minimum":0,"maximum":99},"city":{"enum":["Harrow","Ely"]},"exact":{"type":"boolean"}},
            "required":["count","city"],"additionalProperties":false}}},{"type":"function","function":{"name":"g"}}]""";

    private static LocalEngine engine;

    private static final HttpClient CLIENT =
            HttpClient.newBuilder().connectTimeout(ServerFixture.SOON).build();

    @BeforeAll
    static void start() throws Exception {
        engine = engine(FakeEngine.MODEL);
    }

    private static LocalEngine engine(Path model) throws Exception {
        return LocalEngine.start(
                EngineConfig.of(model)
                        .dtype(DType.F32)
                        .numBlocks(256)
                        .maxNumSeqs(8)
                        .threads(1)
                        .build(),
                new PrometheusMetrics(ServerFixture.MODEL));
    }

    @AfterAll
    static void stop() {
        CLIENT.shutdownNow();
        engine.close();
    }

    private static ApiServer server(String format) {
        return server(format, engine);
    }

    private static ApiServer server(String format, LocalEngine engine) {
        return ApiServer.start(
                ServerConfig.of(ServerFixture.MODEL)
                        .port(0)
                        .accessLog(line -> {})
                        .toolCallParser(format)
                        .build(),
                engine,
                new PrometheusMetrics(ServerFixture.MODEL));
    }

    private static JsonNode choice(ApiServer server, String more) throws Exception {
        HttpResponse<String> response = post(server, more);
        assertThat(response.statusCode()).as(response.body()).isEqualTo(200);
        return ServerFixture.MAPPER.readTree(response.body()).at("/choices/0");
    }

    private static HttpResponse<String> post(ApiServer server, String more) throws Exception {
        return CLIENT.send(
                HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + server.port() + "/v1/chat/completions"))
                        .header("Content-Type", "application/json")
                        .timeout(ServerFixture.SOON)
                        .POST(HttpRequest.BodyPublishers.ofString("{" + CHAT + more + "}"))
                        .build(),
                HttpResponse.BodyHandlers.ofString());
    }

    @Test
    void callsThatTheModelCannotWriteAreRefused() throws Exception {
        try (ApiServer server = server("openai")) {
            HttpResponse<String> response = post(server, ",\"tool_choice\":\"required\"");
            assertThat(response.statusCode()).isEqualTo(400);
            assertThat(ServerFixture.MAPPER
                            .readTree(response.body())
                            .at("/error/message")
                            .asString())
                    .isEqualTo("tools: the vocabulary has no special token '<|channel|>'");
        }
    }

    private static void assertValid(JsonNode call) {
        JsonNode arguments =
                ServerFixture.MAPPER.readTree(call.at("/function/arguments").asString());
        if (call.at("/function/name").asString().equals("g")) {
            assertThat(arguments.isEmpty()).isTrue();
            return;
        }
        assertThat(call.at("/function/name").asString()).isEqualTo("f");
        // 5.0 is an integer by JSON Schema.
        assertThat(arguments.get("count").isNumber()).as(arguments.toString()).isTrue();
        assertThat(arguments.get("count").asDouble()).isBetween(0.0, 99.0).matches(count -> count == Math.rint(count));
        assertThat(arguments.get("city").asString()).isIn("Harrow", "Ely");
        assertThat(Set.of("count", "city", "exact")).containsAll(arguments.propertyNames());
        assertThat(arguments.path("exact").isBoolean() || !arguments.has("exact"))
                .isTrue();
    }

    @ParameterizedTest
    @ValueSource(strings = {"hermes", "llama3_json", "mistral", "phi4_mini_json", "qwen3_coder", "pythonic"})
    void requiredAndNamedCallsAreMadeAndValid(String format) throws Exception {
        try (ApiServer server = server(format)) {
            for (int seed = 0; seed < 5; seed++) {
                JsonNode one =
                        choice(server, ",\"tool_choice\":\"required\",\"parallel_tool_calls\":false,\"seed\":" + seed);
                assertThat(one.at("/finish_reason").asString())
                        .as(one.toString())
                        .isEqualTo("tool_calls");
                assertThat(one.at("/message/content").isNull()).isTrue();
                assertThat(one.at("/message/tool_calls").size()).isEqualTo(1);
                assertValid(one.at("/message/tool_calls/0"));
            }
            JsonNode named = choice(server, ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}}");
            assertThat(named.at("/finish_reason").asString()).isEqualTo("stop");
            assertThat(named.at("/message/tool_calls/0/function/name").asString())
                    .isEqualTo("f");
            assertValid(named.at("/message/tool_calls/0"));
            JsonNode allowed = choice(server, """
                    ,"parallel_tool_calls":false,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"required",
                    "tools":[{"type":"function","function":{"name":"g"}}]}}""");
            assertThat(allowed.at("/message/tool_calls/0/function/name").asString())
                    .isEqualTo("g");
        }
    }

    @Test
    void severalCallsAreValidUntilTheAnswerIsCutOff() throws Exception {
        try (ApiServer server = server("hermes")) {
            JsonNode choice = choice(server, ",\"tool_choice\":\"required\",\"seed\":3");
            int calls = choice.at("/message/tool_calls").size();
            assertThat(calls).isPositive();
            int whole = choice.at("/finish_reason").asString().equals("length") ? calls - 1 : calls;
            for (int i = 0; i < whole; i++) {
                assertValid(choice.at("/message/tool_calls/" + i));
            }
        }
    }

    /** The grammar demands the token, the parser sees it, and the message is without it. */
    @Test
    void theMarkOfCallsMayBeASpecialToken(@TempDir Path model) throws Exception {
        int mark = 2;
        Path real = FakeEngine.MODEL.toAbsolutePath();
        for (String file : List.of("config.json", "model.safetensors", "tokenizer_config.json")) {
            Files.copy(real.resolve(file), model.resolve(file));
        }
        Files.writeString(
                model.resolve("tokenizer.json"),
                Files.readString(real.resolve("tokenizer.json")).replace("<|user|>", "[TOOL_CALLS]"));
        try (LocalEngine other = engine(model);
                ApiServer server = server("mistral", other)) {
            JsonNode choice = choice(
                    server,
                    ",\"tool_choice\":\"required\",\"parallel_tool_calls\":false,\"seed\":1,\"return_token_ids\":true");
            assertThat(choice.at("/token_ids").valueStream().map(JsonNode::asInt))
                    .contains(mark);
            assertThat(choice.at("/finish_reason").asString()).isEqualTo("tool_calls");
            assertThat(choice.at("/message/content").isNull()).isTrue();
            assertValid(choice.at("/message/tool_calls/0"));
        }
    }

    @JsonClassDescription("The weather of a day")
    static class Weather {
        public boolean tomorrow;
        public Place place = Place.ELY;

        enum Place {
            HARROW,
            ELY
        }
    }

    @Test
    void theOpenAiClientReadsCallsAsObjectsAlsoOfAStream() {
        try (ApiServer server = server("hermes")) {
            OpenAIClient client = OpenAIOkHttpClient.builder()
                    .apiKey("none")
                    .baseUrl("http://127.0.0.1:" + server.port() + "/v1")
                    .maxRetries(0)
                    .build();
            ChatCompletionCreateParams params = ChatCompletionCreateParams.builder()
                    .model(ServerFixture.MODEL)
                    .addUserMessage("Item 7?")
                    .addTool(Weather.class)
                    .toolChoice(ChatCompletionToolChoiceOption.Auto.REQUIRED)
                    .parallelToolCalls(false)
                    .maxCompletionTokens(300)
                    .temperature(0)
                    .build();
            ChatCompletion whole = client.chat().completions().create(params).validate();
            assertThat(call(whole).function().name()).isEqualTo("Weather");
            Weather weather = call(whole).function().arguments(Weather.class);
            ChatCompletionAccumulator accumulator = ChatCompletionAccumulator.create();
            try (StreamResponse<ChatCompletionChunk> stream =
                    client.chat().completions().createStreaming(params)) {
                stream.stream().forEach(accumulator::accumulate);
            }
            Weather streamed = call(accumulator.chatCompletion()).function().arguments(Weather.class);
            assertThat(streamed.place).isEqualTo(weather.place);
            assertThat(streamed.tomorrow).isEqualTo(weather.tomorrow);
            client.close();
        }
    }

    private static ChatCompletionMessageFunctionToolCall call(ChatCompletion completion) {
        ChatCompletion.Choice choice = completion.choices().getFirst();
        assertThat(choice.finishReason()).isEqualTo(ChatCompletion.Choice.FinishReason.TOOL_CALLS);
        return choice.message().toolCalls().orElseThrow().getFirst().asFunction();
    }
}
