package baton.grammar.schema;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.grammar.automaton.Grammar;
import baton.grammar.rule.GrammarSource;
import baton.kv.ConfigException;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import tools.jackson.databind.DeserializationFeature;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/** The samples of the official JSON Schema Test Suite, of which BATON_JSON_SCHEMA_SUITE names a checkout. */
class JsonSchemaSuiteTest {
    private static final String SUITE = System.getenv().getOrDefault("BATON_JSON_SCHEMA_SUITE", "");

    /** Formats are constraints here and not annotations, as these samples have them. */
    private static final Set<String> ANNOTATED = Set.of("format.json");

    /** Names with labels of Punycode are refused. */
    private static final String PUNYCODE = "xn--";

    private static final JsonMapper MAPPER = JsonMapper.builder()
            .enable(DeserializationFeature.USE_BIG_DECIMAL_FOR_FLOATS)
            .build();

    @Test
    void takesTheValidSamplesOfSupportedSchemasAndNoOthers() throws IOException {
        assumeTrue(!SUITE.isEmpty(), "BATON_JSON_SCHEMA_SUITE names no checkout of the JSON Schema Test Suite");
        List<String> wrong = new ArrayList<>();
        Map<String, Integer> refused = new TreeMap<>();
        int right = 0;
        for (Path file : files()) {
            for (JsonNode group : MAPPER.readTree(file.toFile())) {
                String name =
                        file.getFileName() + ": " + group.get("description").asString();
                GrammarSource source;
                try {
                    source = JsonSchemas.source(group.get("schema"), SchemaOptions.DEFAULT.withAnyOrder());
                } catch (ConfigException e) {
                    refused.merge(keyword(e.field()), 1, Integer::sum);
                    continue;
                }
                Grammar grammar = null;
                try {
                    grammar = Grammar.compile(source);
                } catch (ConfigException _) {
                    // A schema that has no values is refused as a whole: none of its samples is valid.
                }
                for (JsonNode sample : group.get("tests")) {
                    byte[] document = MAPPER.writeValueAsBytes(sample.get("data"));
                    boolean isTaken = grammar != null && grammar.accepts(document);
                    if (isTaken == sample.get("valid").asBoolean()) {
                        right++;
                    } else if (!sample.get("data").toString().contains(PUNYCODE) || isTaken) {
                        wrong.add(name + ": " + sample);
                    }
                }
            }
        }
        System.out.println("JSON Schema Test Suite: " + right + " samples, refused schemas by keyword: " + refused);

        assertThat(wrong).isEmpty();
        assertThat(right).isGreaterThan(1_500);
        assertThat(refused.keySet())
                .containsExactlyInAnyOrder(
                        "$dynamicRef",
                        "$ref",
                        "$schema",
                        "dependencies",
                        "format",
                        "minProperties",
                        "multipleOf",
                        "unevaluatedItems",
                        "unevaluatedProperties",
                        "uniqueItems");
    }

    private static List<Path> files() throws IOException {
        try (Stream<Path> files = Files.walk(Path.of(SUITE, "tests", "draft2020-12"))) {
            return files.filter(file -> file.toString().endsWith(".json"))
                    .filter(file -> !ANNOTATED.contains(file.getFileName().toString()))
                    .sorted()
                    .toList();
        }
    }

    /** The numbers of a schema have no keyword of their own. */
    private static String keyword(String field) {
        return field.equals("schema") ? "multipleOf" : field.substring(field.lastIndexOf('.') + 1);
    }
}
