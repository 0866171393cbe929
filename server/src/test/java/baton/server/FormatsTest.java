package baton.server;

import static org.assertj.core.api.Assertions.assertThat;

import baton.grammar.OutputFormat;
import baton.grammar.schema.SchemaOptions;
import java.net.http.HttpResponse;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class FormatsTest {
    private static final Map<String, String> PROMPTS = Map.of(
            "/v1/completions", "\"prompt\":\"a\"",
            "/v1/chat/completions", "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]");

    @AutoClose
    private final ServerFixture fixture = new ServerFixture();

    private void check(String fields, Optional<OutputFormat> format) throws Exception {
        fixture.engine.answers("x");
        for (Map.Entry<String, String> prompt : PROMPTS.entrySet()) {
            HttpResponse<String> response =
                    fixture.post(prompt.getKey(), "{" + prompt.getValue() + "," + fields.replace('\'', '"') + "}");
            assertThat(response.statusCode()).as(response.body()).isEqualTo(200);
            assertThat(fixture.engine.nextSubmitted().request.sampling().format())
                    .as(fields)
                    .isEqualTo(format);
        }
    }

    private void check(String fields, OutputFormat format) throws Exception {
        check(fields, Optional.of(format));
    }

    @Test
    void responseFormats() throws Exception {
        check("'response_format':{'type':'text'}", Optional.empty());
        check("'response_format':{'type':'json_object'}", new OutputFormat.JsonObject(SchemaOptions.DEFAULT));
        check(
                "'response_format':{'type':'json_schema','json_schema':{'name':'x','strict':true,'schema':{'type':"
                        + " 'integer'}}}",
                new OutputFormat.JsonSchema("{\"type\":\"integer\"}", SchemaOptions.DEFAULT));
        String tag = "{'type':'structural_tag','format':{'type':'any_text'}}";
        check("'response_format':" + tag, new OutputFormat.StructuralTag(tag.replace('\'', '"')));
    }

    @Test
    void structuredOutputs() throws Exception {
        check(
                "'structured_outputs':{'json':{'const':1},'any_property_order':true,'disable_any_whitespace':true,"
                        + "'disable_additional_properties':true,'whitespace_pattern':' ?'}",
                new OutputFormat.JsonSchema("{\"const\":1}", new SchemaOptions(true, true, Optional.of(" ?"), true)));
        check("'structured_outputs':{'json':'{}'}", new OutputFormat.JsonSchema("{}", SchemaOptions.DEFAULT));
        check("'structured_outputs':{'json_object':true}", new OutputFormat.JsonObject(SchemaOptions.DEFAULT));
        check("'structured_outputs':{'regex':'[a-c]+'}", new OutputFormat.Regex("[a-c]+"));
        check("'structured_outputs':{'regex':''}", new OutputFormat.Regex(""));
        check("'structured_outputs':{'choice':['a','b c']}", new OutputFormat.Choices(List.of("a", "b c")));
        check("'structured_outputs':{'grammar':'start: /a/'}", new OutputFormat.GrammarText("start: /a/"));
        check(
                "'structured_outputs':{'structural_tag':'{\\'format\\':{\\'type\\':\\'any_text\\'}}'}",
                new OutputFormat.StructuralTag("{\"format\":{\"type\":\"any_text\"}}"));
    }

    @Test
    void guidedFieldsAreThoseOfStructuredOutputs() throws Exception {
        check(
                "'guided_json':{'const':1},'guided_whitespace_pattern':' ?','guided_decoding_backend':'xgrammar'",
                new OutputFormat.JsonSchema(
                        "{\"const\":1}", new SchemaOptions(false, false, Optional.of(" ?"), false)));
        check("'guided_regex':'a'", new OutputFormat.Regex("a"));
        check("'guided_choice':['a']", new OutputFormat.Choices(List.of("a")));
        check("'guided_grammar':'root ::= \\'a\\''", new OutputFormat.GrammarText("root ::= \"a\""));
        check("'guided_json':null,'guided_choice':[],'guided_regex':''", Optional.empty());
    }

    @ParameterizedTest
    @CsvSource(delimiter = '|', quoteCharacter = '`', textBlock = """
            "response_format":{"type":"xml"}                       | response_format.type | unsupported value 'xml'; allowed: text, json_object, json_schema, structural_tag
            "response_format":{"type":"json_schema"}               | response_format.json_schema | is missing, must be an object with a schema
            "response_format":{"type":"json_schema","json_schema":{"name":"x"}} | response_format.json_schema.schema | is missing, must be a JSON Schema
            "response_format":{"type":"json_schema","json_schema":{"schema":{"properties":{"a":{"pattern":"("}}}}} | response_format.json_schema.schema.properties.a.pattern | at character 1: the group is not closed
            "response_format":{"type":"json_schema","json_schema":{"schema":[]}} | response_format.json_schema.schema | must be a JSON Schema, as an object or a string of JSON, is []
            "response_format":{"type":"json_schema","json_schema":{"schema":{},"strict":5}} | response_format.json_schema.strict | must be true or false, is 5
            "response_format":{"type":"structural_tag","format":{"type":"x"}} | response_format.format.type | unsupported value 'x'
            "structured_outputs":{}                                | structured_outputs | has no format, must have one of json, json_object, regex, choice, grammar, structural_tag
            "structured_outputs":{"json_object":false}             | structured_outputs | has no format, must have one of
            "structured_outputs":{"json":7}                        | structured_outputs.json | must be a JSON Schema, as an object or a string of JSON, is 7
            "structured_outputs":{"json":"{"}                      | structured_outputs.json | not valid JSON
            "structured_outputs":{"json":{"type":"x"}}             | structured_outputs.json.type |
            "structured_outputs":{"json":{},"whitespace_pattern":"("} | structured_outputs.whitespace_pattern |
            "structured_outputs":{"regex":"(?<=a)"}                | structured_outputs.regex | at character 1: a lookbehind '(?<=' is not supported
            "structured_outputs":{"regex":5}                       | structured_outputs.regex | must be a string, is 5
            "structured_outputs":{"choice":[]}                     | structured_outputs.choice | must be an array of strings that is not empty, is []
            "structured_outputs":{"choice":["a",5]}                | structured_outputs.choice[1] | must be a string, is 5
            "structured_outputs":{"grammar":"root ::= a"}          | structured_outputs.grammar | line 1, column 10: 'a' is not defined
            "structured_outputs":{"structural_tag":{"format":{"type":"star"}}} | structured_outputs.structural_tag.format.content | is missing
            "structured_outputs":{"json":{},"regex":"a"}           | structured_outputs.regex | is a second format beside structured_outputs.json, a request may have one
            "structured_outputs":{"json":{}},"response_format":{"type":"json_object"} | structured_outputs.json | is a second format beside response_format.type, a request may have one
            "guided_regex":"(","stream":true                       | guided_regex | at character 1: the group is not closed
            "guided_choice":"a"                                    | guided_choice | must be an array of strings that is not empty, is "a"
            "guided_decoding_backend":7                            | guided_decoding_backend | must be a string, is 7
            """)
    void errorsNameTheField(String fields, String param, String message) throws Exception {
        fixture.engine.answers("x");
        for (Map.Entry<String, String> prompt : PROMPTS.entrySet()) {
            HttpResponse<String> response = fixture.post(prompt.getKey(), "{" + prompt.getValue() + "," + fields + "}");
            assertThat(response.statusCode()).as(fields).isEqualTo(400);
            assertThat(ServerFixture.json(response).at("/error/param").asString())
                    .isEqualTo(param);
            assertThat(ServerFixture.json(response).at("/error/message").asString())
                    .startsWith(param + ": " + (message == null ? "" : message));
        }
    }

    @Test
    void tokenizingTakesNoFormat() throws Exception {
        HttpResponse<String> response =
                fixture.post("/tokenize", "{\"prompt\":\"a\",\"response_format\":{\"type\":\"json_object\"}}");
        assertThat(response.statusCode()).isEqualTo(200);
    }
}
