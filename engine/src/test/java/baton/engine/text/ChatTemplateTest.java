package baton.engine.text;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Clock;
import java.time.Instant;
import java.time.ZoneOffset;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.StringNode;

class ChatTemplateTest {
    private static final Path MODEL = Path.of(System.getProperty("baton.root"), "models/tiny-ledger");
    private static final JsonMapper JSON = JsonMapper.builder().build();

    @TempDir
    Path dir;

    @Test
    void tinyLedgersPromptsAreItsTemplates() {
        ChatTemplate template = ChatTemplate.load(MODEL);
        assertThat(template.render(ChatRequest.of(messages("""
                        [{"role":"user","content":"Mira owns a spoon.\\n\\nWho owns the spoon?"}]
                        """))))
                .isEqualTo("<|bos|><|user|>Mira owns a spoon.\n\nWho owns the spoon?<|end|><|assistant|>");
        assertThat(template.render(ChatRequest.of(messages("""
                        [{"role":"system","content":" ledger "},{"role":"user","content":"a?"},
                         {"role":"assistant","content":"b."},{"role":"user","content":"c?"}]
                        """))))
                .isEqualTo(
                        "<|bos|><|user|>ledger<|end|><|user|>a?<|end|><|assistant|>b.<|end|><|user|>c?<|end|><|assistant|>");
    }

    /** Every golden prompt in chat form comes out of the template, given the user's part. */
    @Test
    void goldenPromptsInChatForm() {
        String before = "<|bos|><|user|>";
        String after = "<|end|><|assistant|>";
        ChatTemplate template = ChatTemplate.load(MODEL);
        List<String> prompts = JSON.readTree(MODEL.resolve("golden.json"))
                .path("prompts")
                .valueStream()
                .map(entry -> entry.path("prompt").asString())
                .filter(prompt -> prompt.startsWith(before) && prompt.endsWith(after))
                .filter(prompt -> prompt.indexOf("<|", before.length()) == prompt.length() - after.length())
                .toList();
        assertThat(prompts).hasSizeGreaterThan(10);
        for (String prompt : prompts) {
            String text = prompt.substring(before.length(), prompt.length() - after.length());
            JsonNode message = JSON.createObjectNode().put("role", "user").put("content", text);
            assertThat(template.render(ChatRequest.of(List.of(message)))).isEqualTo(prompt);
        }
    }

    @Test
    void templatesAreFoundWhereModelsPutThem() throws IOException {
        List<JsonNode> hi = messages("[{\"role\":\"user\",\"content\":\"hi\"}]");
        write("chat_template.json", "{\"chat_template\":\"json\"}");
        assertThat(ChatTemplate.load(dir).render(ChatRequest.of(hi))).isEqualTo("json");
        write("tokenizer_config.json", "{\"chat_template\":\"config\"}");
        assertThat(ChatTemplate.load(dir).render(ChatRequest.of(hi))).isEqualTo("config");
        write("chat_template.jinja", "jinja\n");
        assertThat(ChatTemplate.load(dir).render(ChatRequest.of(hi))).isEqualTo("jinja");
    }

    @Test
    void namedTemplates() throws IOException {
        write("tokenizer_config.json", """
                {"chat_template":[{"name":"default","template":"plain"},{"name":"tool_use","template":"{{ tools|length }} tools"}]}
                """);
        ChatTemplate template = ChatTemplate.load(dir);
        assertThat(template.render(request("[]", Optional.empty(), Map.of()))).isEqualTo("plain");
        assertThat(template.render(request("[]", Optional.of(messages("[{},{}]")), Map.of())))
                .isEqualTo("2 tools");
        write("tokenizer_config.json", "{\"chat_template\":[{\"name\":\"rag\",\"template\":\"\"}]}");
        assertThatThrownBy(() -> ChatTemplate.load(dir).render(request("[]", Optional.empty(), Map.of())))
                .isInstanceOf(ChatTemplateException.class)
                .hasMessageContaining("only [rag]");
    }

    @Test
    void variables() throws IOException {
        write("tokenizer_config.json", """
                {"bos_token":{"content":"<s>","lstrip":false},"eos_token":"</s>","pad_token":null,
                "chat_template":"{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}{{ tools }}{{ documents }}{{ add_generation_prompt }}{{ enable_thinking }}{{ strftime_now('%Y') }}"}
                """);
        ChatTemplate template =
                ChatTemplate.load(dir, Clock.fixed(Instant.parse("2031-01-01T00:00:00Z"), ZoneOffset.UTC));
        assertThat(template.render(
                        request("[]", Optional.empty(), Map.of("enable_thinking", StringNode.valueOf("no")))))
                .isEqualTo("<s></s>FalseNoneNoneTrueno2031");
        assertThat(template.render(request("[]", Optional.of(List.of()), Map.of("bos_token", StringNode.valueOf("B")))))
                .isEqualTo("B</s>False[]NoneTrue2031");
    }

    @Test
    void aTemplateThatReadsThinkingGetsIt() throws IOException {
        write("chat_template.jinja", "{% for message in messages %}[{{ message.thinking }}]{% endfor %}");
        assertThat(ChatTemplate.load(dir)
                        .render(request(
                                "[{\"role\":\"assistant\",\"thinking\":\"a\"},{\"role\":\"assistant\",\"reasoning\":\"b\"}]",
                                Optional.empty(),
                                Map.of())))
                .isEqualTo("[a][b]");
    }

