package baton.server;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.IOException;
import java.io.InputStream;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ObjectNode;

/** Each field of vLLM's requests is in the table of docs/serving.md, and is applied, ignored or refused as that says. */
class RequestFieldsTest {
    private static final String FIELDS = "vllm-request-fields.json";
    private static final Pattern NAME = Pattern.compile("`([a-z_]+)`");

    /** Each type of JSON: of these values a field that is read refuses at least one. */
    private static final List<String> VALUES = List.of("{\"a\":[1]}", "7", "\"x\"", "[{}]");

    /** By the class of the request, the path and the fields that a request needs. */
    private static final Map<String, List<String>> REQUESTS = Map.of(
            "CompletionRequest", List.of("/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":1}"),
            "ChatCompletionRequest",
                    List.of("/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}"),
            "TokenizeCompletionRequest", List.of("/tokenize", "{\"prompt\":\"a\"}"),
            "TokenizeChatRequest", List.of("/tokenize", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}"),
            "DetokenizeRequest", List.of("/detokenize", "{\"tokens\":[5]}"));

    /** A value of the right type for each field without effect. */
    private static final String WITHOUT_EFFECT = """
            {"user": "u", "session_id": "s", "spaces_between_special_tokens": false,
             "watermarking": true, "length_penalty": 2.5, "routed_experts_prompt_start": 3,
             "return_token_offsets": true, "mm_payload": "none", "return_mm_kwargs": false,
             "ec_transfer_params": {"a": 1}, "vllm_xargs": {"a": 1}, "guided_decoding_backend": "outlines"}
            """;

    @AutoClose
    private final ServerFixture fixture = new ServerFixture(config -> config.trustRequestChatTemplate(true));

    private static String resource(String name) throws IOException {
        try (InputStream in = Objects.requireNonNull(RequestFieldsTest.class.getResourceAsStream(name))) {
            return new String(in.readAllBytes(), StandardCharsets.UTF_8);
        }
    }

    private static List<String> fields(String request) throws IOException {
        List<String> names = new ArrayList<>();
        ServerFixture.MAPPER.readTree(resource(FIELDS)).get(request).forEach(name -> names.add(name.asString()));
        return names;
    }

    /** The names in rows of the page's table of fields. */
    private static Set<String> documented(String... rows) throws IOException {
        Path root = Path.of("").toAbsolutePath();
        Path page = root.resolveSibling("docs").resolve("serving.md");
        String table = Files.readString(Files.exists(page) ? page : root.resolve("docs", "serving.md"))
                .split("\n### Fields\n")[1]
                .split("\n- ")[0];
        Set<String> names = new TreeSet<>();
        for (String line : table.lines().toList()) {
            if (Set.of(rows).contains(line.replaceFirst("^\\| ([^|]*) \\|.*", "$1"))) {
                Matcher matcher = NAME.matcher(line);
                while (matcher.find()) {
                    names.add(matcher.group(1));
                }
            }
        }
        return names;
    }

    /** The fields that an answer of 400 names, one for each value. */
    private Set<String> refusedAs(String path, ObjectNode body, String name) throws Exception {
        Set<String> refused = new TreeSet<>();
        for (String value : VALUES) {
            ObjectNode asked = body.deepCopy();
            asked.set(name, ServerFixture.MAPPER.readTree(value));
            HttpResponse<String> answer = fixture.post(path, asked.toString());
            if (answer.statusCode() == 400 || answer.statusCode() == 404) {
                refused.add(ServerFixture.json(answer)
                        .at("/error/param")
                        .asString("")
                        .replaceFirst("[.\\[].*", ""));
            }
        }
        return refused;
    }

