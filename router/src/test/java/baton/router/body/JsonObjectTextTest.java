package baton.router.body;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ObjectNode;

class JsonObjectTextTest {
    private static final JsonMapper MAPPER = JsonMapper.builder().build();

    private static JsonObjectText parse(String text) {
        return JsonObjectText.parse("body", text.getBytes(StandardCharsets.UTF_8));
    }

    private static String value(JsonObjectText object, String name) {
        return object.value(name)
                .map(bytes -> new String(bytes, StandardCharsets.UTF_8))
                .orElse("absent");
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "{}",
                " { } ",
                "{\"a\":1}",
                "{\"a\" : \"x,  \" , \"b\":[1 , 2 ] ,\r\n\t\"c\":{ \"d\" : null } }",
                "{\"é\\\"\\u00e9\":\"日本 \\\\\",\"n\":-1.50e+3,\"t\":true,\"\":\"empty name\"}"
            })
    void fieldsKeepTheirText(String text) {
        JsonObjectText object = parse(text);
        assertThat(object.text().toString()).isEqualTo(text);
        JsonNode tree = MAPPER.readTree(text);
        for (String name : tree.propertyNames()) {
            assertThat(text).contains(value(object, name));
            assertThat(MAPPER.readTree(value(object, name))).isEqualTo(tree.get(name));
        }
        assertThat(MAPPER.readTree(object.edit().build().getBytes())).isEqualTo(tree);
        assertThat(MAPPER.readTree(object.edit().set("new", "[1]").build().getBytes()))
                .isEqualTo(((ObjectNode) tree).set("new", MAPPER.readTree("[1]")));
    }

    @Test
    void anEditedObjectHasItsFields() {
        JsonObjectText edited = parse("{ \"é\": [1] ,\"b\":\"x\",\"c\":null,\"d\" : 4}")
                .edit()
                .set("b", "22")
                .set("new", "[ \"t\"]")
                .drop("d")
                .object();
        JsonObjectText again = parse(edited.text().toString());
        for (String name : List.of("é", "b", "c", "d", "new")) {
            assertThat(value(edited, name)).isEqualTo(value(again, name));
            assertThat(edited.has(name)).isEqualTo(again.has(name));
        }
        assertThat(value(edited.edit().set("b", "3").object(), "new")).isEqualTo("[ \"t\"]");
        assertThat(parse("{\"a\":1}").edit().drop("a").object().text().toString())
                .isEqualTo("{}");
    }

    @Test
    void textsAreDistinguishedFromTokenIds() {
        JsonObjectText object = parse("{\"a\":\"x\",\"b\":[ \n\"x\"],\"c\":[1],\"d\":[],\"e\":null,\"f\":[[\"x\"]]}");
        for (String name : List.of("a", "b", "c", "d", "e", "f", "g")) {
            assertThat(object.isText(name)).as(name).isEqualTo(name.equals("a") || name.equals("b"));
        }
    }

    @Test
    void editsLeaveOtherFieldsUnchanged() {
        JsonObjectText object = parse("{ \"a\": 1e400, \"b\" : 2 ,\"c\":98765432109876543210 }");
        assertThat(object.edit()
                        .set("b", "{}")
                        .set("z", "null")
                        .setIfPresent("y", "1")
                        .drop("a", "x")
                        .build()
                        .toString())
                .isEqualTo("{\"b\" : {},\"c\":98765432109876543210,\"z\":null}");
    }

    @Test
    void aNullFieldHasNoValueButIsPresent() {
        JsonObjectText object = parse("{\"n\":null}");
        assertThat(object.value("n")).isEmpty();
        assertThat(object.edit().setIfPresent("n", "1").build().toString()).isEqualTo("{\"n\":1}");
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            value = {
                "''|body: is empty",
                "[1]|body: must be a JSON object",
                "null|body: must be a JSON object",
                "{\"a\":1|body: not valid JSON",
                "{\"a\":01}|body: not valid JSON",
                "{\"a\":\"x}|body: not valid JSON",
                "{'a':1}|body: not valid JSON",
                "{\"a\":1}x|body: not valid JSON",
                "{\"a\":1}{}|body: has text after the JSON object",
                "{\"a\":1,\"\\u0061\":1}|body: not valid JSON: Duplicate Object property \"a\"",
                "{\"a\":[{\"x\":1,\"y\":2,\"z\":3,\"y\":2}]}|body: not valid JSON: Duplicate Object property \"y\""
            })
    void textThatIsNotAJsonObjectIsRefused(String text, String message) {
        assertThatThrownBy(() -> parse(text.replace("''", "")))
                .isInstanceOf(ConfigException.class)
                .hasMessageStartingWith(message);
    }

    @Test
    void encodingsOtherThanUtf8AreRefused() {
        assertThatThrownBy(() -> JsonObjectText.parse("body", "{\"a\":1}".getBytes(StandardCharsets.UTF_16LE)))
                .isInstanceOf(ConfigException.class)
                .hasMessage("body: must be UTF-8");
    }

    @Test
    void nestingDepthIsLimited() {
        assertThatThrownBy(() -> parse("{\"a\":" + "[".repeat(100_000) + "]".repeat(100_000) + "}"))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("nesting depth");
    }

    @Test
    void randomlyDamagedTextIsRefusedOrRead() {
        String text = "{\"prompt\":\"日本\\n\",\"n\":[1,2.5,{\"a\":null}],\"t\":true , \"s\" : \"\"}";
        byte[] whole = text.getBytes(StandardCharsets.UTF_8);
        for (int seed = 0; seed < 5_000; seed++) {
            Random random = new Random(seed);
            byte[] damaged = whole.clone();
            for (int i = random.nextInt(3); i >= 0; i--) {
                damaged[random.nextInt(damaged.length)] = (byte) random.nextInt(256);
            }
            try {
                JsonObjectText object = JsonObjectText.parse("body", damaged);
                assertThat(MAPPER.readTree(object.edit().build().getBytes()))
                        .as("seed %d", seed)
                        .isEqualTo(MAPPER.readTree(damaged));
            } catch (ConfigException e) {
                assertThat(e.field()).as("seed %d", seed).isEqualTo("body");
            }
        }
    }
}