    @Test
    void argumentsOfToolCallsBecomeObjects() throws IOException {
        write(
                "chat_template.jinja",
                "{% for c in messages[0].tool_calls %}{% for k, v in c.function.arguments|items %}{{ k }}={{ v }}{% endfor %};{% endfor %}");
        ChatTemplate template = ChatTemplate.load(dir);
        List<JsonNode> call = messages("""
                [{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\\"a\\": 1}"}},
                {"function":{"name":"g","arguments":{"b":2}}},{"function":{"name":"h","arguments":""}},
                {"function":{"name":"i","arguments":"{"}}]}]
                """);
        assertThat(template.render(ChatRequest.of(call))).isEqualTo("a=1;b=2;;;");
        assertThat(call.getFirst().at("/tool_calls/0/function/arguments").isString())
                .as("the request is left as it was")
                .isTrue();
    }

    @Test
    void contentsAreStringsUnlessTheTemplateLoopsOverThem() throws IOException {
        String parts =
                "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]}]";
        assertThat(ChatTemplate.load(MODEL).render(ChatRequest.of(messages(parts))))
                .isEqualTo("<|bos|><|user|>a\nb<|end|><|assistant|>");
        write("chat_template.jinja", "{{ 'x' + messages[0].content }}");
        assertThat(ChatTemplate.load(dir).render(ChatRequest.of(messages(parts))))
                .isEqualTo("xa\nb");
        write(
                "chat_template.jinja",
                "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}({{ p.text }}){% endfor %}{% endif %}{% endfor %}");
        assertThat(ChatTemplate.load(dir).render(ChatRequest.of(messages(parts))))
                .isEqualTo("(a)(b)");
        assertThat(ChatTemplate.load(dir).render(ChatRequest.of(messages("[{\"role\":\"user\",\"content\":\"a\"}]"))))
                .as("a string is one part")
                .isEqualTo("(a)");
    }

    @ParameterizedTest
    @CsvSource(delimiter = '|', quoteCharacter = '`', textBlock = """
            trim   | The answer                 | [q][The answer
            trim   | ` The answer `             | [q][The answer
            trim   | `x\u00a0 `                 | [q][x
            string | ` The answer `             | `[q][ The answer `
            trim   | ]                          | [q][]
            trim   | q                          | [q][q
            trim   | ``                         | [q][
            trim   | CONTINUE_FINAL_MESSAGE_TAG | [q][CONTINUE_FINAL_MESSAGE_TAG
            """)
    void continuingTheFinalMessage(String filter, String content, String prompt) throws IOException {
        write(
                "chat_template.jinja",
                "{% for m in messages %}[{{ m.content|" + filter + " }}]{% endfor %}assistant q ]");
        assertThat(continued("q", content)).isEqualTo(prompt);
    }

    @Test
    void aMessageThatCannotBeContinued() throws IOException {
        write("chat_template.jinja", "{% for m in messages %}[{{ m.content|upper }}]{% endfor %}");
        assertThatThrownBy(() -> continued("a"))
                .isInstanceOf(ChatTemplateException.class)
                .hasMessageContaining("not in the rendered prompt");
        write("chat_template.jinja", "{{ messages[0]['con' ~ 'tent'] }}");
        assertThatThrownBy(() -> continued("a"))
                .isInstanceOf(ChatTemplateException.class)
                .hasMessageContaining("does not read the field content");
        assertThatThrownBy(this::continued).isInstanceOf(ChatTemplateException.class);
        assertThatThrownBy(() -> new ChatRequest(List.of(), Optional.empty(), true, true, Map.of()))
                .isInstanceOf(ChatTemplateException.class)
                .hasMessageContaining("continue_final_message");
    }

    @Test
    void modelWithoutTemplateSaysSo() throws IOException {
        write("tokenizer_config.json", "{}");
        ChatTemplate template = ChatTemplate.load(dir);
        assertThat(template.isPresent()).isFalse();
        assertThatThrownBy(() -> template.render(request("[]", Optional.empty(), Map.of())))
                .isInstanceOf(ChatTemplateException.class)
                .hasMessageContaining("no chat template")
                .hasMessageContaining(dir.toString());
        assertThat(ChatTemplate.load(MODEL).isPresent()).isTrue();
    }

    @Test
    void errors() throws IOException {
        write("chat_template.jinja", "\n{{ raise_exception('roles must alternate') }}");
        assertThatThrownBy(() -> ChatTemplate.load(dir).render(request("[]", Optional.empty(), Map.of())))
                .isInstanceOf(ChatTemplateException.class)
                .hasMessage("chat template, line 2: roles must alternate");
        Path file = write("chat_template.jinja", "a\n{% if %}");
        assertThatThrownBy(() -> ChatTemplate.load(dir))
                .isInstanceOf(ConfigException.class)
                .hasMessageStartingWith(file + ": chat template, line 2: ");
        Path config = write("tokenizer_config.json", "{");
        assertThatThrownBy(() -> ChatTemplate.load(dir))
                .isInstanceOf(ConfigException.class)
                .hasMessageStartingWith(config + ": not valid JSON");
        Files.delete(file);
        write("tokenizer_config.json", "{\"chat_template\":3}");
        assertThatThrownBy(() -> ChatTemplate.load(dir))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("chat_template: must be a string");
    }

    /** The rendered continuation of an assistant's message. */
    private String continued(String... contents) {
        List<JsonNode> messages = Stream.of(contents)
                .<JsonNode>map(content ->
                        JSON.createObjectNode().put("role", "assistant").put("content", content))
                .toList();
        return ChatTemplate.load(dir).render(new ChatRequest(messages, Optional.empty(), false, true, Map.of()));
    }

    private static ChatRequest request(
            String messages, Optional<List<JsonNode>> tools, Map<String, JsonNode> variables) {
        return new ChatRequest(messages(messages), tools, true, false, variables);
    }

    private static List<JsonNode> messages(String json) {
        return JSON.readTree(json).valueStream().toList();
    }

    private Path write(String name, String content) throws IOException {
        return Files.writeString(dir.resolve(name), content);
    }
}