    @Test
    void everyFieldOfVllmsRequestsIsDocumentedAndRead() throws Exception {
        fixture.engine.answers("x");
        for (Map.Entry<String, List<String>> request : REQUESTS.entrySet()) {
            Set<String> documented = switch (request.getKey()) {
                case "CompletionRequest" -> documented("both", "completions", "no effect", "refused");
                case "ChatCompletionRequest" -> documented("both", "chat", "no effect", "refused");
                case "DetokenizeRequest" -> documented("`/detokenize`");
                default -> documented("`/tokenize`", "refused");
            };
            ObjectNode body = (ObjectNode)
                    ServerFixture.MAPPER.readTree(request.getValue().getLast());
            for (String name : fields(request.getKey())) {
                assertThat(documented)
                        .as("docs/serving.md about %s", request.getKey())
                        .contains(name);
                assertThat(refusedAs(request.getValue().getFirst(), body, name))
                        .as("%s.%s", request.getKey(), name)
                        .contains(name);
            }
        }
        ObjectNode stream =
                ServerFixture.MAPPER.createObjectNode().put("prompt", "a").put("stream", true);
        for (String name : fields("StreamOptions")) {
            assertThat(documented("both")).contains(name);
            stream.putObject("stream_options").put(name, 7);
            assertThat(fixture.post("/v1/completions", stream.toString()).body())
                    .contains("\"param\":\"stream_options." + name + "\"");
        }
        Set<String> parameters = documented("both", "completions", "no effect", "refused", "unknown");
        assertThat(parameters).containsAll(fields("SamplingParams"));
    }

    @Test
    void fieldsWithoutEffectChangeNoAnswer() throws Exception {
        fixture.engine.answers("x");
        JsonNode ignored = ServerFixture.MAPPER.readTree(WITHOUT_EFFECT);
        assertThat(new TreeSet<>(ignored.propertyNames())).isEqualTo(documented("no effect"));
        for (String request : List.of("CompletionRequest", "ChatCompletionRequest")) {
            List<String> pathAndBody = Objects.requireNonNull(REQUESTS.get(request));
            String path = pathAndBody.getFirst();
            ObjectNode body =
                    ((ObjectNode) ServerFixture.MAPPER.readTree(pathAndBody.getLast())).put("request_id", "r");
            HttpResponse<String> plain = fixture.post(path, body.toString());
            assertThat(plain.statusCode()).isEqualTo(200);
            HttpResponse<String> same =
                    fixture.post(path, body.setAll((ObjectNode) ignored).toString());
            assertThat(ServerFixture.json(same).get("choices"))
                    .isEqualTo(ServerFixture.json(plain).get("choices"));
        }
    }

    @Test
    void valuesThatAskForNothingAreAccepted() throws Exception {
        fixture.engine.answers("x");
        for (String field : List.of(
                "\"thinking_token_budget\":-1",
                "\"logprob_token_ids\":[]",
                "\"mm_processor_kwargs\":{}",
                "\"return_prompt_text\":false",
                "\"use_beam_search\":false",
                "\"response_format\":{\"type\":\"text\"}",
                "\"an_unknown_field\":{\"a\":1}")) {
            assertThat(fixture.post("/v1/completions", "{\"prompt\":\"a\"," + field + "}")
                            .statusCode())
                    .as(field)
                    .isEqualTo(200);
        }
    }

    /** With {@code BATON_VLLM}, as of the other tests with a real vLLM: a field that a new version has is noticed. */
    @Test
    @Tag("peers")
    void theListIsThatOfTheInstalledVllm() throws Exception {
        String environment = System.getenv("BATON_VLLM");
        assumeTrue(environment != null, "BATON_VLLM is not set: it names a Python environment with vLLM");
        Process python = new ProcessBuilder(
                        Path.of(environment, "bin", "python").toString(), "-c", resource("vllm_request_fields.py"))
                .redirectError(ProcessBuilder.Redirect.DISCARD)
                .start();
        try {
            String found = new String(python.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
            assertThat(python.waitFor(1, TimeUnit.MINUTES)).isTrue();
            assertThat(ServerFixture.MAPPER.readTree(found.substring(found.indexOf('{'))))
                    .isEqualTo(ServerFixture.MAPPER.readTree(resource(FIELDS)));
        } finally {
            python.destroyForcibly();
        }
    }
}
