package baton.engine.text;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/** The variables of a template; each expectation is vLLM 0.32's. */
class ConversationTest {
    private static final JsonMapper JSON = JsonMapper.builder().build();

    private static List<JsonNode> messages(String... json) {
        return JSON.readTree("[" + String.join(",", json) + "]").valueStream().toList();
    }

    private static String read(boolean inParts, boolean knowsDeveloper, String... json) {
        List<String> read = Conversation.read(messages(json), inParts, knowsDeveloper, false).stream()
                .map(JsonNode::toString)
                .toList();
        return String.join(",", read);
    }

    @ParameterizedTest
    @CsvSource(delimiter = '|', quoteCharacter = '`', textBlock = """
            {"role":"user","content":"x"}                                         | {"role":"user","content":"x"}
            {"role":"user"}                                                       | {"role":"user","content":""}
            {"role":"user","content":[]}                                          | {"role":"user","content":""}
            {"content":"x","role":"user","foo":1,"task":"t","name":"n"}           | {"role":"user","content":"x","name":"n","task":"t"}
            {"role":"user","content":"x","name":null,"tool_call_id":"1","reasoning":"r","tool_calls":[]} | {"role":"user","content":"x"}
            {"role":"user","content":["a",{"type":"text","text":""},{"type":"text","text":"b"}]} | {"role":"user","content":"a\\nb"}
            {"role":"user","content":[{"type":"input_text","text":"a"},{"type":"output_text","text":"b"}]} | {"role":"user","content":"a\\nb"}
            {"role":"assistant","content":[{"type":"refusal","refusal":"no"},{"type":"thinking","thinking":"t"}]} | {"role":"assistant","content":"no\\nt"}
            {"role":"assistant","content":[{"type":"refusal","refusal":null},{"type":"text","text":"a"}]} | {"role":"assistant","content":"a"}
            {"role":"assistant","content":null}                                   | {"role":"assistant","content":""}
            {"role":"assistant"}                                                  | {"role":"assistant","content":""}
            {"role":"assistant","content":"x","tool_calls":null}                  | {"role":"assistant","content":"x"}
            {"role":"assistant","content":null,"tool_calls":[]}                   | {"role":"assistant","content":""}
            {"role":"assistant","content":null,"refusal":"no","function_call":{"name":"f","arguments":""}} | {"role":"assistant","content":""}
            {"role":"assistant","content":"x","reasoning":"r"}                    | {"role":"assistant","content":"x","reasoning":"r","reasoning_content":"r"}
            {"role":"assistant","content":"x","reasoning_content":"r"}            | {"role":"assistant","content":"x","reasoning":"r","reasoning_content":"r"}
            {"role":"assistant","content":"x","reasoning_content":"c","reasoning":"r"} | {"role":"assistant","content":"x","reasoning":"r","reasoning_content":"r"}
            {"role":"assistant","content":"x","reasoning_content":"c","reasoning":null} | {"role":"assistant","content":"x","reasoning":"c","reasoning_content":"c"}
            {"role":"tool","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}],"tool_call_id":"1"} | {"role":"tool","content":"a\\nb","tool_call_id":"1"}
            {"role":"tool","content":[{"type":"text"},{"type":"text","text":"b"}],"tool_call_id":null} | {"role":"tool","content":"b","tool_call_id":null}
            {"role":"tool","content":[{"type":"tool_reference","name":"f"}]}      | {"role":"tool","content":"f"}
            {"role":"ipython","content":"x"}                                      | {"role":"ipython","content":"x"}
            {"role":"function","content":null,"name":"f"}                         | {"role":"function","content":"","name":"f"}
            {"role":"system","content":"x-anthropic-billing-header: v=1\\nx"}     | {"role":"system","content":"x"}
            {"role":"system","content":"x-anthropic-billing-header: v=1"}         | {"role":"system","content":""}
            {"role":"user","content":"x-anthropic-billing-header: v=1"}           | {"role":"user","content":"x-anthropic-billing-header: v=1"}
            """)
    void contentsAsStrings(String given, String read) {
        assertThat(read(false, false, given)).isEqualTo(read);
    }

