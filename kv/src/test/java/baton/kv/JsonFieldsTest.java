package baton.kv;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.nio.file.Path;
import java.util.List;
import org.junit.jupiter.api.Test;
import tools.jackson.databind.node.ObjectNode;

class JsonFieldsTest {
    @Test
    void readsValuesOfEachType() {
        JsonFields fields = JsonFields.parse("p", """
                {"s": "x", "i": 9007199254740991, "e": "1e3", "n": "2.5", "t": "true", "f": false,
                 "o": {"a": {"b": 1}}, "l": [{"v": 1}, {"v": 2}], "nothing": null}""");

        assertThat(fields.string("s")).contains("x");
        assertThat(fields.integer("i")).contains(9007199254740991L);
        assertThat(fields.integer("e")).contains(1000L);
        assertThat(fields.number("n")).contains(2.5);
        assertThat(fields.bool("t")).contains(true);
        assertThat(fields.bool("f")).contains(false);
        assertThat(fields.objects("l").orElseThrow())
                .extracting(o -> o.integer("v").orElseThrow())
                .containsExactly(1L, 2L);
        assertThat(fields.string("nothing")).isEmpty();
        assertThat(fields.string("absent")).isEmpty();
        assertThat(fields.names()).contains("nothing", "s");
    }

    @Test
    void aTextThatIsNoPathIsAnErrorOfItsField() {
        JsonFields fields = JsonFields.parse("p", "{\"good\": \"/a/b\", \"bad\": \"/a\\u0000b\"}");

        assertThat(fields.path("good")).contains(Path.of("/a/b"));
        assertThat(fields.path("absent")).isEmpty();
        assertThatThrownBy(() -> fields.path("bad"))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("bad: is not a path: ");
    }

    @Test
    void malformedJsonIsReportedWithoutTheParsersInnards() {
        assertThatThrownBy(() -> JsonFields.parse("p", "{\"a\": "))
                .isInstanceOf(ConfigException.class)
                .hasMessageStartingWith("p: not valid JSON: ")
                .hasMessageNotContaining("Source");
    }

    @Test
    void aKeyThatAnObjectHasTwiceIsNamed() {
        for (String json :
                List.of("{\"a\": 1, \"a\": 1}", "{\"b\": [{\"a\": 1, \"c\": 2, \"d\": 3, \"\\u0061\": 4}]}")) {
            assertThatThrownBy(() -> JsonFields.parse("p", json))
                    .isInstanceOf(ConfigException.class)
                    .hasMessage("p: not valid JSON: Duplicate Object property \"a\"");
        }
    }

    @Test
    void errorsNameTheWholePath() {
        JsonFields fields =
                JsonFields.parse("p", "{\"o\": {\"a\": {\"b\": \"x\"}}, \"l\": [1], \"big\": 1e300, \"nan\": \"NaN\"}");
        JsonFields inner = fields.object("o").orElseThrow().object("a").orElseThrow();

        assertMessage(() -> inner.integer("b"), "p.o.a.b: must be a whole number, is \"x\"");
        assertMessage(() -> inner.number("b"), "p.o.a.b: must be a number, is \"x\"");
        assertMessage(() -> inner.object("b"), "p.o.a.b: must be an object, is \"x\"");
        assertMessage(() -> inner.objects("b"), "p.o.a.b: must be an array of objects, is \"x\"");
        assertMessage(() -> inner.bool("b"), "p.o.a.b: must be true or false, is \"x\"");
        assertMessage(() -> fields.objects("l"), "p.l[0]: must be an object, is 1");
        assertMessage(() -> fields.string("l"), "p.l: must be a string, is [1]");
        assertMessage(() -> fields.integer("big"), "p.big: must be a whole number, is 1.0E300");
        JsonFields many = JsonFields.parse("p", "{\"digits\": " + "9".repeat(400) + ", \"power\": 1e999}");
        for (String name : List.of("digits", "power")) {
            assertThatThrownBy(() -> many.integer(name))
                    .isInstanceOf(ConfigException.class)
                    .hasMessageStartingWith("p." + name + ": must be a whole number");
            assertThatThrownBy(() -> many.number(name))
                    .isInstanceOf(ConfigException.class)
                    .hasMessageStartingWith("p." + name + ": must be a number");
        }
        assertMessage(() -> fields.number("nan"), "p.nan: must be a number, is \"NaN\"");
        assertMessage(
                () -> JsonFields.parse("p", "{\"s\": \"" + "y".repeat(200) + "\"}")
                        .bool("s"),
                "p.s: must be true or false, is \"" + "y".repeat(76) + "...");
        assertMessage(() -> JsonFields.parse("p", "3"), "p: must be a JSON object, is 3");
        assertThatThrownBy(() -> JsonFields.parse("p", "{\"a\": }")).hasMessageStartingWith("p: not valid JSON: ");
        assertThatThrownBy(() -> JsonFields.parse("p", "{} {}")).hasMessageStartingWith("p: not valid JSON: ");
    }

    @Test
    void neverChanges() {
        ObjectNode source = JsonFields.parse("", "{\"a\": {\"b\": 1}}").toJson();
        JsonFields fields = JsonFields.of("", source);
        source.removeAll();
        fields.toJson().removeAll();

        assertThat(fields.object("a").orElseThrow().integer("b")).contains(1L);
        assertThat(fields.toString()).isEqualTo("{\"a\":{\"b\":1}}");
    }

    private static void assertMessage(Runnable action, String message) {
        assertThatThrownBy(action::run).isInstanceOf(ConfigException.class).hasMessage(message);
    }
}
