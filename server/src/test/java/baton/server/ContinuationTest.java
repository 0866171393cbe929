package baton.server;

import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.EngineConfig;
import baton.engine.FinishReason;
import baton.engine.local.LocalEngine;
import baton.kv.DType;
import baton.kv.Ticker;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.MethodSource;
import org.junit.jupiter.params.provider.ValueSource;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/** An answer that is cut off after any of its tokens is continued by another instance, as {@code baton_continue} asks. */
class ContinuationTest {
    private static final String PROMPT = "Cora keeps the gold coin inside the green box.\\nTomas lives in Harrow.\\n\\n"
            + "In which town does Tomas live?";
    private static final String COMPLETION = "/v1/completions {\"prompt\":\"" + PROMPT + "\",\"max_tokens\":9,";
    private static final String CHAT =
            "/v1/chat/completions {\"messages\":[{\"role\":\"user\",\"content\":\"" + PROMPT + "\"}],\"max_tokens\":9,";
    private static final String TOOLS = """
            "tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{
            "count":{"type":"integer","minimum":0,"maximum":99},"city":{"enum":["Harrow","Ely"]}},
            "required":["count","city"],"additionalProperties":false}}}],"tool_choice":"required",""";
    private static final String RESPONSE_TOOLS =
            TOOLS.replace("\"function\":{", "").replace("false}}}]", "false}}]");
    private static final String RESPONSE = "/v1/responses {\"input\":\"" + PROMPT + "\",\"max_output_tokens\":9,";
    private static final String HOT = "\"temperature\":1.5,";

    /** Each is an instance of its own. */
    private static final List<LocalEngine> ENGINES = new ArrayList<>();

    private static final List<ApiServer> SERVERS = new ArrayList<>();
    private static final HttpClient CLIENT =
            HttpClient.newBuilder().connectTimeout(ServerFixture.SOON).build();

    @BeforeAll
    static void start() throws Exception {
        Ticker ticker = lateTicker();
        for (int i = 0; i < 2; i++) {
            PrometheusMetrics metrics = new PrometheusMetrics(ServerFixture.MODEL);
            LocalEngine engine = LocalEngine.start(
                    EngineConfig.of(FakeEngine.MODEL)
                            .dtype(DType.F32)
                            .numBlocks(256)
                            .maxNumSeqs(4)
                            .threads(1)
                            // So that the counts of cached tokens are those of the whole stream.
                            .enablePrefixCaching(false)
                            .seed(i)
                            .build(),
                    metrics);
            ENGINES.add(engine);
            SERVERS.add(ApiServer.start(
                    ServerConfig.of(ServerFixture.MODEL)
                            .port(0)
                            .accessLog(line -> {})
                            .toolCallParser("hermes")
                            .build(),
                    engine,
                    metrics,
                    ticker));
        }
        SERVERS.add(ApiServer.start(
                ServerConfig.of(ServerFixture.MODEL)
                        .port(0)
                        .accessLog(line -> {})
                        .reasoningParser("deepseek_r1")
                        .build(),
                ENGINES.getLast(),
                new PrometheusMetrics(ServerFixture.MODEL),
                ticker));
    }

    /** Each token of a whole answer comes late enough for a comment of its own. */
    private static Ticker lateTicker() {
        AtomicLong seconds = new AtomicLong();
        return () -> Duration.ofSeconds(seconds.incrementAndGet()).toNanos();
    }

    @AfterAll
    static void stop() {
        CLIENT.shutdownNow();
        SERVERS.forEach(server -> server.close(Duration.ZERO));
        ENGINES.forEach(LocalEngine::close);
    }

