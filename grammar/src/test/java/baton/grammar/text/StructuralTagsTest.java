package baton.grammar.text;

import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.grammar.rule.GrammarSource;
import baton.kv.ConfigException;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class StructuralTagsTest {
    @Test
    void formatsOfText() {
        check("{'type': 'const_string', 'value': 'a\"b'}", List.of("a\"b"), List.of("", "ab"));
        check("{'type': 'regex', 'pattern': '[0-9]{2}'}", List.of("12"), List.of("1", "123"));
        check("{'type': 'grammar', 'grammar': 'root ::= x+\\nx ::= \"a\" | \"b\"'}", List.of("aba"), List.of("", "c"));
        check("{'type': 'any_text', 'excludes': ['<x>', 'yy']}", List.of("", "a<x", "y\n"), List.of("a<x>b", "ayyb"));
        check("{'type': 'any_text', 'max_chars': 2}", List.of("", "éé"), List.of("abc"));
    }

    @Test
    void formatsOfFormats() {
        String a = "{'type': 'const_string', 'value': 'a'}";
        String b = "{'type': 'regex', 'pattern': 'b|c'}";
        check("{'type': 'sequence', 'elements': [%s, %s]}".formatted(a, b), List.of("ab", "ac"), List.of("a", "abc"));
        check("{'type': 'or', 'elements': [%s, %s]}".formatted(a, b), List.of("a", "c"), List.of("", "ab"));
        check("{'type': 'optional', 'content': %s}".formatted(a), List.of("", "a"), List.of("aa"));
        check("{'type': 'star', 'content': %s}".formatted(b), List.of("", "bcb"), List.of("a"));
        check("{'type': 'plus', 'content': %s}".formatted(b), List.of("bcb"), List.of(""));
        check(
                "{'type': 'repeat', 'min': 1, 'max': 2, 'content': %s}".formatted(a),
                List.of("a", "aa"),
                List.of("", "aaa"));
        check(
                "{'type': 'repeat', 'min': 2, 'max': -1, 'content': %s}".formatted(a),
                List.of("aa", "aaaa"),
                List.of("a"));
        // Both grammars have a rule of the same name.
        check(
                "{'type': 'sequence', 'elements': [{'type': 'grammar', 'grammar': 'root ::= x\\nx ::= \"a\"'},"
                        + " {'type': 'grammar', 'grammar': 'root ::= x\\nx ::= \"b\"'}]}",
                List.of("ab"),
                List.of("aa", "ba", "bb"));
    }

    @Test
    void tags() {
        String any = "{'type': 'any_text'}";
        check(
                "{'type': 'tag', 'begin': '<t>', 'content': %s, 'end': '</t>'}".formatted(any),
                List.of("<t></t>", "<t>a<t></t>"),
                List.of("<t>", "<t></t></t>", "<t></t>a"));
        check(
                "{'type': 'tag', 'begin': '<t>', 'content': %s, 'end': ['</t>', '|']}".formatted(any),
                List.of("<t>a</t>", "<t>a|"),
                List.of("<t>a|</t>"));
        check(
                "{'type': 'tag', 'begin': {'type': 'token', 'token': '<think>'}, 'content': {'type': 'any_tokens'},"
                        + " 'end': {'type': 'token', 'token': '</think>'}}",
                List.of("\uD800<think>\uD800x</think>\uD800</think>\uD800"),
                List.of("<think>x</think>"));
        String tags = "'tags': [{'type': 'tag', 'begin': '<f=a>', 'content': {'type': 'regex', 'pattern': 'x+'}, 'end':"
                + " '</f>'}, {'begin': '<f=b>', 'content': {'type': 'any_text'}, 'end': '</f>'}]";
        check(
                "{'type': 'triggered_tags', 'triggers': ['<f='], %s}".formatted(tags),
                List.of("", "text", "a<f=a>xx</f>b<f=b>?</f>", "a<f"),
                List.of("a<f=", "<f=c>", "<f=a></f>"));
        check(
                "{'type': 'triggered_tags', 'triggers': ['<f='], %s, 'at_least_one': true, 'stop_after_first': true}"
                        .formatted(tags),
                List.of("<f=a>x</f>"),
                List.of("", "a<f=a>x</f>", "<f=a>x</f>b"));
        check(
                "{'type': 'triggered_tags', 'triggers': ['<f='], %s, 'at_least_one': true, 'excludes': ['!']}"
                        .formatted(tags),
                List.of("<f=a>x</f>b", "<f=a>x</f><f=b>!</f>"),
                List.of("b", "<f=a>x</f>!"));
        check(
                "{'type': 'tags_with_separator', %s, 'separator': ','}".formatted(tags),
                List.of("", "<f=a>x</f>", "<f=a>x</f>,<f=b></f>"),
                List.of("<f=a>x</f>,", "<f=a>x</f><f=a>x</f>"));
        check(
                "{'type': 'token_triggered_tags', 'trigger_tokens': ['<c>'], 'tags': [{'begin': {'type': 'token', 'token':"
                        + " '<c>'}, 'content': {'type': 'regex', 'pattern': 'x'}, 'end': {'type': 'token', 'token':"
                        + " '</c>'}}]}",
                List.of("", "a\uD800<c>\uD800x\uD800</c>\uD800b"),
                List.of("a\uD800<c>\uD800y\uD800</c>\uD800", "\uD800<c>\uD800x"));
        check(
                "{'type': 'dispatch', 'rules': [['!', {'type': 'regex', 'pattern': 'x'}]], 'loop': false}",
                List.of("", "a", "a!x"),
                List.of("!", "!x!x", "!xb"));
        check(
                "{'type': 'token_dispatch', 'rules': [['<c>', {'type': 'regex', 'pattern': 'x'}]]}",
                List.of("a\uD800<c>\uD800xb"),
                List.of("\uD800<c>\uD800y"));
    }

    @Test
    void triggersEndTextWhereTheyOverlap() {
        check(
                "{'type': 'dispatch', 'rules': [['ab', {'type': 'const_string', 'value': '1'}], ['bc', {'type':"
                        + " 'const_string', 'value': '2'}]]}",
                List.of("ab1", "xbc2", "ab1bc2"),
                List.of("abc2", "abc"));
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '§',
            quoteCharacter = '`',
            value = {
                "{'type': 'x'}§structural_tag.format.type: unsupported value 'x'; allowed: const_string, json_schema,",
                "{'type': 'regex', 'pattern': '('}§structural_tag.format.pattern: at character 1: the group is not closed",
                "{'type': 'star', 'content': {'type': 'grammar', 'grammar': 'root ::= a'}}§structural_tag.format.content."
                        + "grammar: line 1, column 10: 'a' is not defined",
                "{'type': 'or', 'elements': [{'type': 'const_string'}]}§structural_tag.format.elements[0].value: is missing",
                "{'type': 'token', 'token': 5}§structural_tag.format.token: must be the text of a special token, is 5",
                "{'type': 'any_text', 'max_tokens': 5}§structural_tag.format.max_tokens: is not supported, is 5",
                "{'type': 'triggered_tags', 'triggers': ['x'], 'tags': [{'begin': 'y', 'content': {'type': 'any_text'},"
                        + " 'end': ''}]}§structural_tag.format.tags[0].begin: 'y' begins with 0 of the triggers",
                "{'type': 'json_schema', 'json_schema': {}, 'style': 'glm_xml'}§structural_tag.format.style: unsupported"
                        + " value 'glm_xml'; allowed: json",
                "{'type': 'json_schema', 'json_schema': {'properties': {'a': {'type': 'x'}}}}§structural_tag.format."
                        + "json_schema.properties.a.type",
            })
    void errorsNameTheFieldWithinTheTag(String format, String message) {
        assertThatThrownBy(() -> StructuralTags.source(json(format)))
                .isInstanceOf(ConfigException.class)
                .hasMessageStartingWith(message);
    }

    @Test
    void olderStructuresHaveTriggersToo() {
        GrammarSource source = StructuralTags.source("""
                {"type": "structural_tag", "triggers": ["<f="],
                 "structures": [{"begin": "<f=a>", "schema": {"const": 1}, "end": "</f>"}]}
                """);
        Languages.check("structures", source, List.of("text", "text<f=a>1</f>!"), List.of("text<f=a>2</f>!"));
    }

    private static void check(String format, List<String> valid, List<String> invalid) {
        Languages.check(format, StructuralTags.source(json(format)), valid, invalid);
    }

    private static String json(String format) {
        return "{\"type\": \"structural_tag\", \"format\": "
                + format.replace("\"", "\\\"").replace('\'', '"') + "}";
    }
}
