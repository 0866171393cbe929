package baton.engine.local;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.engine.ChatMessage;
import baton.engine.FinishReason;
import baton.engine.RequestOutput.Completion;
import baton.engine.SamplingParams;
import baton.grammar.automaton.Grammar;
import baton.kv.ConfigException;
import com.fasterxml.jackson.annotation.JsonProperty;
import java.time.Duration;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Set;
import java.util.UUID;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import tools.jackson.databind.json.JsonMapper;

/** Outputs as values of Java types. */
class JsonTypeTest {
    enum Colour {
        RED,
        @JsonProperty("light green")
        GREEN
    }

    sealed interface Shape {}

    record Circle(double radius) implements Shape {}

    record Square(int side, Optional<Colour> colour) implements Shape {}

    sealed interface Nested extends Shape {}

    record Dot() implements Nested {}

    record Page<T>(T content, @JsonProperty("next_page") OptionalInt next) {}

    record Tree(short value, List<Tree> children) {}

    record Event(
            boolean flag,
            byte small,
            long big,
            Colour colour,
            Page<UUID> page,
            LocalDate date,
            LocalTime time,
            LocalDateTime dateTime,
            Instant instant,
            Duration duration,
            Optional<Shape> shape) {}

    record Lists(List<Shape> shapes, Set<Colour> colours, Map<String, Integer> counts, int[] numbers, Tree tree) {}

    private static SamplingParams sampling(int seed) {
        return SamplingParams.builder()
                .temperature(1.2)
                .seed((long) seed)
                .maxTokens(800)
                .build();
    }

    @Test
    void everyOutputIsAValueOfItsType() {
        try (LLM llm = new LLM(LLMTest.config().build())) {
            for (int seed = 0; seed < 12; seed++) {
                Shape shape = llm.generate("A shape: ", Shape.class, sampling(seed));
                assertThat(shape).isInstanceOfAny(Circle.class, Square.class, Dot.class);
            }
            List<Class<?>> kinds = IntStream.range(0, 12)
                    .<Class<?>>mapToObj(seed ->
                            llm.generate("", Shape.class, sampling(seed)).getClass())
                    .distinct()
                    .toList();
            assertThat(kinds).hasSizeGreaterThan(1);
            for (int seed = 0; seed < 5; seed++) {
                Event event = llm.chat(List.of(ChatMessage.user("An event")), Event.class, sampling(seed));
                assertThat(event.page().content()).isNotNull();
            }
        }
    }

    @Test
    void anOutputThatIsCutIsNoValue() {
        try (LLM llm = new LLM(LLMTest.config().build())) {
            assertThatThrownBy(() -> llm.generate("A shape: ", Shape.class, SamplingParams.greedy(3)))
                    .isInstanceOf(IllegalStateException.class)
                    .hasMessageStartingWith("the output ended (length) before its value was complete: {");
        }
    }

    @Test
    void listsAndMapsAreRead() {
        JsonType<Lists> type = JsonType.of(Lists.class);
        String text = """
                {"shapes": [{"type": "Square", "side": 2, "colour": "light green"}, {"type": "Circle", "radius": 1e3}],
                "colours": ["RED"], "counts": {"a": 1}, "numbers": [1, -2],
                "tree": {"value": 1, "children": [{"value": 2, "children": []}]}}""".replace("\n", " ");
        assertThat(Grammar.compile(type.format().source()).accepts(text.getBytes(UTF_8)))
                .isTrue();
        Lists lists = type.value(
                new Completion(0, text, new int[0], List.of(), FinishReason.STOP, Optional.empty(), Optional.empty()));
        assertThat(lists.shapes()).containsExactly(new Square(2, Optional.of(Colour.GREEN)), new Circle(1000));
        assertThat(lists.colours()).containsExactly(Colour.RED);
        assertThat(lists.counts()).isEqualTo(Map.of("a", 1));
        assertThat(lists.numbers()).containsExactly(1, -2);
        assertThat(lists.tree()).isEqualTo(new Tree((short) 1, List.of(new Tree((short) 2, List.of()))));
    }

    @Test
    void theSchemaHasTheComponentsInTheirOrder() {
        JsonMapper json = JsonMapper.shared();
        assertThat(json.readTree(
                        JsonType.schema(json.constructType(Square.class)).toString()))
                .isEqualTo(json.readTree("""
                        {"$ref": "#/$defs/Square", "$defs": {"Square": {"type": "object",
                          "properties": {
                            "side": {"type": "integer", "minimum": -2147483648, "maximum": 2147483647},
                            "colour": {"enum": ["RED", "light green"]}},
                          "required": ["side"], "additionalProperties": false}}}"""));
        assertThat(JsonType.schema(json.constructType(Tree.class)).at("/$defs/Tree/properties/children"))
                .isEqualTo(json.readTree("{\"type\": \"array\", \"items\": {\"$ref\": \"#/$defs/Tree\"}}"));
        assertThat(JsonType.schema(json.constructType(Shape.class)).at("/$defs/Shape/anyOf"))
                .extracting(each -> each.at("/properties/type/const").asString())
                .containsExactly("Circle", "Square", "Dot");
        assertThat(JsonType.schema(json.constructType(Event.class)).at("/$defs/Page/properties/next_page/type"))
                .isEqualTo(json.readTree("\"integer\""));
    }

    record Bad(List<Map<Integer, String>> names) {}

    record Endless(Endless more) {}

    @Test
    void aTypeWithoutASchemaIsNamed() {
        assertThatThrownBy(() -> JsonType.of(Bad.class))
                .isInstanceOf(ConfigException.class)
                .hasMessageStartingWith(
                        "Bad.names[]: is of java.util.Map<java.lang.Integer,java.lang.String>, must be of ");
        try (LLM llm = new LLM(LLMTest.config().build())) {
            assertThatThrownBy(() -> llm.generate("", Endless.class, SamplingParams.greedy(3)))
                    .isInstanceOf(ConfigException.class);
        }
    }
}