    static Stream<String> requests() {
        return Stream.of(
                COMPLETION + "\"temperature\":0}",
                COMPLETION + HOT + "\"seed\":5,\"min_tokens\":4,\"stream_options\":{\"include_usage\":true}}",
                COMPLETION + HOT + "\"ignore_eos\":true}",
                COMPLETION + HOT + "\"seed\":6,\"ignore_eos\":true,\"presence_penalty\":1.5,\"frequency_penalty\":1,"
                        + "\"repetition_penalty\":1.3,\"logit_bias\":{\"300\":5}}",
                COMPLETION + "\"temperature\":0,\"stop\":[\"Harrow, but not here\",\"w.\"]}",
                COMPLETION + "\"temperature\":0,\"echo\":true,\"logprobs\":2,\"return_token_ids\":true}",
                COMPLETION + HOT + "\"seed\":7,\"ignore_eos\":true,\"logprobs\":1,\"stream_interval\":3}",
                COMPLETION + HOT + "\"seed\":8,\"ignore_eos\":true,\"stream_interval\":4,"
                        + "\"stream_options\":{\"include_usage\":true,\"continuous_usage_stats\":true}}",
                COMPLETION + HOT + "\"n\":2}",
                CHAT + HOT + "\"seed\":9,\"logprobs\":true,\"top_logprobs\":2,\"ignore_eos\":true}",
                CHAT + HOT + "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"s\",\"schema\":"
                        + "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"enum\":[\"x\",\"yes\"]}},"
                        + "\"required\":[\"a\",\"b\"],\"additionalProperties\":false}}}}",
                CHAT.replace("9,", "40,") + TOOLS + HOT + "\"seed\":3,\"stream_options\":{\"include_usage\":true}}",
                CHAT + "\"reasons\":true," + HOT + "\"seed\":4,\"ignore_eos\":true}",
                RESPONSE + HOT + "\"ignore_eos\":true}",
                RESPONSE + "\"reasons\":true," + HOT + "\"seed\":4,\"ignore_eos\":true,\"stream_interval\":2}",
                RESPONSE.replace("9,", "40,") + RESPONSE_TOOLS + HOT + "\"seed\":3}");
    }

    @ParameterizedTest
    @MethodSource("requests")
    void aContinuedStreamIsTheUndisturbedOne(String request) throws Exception {
        Answer whole = new Answer(request, Map.of(), "");
        assertThat(whole.commits).isNotEmpty();
        assertThat(whole.data.getLast())
                .containsAnyOf("data: [DONE]\n\n", "event: response.completed", "event: response.incomplete");
        for (int cut = 1; cut <= whole.commits.size(); cut++) {
            Answer rest = new Answer(request, whole.before(cut), whole.stream);
            assertThat(byChoice(Stream.concat(whole.sent(cut).stream(), rest.data.stream())
                            .toList()))
                    .as("cut off after event %d of tokens", cut)
                    .isEqualTo(byChoice(whole.data));
        }
    }

    static Stream<String> wholeRequests() {
        return Stream.concat(
                        requests(),
                        Stream.of(
                                COMPLETION + HOT + "\"n\":2,\"logprobs\":0,\"echo\":true}",
                                COMPLETION + "\"temperature\":0,\"logprobs\":20,\"prompt_logprobs\":1}",
                                CHAT + "\"reasons\":true," + HOT + "\"seed\":4,\"ignore_eos\":true,\"logprobs\":true,"
                                        + "\"include_reasoning\":false}",
                                RESPONSE + HOT + "\"seed\":5,\"ignore_eos\":true,\"top_logprobs\":3,"
                                        + "\"include\":[\"message.output_text.logprobs\"]}"))
                .map(request -> request.replaceAll(",\"stream_options\":\\{[^}]*}", ""));
    }

    @ParameterizedTest
    @MethodSource("wholeRequests")
    void aContinuedWholeAnswerIsTheUndisturbedOne(String request) throws Exception {
        Answer whole = new Answer(request, Map.of(), "", false);
        assertThat(whole.commits).isNotEmpty();
        assertThat(whole.data).hasSize(1);
        for (int cut = 1; cut <= whole.commits.size(); cut++) {
            Answer rest = new Answer(request, whole.before(cut), whole.stream, false);
            assertThat(byChoice(rest.data))
                    .as("cut off after comment %d of tokens", cut)
                    .isEqualTo(byChoice(whole.data));
            Map<Integer, List<String>> tokens = whole.before(cut);
            rest.before(rest.commits.size())
                    .forEach((choice, ids) -> tokens.computeIfAbsent(choice, _ -> new ArrayList<>())
                            .addAll(ids));
            assertThat(tokens).isEqualTo(whole.before(whole.commits.size()));
        }
    }