    @ParameterizedTest
    @CsvSource(delimiter = '|', quoteCharacter = '`', textBlock = """
            {"role":"user","content":"x"}                                         | {"role":"user","content":[{"type":"text","text":"x"}]}
            {"role":"user","content":""}                                          | {"role":"user","content":[{"type":"text","text":""}]}
            {"role":"assistant","content":null}                                   | {"role":"assistant","content":[]}
            {"role":"user","content":["a",{"text":"b","type":"text","cache_control":{"a":1},"closed":true}]} | {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b","cache_control":{"a":1}}]}
            {"role":"assistant","content":[{"type":"refusal","refusal":"no"}]}    | {"role":"assistant","content":[{"type":"text","text":"no"}]}
            {"role":"tool","content":[{"type":"text","text":"a"},{"type":"text","text":""},{"type":"text","text":"b"}]} | {"role":"tool","content":"a\\n\\nb"}
            {"role":"tool","content":[{"type":"text","text":"a"},{"type":"tool_reference","name":"f"}]} | {"role":"tool","content":[{"type":"text","text":"a"},{"type":"tool_reference","name":"f"}]}
            """)
    void contentsInParts(String given, String read) {
        assertThat(read(true, false, given)).isEqualTo(read);
    }

    @ParameterizedTest
    @CsvSource(delimiter = '|', quoteCharacter = '`', textBlock = """
            {"role":"assistant","content":"x","thinking":"t"}                     | t
            {"role":"assistant","content":"x","reasoning":"r"}                    | r
            {"role":"assistant","content":"x","reasoning_content":"r","thinking":"t"} | t
            {"role":"assistant","content":"x"}                                    | none
            {"role":"user","content":"x","thinking":"t"}                          | none
            {"role":"assistant","thinking":"t","tool_calls":[{"function":{"name":"f"}}]} | t
            {"role":"assistant","content":"x","reasoning":"r","tool_calls":[{"function":{"name":"f"}}]} | none
            """)
    void thinkingReachesTemplatesThatReadIt(String given, String thinking) {
        JsonNode read = Conversation.read(messages(given), false, false, true).getFirst();
        assertThat(read.path("thinking").asString("none")).isEqualTo(thinking);
        assertThat(Conversation.read(messages(given), false, false, false)
                        .getFirst()
                        .has("thinking"))
                .isFalse();
    }

    @ParameterizedTest
    @CsvSource(delimiter = '|', quoteCharacter = '`', textBlock = """
            "{\\"b\\": 1, \\"a\\": [2.50, null]}" | {"b":1,"a":[2.5,null]}
            " {\\"a\\": 1} "                      | {"a":1}
            {"a":1}                               | {"a":1}
            ""                                    | {}
            " "                                   | {}
            "{"                                   | {}
            "{\\"a\\": 1} x"                      | {}
            "null"                                | {}
            "[1]"                                 | {}
            "5"                                   | {}
            "\\"x\\""                             | {}
            null                                  | {}
            [1]                                   | {}
            5                                     | {}
            """)
    void argumentsAreAnObject(String given, String read) {
        assertThat(read(
                        false,
                        false,
                        "{\"role\":\"assistant\",\"tool_calls\":[{\"type\":\"function\",\"more\":1,\"function\":{\"name\":\"f\",\"also\":2,\"arguments\":"
                                + given + "},\"id\":\"1\"}]}"))
                .isEqualTo(
                        "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"1\",\"function\":{\"arguments\":"
                                + read + ",\"name\":\"f\",\"also\":2},\"type\":\"function\",\"more\":1}]}");
    }

    private static final String SYSTEM = "{\"role\":\"system\",\"content\":\"s\"}";
    private static final String EMPTY = "{\"role\":\"system\",\"content\":\"\"}";
    private static final String DEVELOPER = "{\"role\":\"developer\",\"content\":[\"d\",\"e\"],\"name\":\"n\"}";
    private static final String USER = "{\"role\":\"user\",\"content\":\"u\"}";