    @Test
    void aWholeAnswerThatFailsBehindCommentsHasItsStatusInOne() throws Exception {
        try (FakeEngine engine = new FakeEngine();
                ApiServer server = ApiServer.start(
                        ServerConfig.of(ServerFixture.MODEL)
                                .port(0)
                                .accessLog(line -> {})
                                .build(),
                        engine,
                        new PrometheusMetrics(ServerFixture.MODEL),
                        lateTicker())) {
            engine.script(session -> {
                session.output(0, "x");
                session.finish(0, FinishReason.ERROR, Optional.empty(), Optional.of("torn block"));
            });
            HttpResponse<String> answer =
                    send(server, "/v1/completions", body(COMPLETION + "\"temperature\":0}"), true);
            assertThat(answer.statusCode()).isEqualTo(200);
            assertThat(answer.body()).matches("(?s):t 0 \\d+\n\n:status 500\n\n\\{\"error\":.*torn block.*\\}");
            assertThat(answer.headers().firstValue("Content-Type")).contains("application/json");
            assertThat(answer.headers().firstValue("Cache-Control")).isEmpty();
        }
    }

    @Test
    void aWholeAnswerHasNoCommentsUnlessItIsAskedForThem() throws Exception {
        ObjectNode body = body(COMPLETION + "\"temperature\":0}");
        HttpResponse<String> plain = send("/v1/completions", body, false);
        assertThat(json(plain).has("choices")).isTrue();
        assertThat(plain.headers().map()).doesNotContainKey("x-baton-stream");
        HttpResponse<String> best = send("/v1/completions", body.put("best_of", 2), true);
        assertThat(json(best).has("choices")).isTrue();
    }

    @Test
    void aStreamMayBeContinuedOftenAndOneOfWhichNothingWasSent() throws Exception {
        String request = COMPLETION + HOT + "\"ignore_eos\":true,\"logprobs\":1}";
        Answer whole = new Answer(request, Map.of(), "");
        List<String> sent = new ArrayList<>();
        Map<Integer, List<String>> before = Map.of();
        while (!sent.contains("data: [DONE]\n\n")) {
            Answer next = new Answer(request, before, whole.stream);
            boolean isOver = next.commits.size() < 2;
            sent.addAll(isOver ? next.data : next.sent(1));
            Map<Integer, List<String>> tokens = new TreeMap<>(before);
            next.before(1)
                    .forEach((choice, ids) -> tokens.merge(
                            choice,
                            ids,
                            (first, second) -> Stream.concat(first.stream(), second.stream())
                                    .toList()));
            before = tokens;
        }
        assertThat(sent).isEqualTo(whole.data);
    }

    @Test
    void aPrefillLegComputesPromptAndOutput() throws Exception {
        ObjectNode body = body(COMPLETION + "\"temperature\":0,\"return_token_ids\":true}");
        JsonNode undisturbed = json(send("/v1/completions", body, false)).at("/choices/0");
        ArrayNode ids = body.putObject("baton_continue")
                .put("id", "cmpl-1")
                .putArray("choices")
                .addObject()
                .putArray("token_ids");
        for (int i = 0; i < 3; i++) {
            ids.add(undisturbed.at("/token_ids/" + i));
        }
        ObjectNode prefill = body.deepCopy().put("max_tokens", 1);
        prefill.putObject("kv_transfer_params").put("do_remote_decode", true);
        JsonNode answer = json(send("/v1/completions", prefill));
        assertThat(answer.at("/choices/0/token_ids/0")).isEqualTo(undisturbed.at("/token_ids/3"));
        assertThat(answer.at("/choices/0/prompt_token_ids")).isEqualTo(undisturbed.get("prompt_token_ids"));
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "{\"id\":\"\"} must be the id of the answer",
                "{\"id\":\"a\\nb\"} must be the id of the answer",
                "{\"id\":\"a\",\"seeds\":[0.5]} must be whole numbers of 64 bits",
                "{\"id\":\"a\",\"seeds\":[1,2]} has 2 seeds, but the request has 1 prompts",
                "{\"id\":\"a\",\"choices\":[{\"index\":1}]} has index 1, but the request has 1 choices",
                "{\"id\":\"a\",\"choices\":[{},{}]} is 0, which another choice is",
                "{\"id\":\"a\",\"choices\":[{\"token_ids\":[99999]}]} is not in the vocabulary",
                "{\"id\":\"a\",\"choices\":[{\"token_ids\":[9,9,9,9,9,9,9,9,9,9]}]} has 10 tokens, but the output may have 9"
            })
    void aContinuationThatCannotBeIsRefused(String fieldAndError) throws Exception {
        int end = fieldAndError.lastIndexOf('}') + 1;
        ObjectNode body = body(COMPLETION + "\"stream\":true}");
        body.set("baton_continue", ServerFixture.MAPPER.readTree(fieldAndError.substring(0, end)));
        assertThat(error(body)).contains(fieldAndError.substring(end + 1));
        body.put("stream", false).put("best_of", 2);
        body.set("baton_continue", ServerFixture.MAPPER.readTree("{\"id\":\"a\"}"));
        assertThat(error(body)).contains("nor for answers with best_of");
    }

    @Test
    void thePeerOfAContinuationThatIsRefusedNeedNotKeepBlocks() throws Exception {
        try (ServerFixture server = new ServerFixture()) {
            HttpResponse<String> refused = server.post(
                    "/v1/responses",
                    "{\"input\":\"a\",\"stream\":true,\"include\":[\"message.output_text.logprobs\"],"
                            + "\"baton_continue\":{\"id\":\"a\"},\"kv_transfer_params\":{\"k\":1}}");
            assertThat(refused.statusCode()).isEqualTo(400);
            assertThat(refused.body()).contains("baton_continue: is not available for streams of responses");
            assertThat(server.engine.nextRefused().toJson().toString()).isEqualTo("{\"k\":1}");
        }
    }

    @ParameterizedTest
    @CsvSource(
            quoteCharacter = '\'',
            delimiter = '|',
            value = {
                "logprobs|[]|must have a record for each of the 1 token_ids, is []",
                "logprobs|7|must have a record for each of the 1 token_ids, is 7",
                "logprobs|[\"AAAAAAAAAAAAAAAA\",\"AAAAAAAAAAAAAAAA\"]|must have a record for each of the 1 token_ids",
                "logprobs[0]|[5]|must be 12 bytes in URL-safe base64, for 1 most probable tokens, is 5",
                "logprobs[0]|[\"*\"]|must be 12 bytes in URL-safe base64, for 1 most probable tokens, is \"*\"",
                "logprobs[0]|[\"AAAAAA\"]|must be 12 bytes in URL-safe base64",
                "logprobs[0]|[\"f8AAAAAAAAAAAAAA\"]|has NaN, which is no log probability",
                "logprobs[0]|[\"AAAAAAAAAAB_wAAA\"]|has NaN, which is no log probability",
                "logprobs[0]|[\"f4AAAAAAAAAAAAAA\"]|has Infinity, which is no log probability",
                "logprobs[0]|[\"AAAAAP____8AAAAA\"]|token id -1 is not in the vocabulary"
            })
    void logProbabilitiesThatCannotBeAreRefused(String field, String records, String message) throws Exception {
        assertThat(error(behindOneToken(records))).startsWith("baton_continue.choices[0]." + field + ": " + message);
    }

    @Test
    void theRefusalOfALongRecordIsShort() throws Exception {
        assertThat(error(behindOneToken("[\"" + "A".repeat(1 << 20) + "\"]")))
                .contains("must be 12 bytes")
                .hasSizeLessThan(300);
    }

    /** A whole answer with log probabilities. */
    private static ObjectNode behindOneToken(String records) {
        return body(COMPLETION
                + "\"logprobs\":1,\"baton_continue\":{\"id\":\"a\",\"choices\":[{\"token_ids\":[9],\"logprobs\":"
                + records + "}]}}");
    }

    private static String error(ObjectNode body) throws Exception {
        HttpResponse<String> response = send("/v1/completions", body);
        assertThat(response.statusCode()).as(response.body()).isEqualTo(400);
        return ServerFixture.MAPPER
                .readTree(response.body())
                .at("/error/message")
                .asString();
    }

    /** The events of each choice, in order, and those of none; ids of calls are random. */
    private static Map<Integer, List<String>> byChoice(List<String> events) {
        Map<Integer, List<String>> choices = new TreeMap<>();
        for (String event : events) {
            JsonNode choice = event.startsWith("data: {")
                    ? ServerFixture.MAPPER.readTree(event.substring(6)).at("/choices/0/index")
                    : ServerFixture.MAPPER.missingNode();
            choices.computeIfAbsent(choice.asInt(-1), _ -> new ArrayList<>())
                    .add(event.replaceAll("\"(id|call_id)\":\"(chatcmpl-tool-|call_)[^\"]*\"", "\"$1\":\"call\""));
        }
        return choices;
    }

    private static ObjectNode body(String request) {
        return (ObjectNode) ServerFixture.MAPPER.readTree(request.substring(request.indexOf(' ')));
    }

    private static JsonNode json(HttpResponse<String> response) {
        assertThat(response.statusCode()).as(response.body()).isEqualTo(200);
        return ServerFixture.MAPPER.readTree(response.body());
    }

    private static HttpResponse<String> send(String path, ObjectNode body) throws Exception {
        return send(path, body, true);
    }

    private static HttpResponse<String> send(String path, ObjectNode body, boolean wantsTokens) throws Exception {
        return send(
                body.has("reasons") ? SERVERS.get(2) : SERVERS.get(body.has("baton_continue") ? 1 : 0),
                path,
                body,
                wantsTokens);
    }

    private static HttpResponse<String> send(ApiServer server, String path, ObjectNode body, boolean wantsTokens)
            throws Exception {
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + server.port() + path))
                .header("Content-Type", "application/json")
                .timeout(ServerFixture.SOON)
                .POST(HttpRequest.BodyPublishers.ofString(body.toString()));
        if (wantsTokens) {
            request.header("X-Baton-Token-Ids", "1");
        }
        return CLIENT.send(request.build(), HttpResponse.BodyHandlers.ofString());
    }

    /** An answer, taken apart as a router does. */
    private static final class Answer {
        final String stream;
        /** The events that a client gets. */
        final List<String> data = new ArrayList<>();
        /** The comments, each with the number of events before it. */
        final List<Map.Entry<Integer, String>> commits = new ArrayList<>();

        /** @param before the tokens of each choice so far, and "end" if it has ended; none of an answer that begins */
        Answer(String request, Map<Integer, List<String>> before, String of) throws Exception {
            this(request, before, of, true);
        }

        Answer(String request, Map<Integer, List<String>> before, String of, boolean streamed) throws Exception {
            ObjectNode body = body(request).put("stream", streamed);
            if (!of.isEmpty()) {
                ObjectNode field = ServerFixture.MAPPER.readTree(of).asObject();
                ArrayNode choices = field.putArray("choices");
                before.forEach((index, words) -> {
                    ObjectNode choice = choices.addObject().put("index", index).put("finished", words.contains("end"));
                    ArrayNode ids = choice.putArray("token_ids");
                    ArrayNode logprobs = choice.putArray("logprobs");
                    for (String word : words) {
                        String[] parts = word.split(":");
                        if (!word.equals("end")) {
                            ids.add(Integer.parseInt(parts[0]));
                        }
                        if (parts.length > 1) {
                            logprobs.add(parts[1]);
                        }
                    }
                });
                body.set("baton_continue", field);
            }
            HttpResponse<String> response = send(request.substring(0, request.indexOf(' ')), body);
            assertThat(response.statusCode()).as(response.body()).isEqualTo(200);
            // A whole answer that has no token left has none.
            stream = response.headers().firstValue("X-Baton-Stream").orElse(of);
            for (String event : response.body().split("(?<=\n\n)")) {
                if (event.startsWith(":t ")) {
                    commits.add(Map.entry(data.size(), event.substring(3).strip()));
                } else {
                    data.add(event);
                }
            }
        }

        /** The events before so many comments. */
        List<String> sent(int cut) {
            return data.subList(0, commits.get(cut - 1).getKey());
        }

        /** The words of so many comments, by choice. */
        Map<Integer, List<String>> before(int cut) {
            Map<Integer, List<String>> words = new TreeMap<>();
            for (Map.Entry<Integer, String> commit : commits.subList(0, cut)) {
                String[] parts = commit.getValue().split("[ ,]");
                words.computeIfAbsent(Integer.parseInt(parts[0]), _ -> new ArrayList<>())
                        .addAll(List.of(parts).subList(1, parts.length));
            }
            return words;
        }
    }
}