    @Test
    void developersAreTheSystemOfATemplateThatDoesNotMentionThem() {
        assertThat(read(false, false, DEVELOPER, USER))
                .isEqualTo("{\"role\":\"system\",\"content\":\"d\\ne\",\"name\":\"n\"}," + USER);
        assertThat(read(false, false, SYSTEM, EMPTY, USER, DEVELOPER))
                .as("all system messages become one")
                .isEqualTo("{\"role\":\"system\",\"content\":\"s\\n\\nd\\ne\"}," + USER);
        assertThat(read(true, false, USER, DEVELOPER))
                .as("which is a string in parts too")
                .isEqualTo(
                        "{\"role\":\"system\",\"content\":\"d\\ne\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"u\"}]}");
        assertThat(read(false, false, USER, SYSTEM, EMPTY))
                .as("without a developer they stay")
                .isEqualTo(USER + "," + SYSTEM + "," + EMPTY);
    }

    @Test
    void aTemplateThatMentionsDevelopersGetsTheirTools() {
        assertThat(read(false, true, USER, DEVELOPER))
                .isEqualTo(USER + ",{\"role\":\"developer\",\"content\":\"d\\ne\",\"name\":\"n\",\"tools\":null}");
        assertThat(
                        read(
                                false,
                                true,
                                "{\"role\":\"developer\",\"content\":\"d\",\"tools\":[{\"type\":\"function\",\"function\":{\"parameters\":{},\"name\":\"f\"}}]}"))
                .isEqualTo(
                        "{\"role\":\"developer\",\"content\":\"d\",\"tools\":[{\"function\":{\"name\":\"f\",\"parameters\":{}},\"type\":\"function\"}]}");
    }

    @ParameterizedTest
    @CsvSource(delimiter = '|', quoteCharacter = '`', textBlock = """
            "hi"                                                                | messages[0]: must be an object, is "hi"
            {"content":"x"}                                                     | messages[0].role: is missing, must be a string such as user
            {"role":5}                                                          | messages[0].role: must be a string, is 5
            {"role":"user","content":5}                                         | messages[0].content: must be a string or an array of parts, is 5
            {"role":"user","content":null}                                      | messages[0].content: is null, must be a string or an array of parts in this role
            {"role":"tool","content":null}                                      | messages[0].content: is null, must be a string or an array of parts in this role
            {"role":"user","content":["x",["y"]]}                               | messages[0].content[1]: must be an object or a string, is ["y"]
            {"role":"user","content":[{"text":"x"}]}                            | messages[0].content[0].type: is missing, must be text
            {"role":"user","content":[{"type":"text"}]}                         | messages[0].content[0].text: is missing, must be a string
            {"role":"user","content":[{"type":"text","text":5}]}                | messages[0].content[0].text: must be a string, is 5
            {"role":"tool","content":[{"type":"thinking"}]}                     | messages[0].content[0].thinking: is missing, must be a string
            {"role":"user","content":[{"type":"image_url"}]}                    | messages[0].content[0].type: unsupported value 'image_url'; allowed: text, input_text, output_text, refusal, thinking, tool_reference
            {"role":"user","content":"x","name":5}                              | messages[0].name: must be a string, is 5
            {"role":"assistant","tool_calls":"x"}                               | messages[0].tool_calls: must be an array of objects, is "x"
            {"role":"assistant","tool_calls":[{"type":"custom","custom":{}}]}   | messages[0].tool_calls[0].type: unsupported value 'custom'; allowed: function
            {"role":"assistant","tool_calls":[{"type":"function"}]}             | messages[0].tool_calls[0].function: is missing, must be an object
            {"role":"assistant","reasoning":5}                                  | messages[0].reasoning: must be a string, is 5
            """)
    void malformedMessages(String given, String message) {
        assertThatThrownBy(() -> read(false, false, given))
                .isInstanceOf(ConfigException.class)
                .hasMessage(message);
    }
}
