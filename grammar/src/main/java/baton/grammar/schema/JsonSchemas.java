package baton.grammar.schema;

import baton.grammar.rule.Expression;
import baton.grammar.rule.GrammarSource;
import baton.kv.ConfigException;
import tools.jackson.core.JacksonException;
import tools.jackson.core.StreamReadConstraints;
import tools.jackson.core.StreamReadFeature;
import tools.jackson.core.json.JsonFactory;
import tools.jackson.databind.DeserializationFeature;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.JsonNodeFactory;

/** Grammars of the JSON documents that are valid by a schema. */
public final class JsonSchemas {
    private static final int MOST_CHARACTERS = 1 << 20;
    private static final int MOST_NESTED = 200;

    /** Keeps decimals as they are written. */
    private static final JsonMapper MAPPER = JsonMapper.builder(JsonFactory.builder()
                    .enable(StreamReadFeature.STRICT_DUPLICATE_DETECTION)
                    .streamReadConstraints(StreamReadConstraints.builder()
                            .maxNestingDepth(MOST_NESTED)
                            .build())
                    .build())
            .enable(DeserializationFeature.USE_BIG_DECIMAL_FOR_FLOATS)
            .build();

    private JsonSchemas() {}

    /**
     * The documents of a schema of draft 2020-12, without white space around them.
     *
     * @throws ConfigException if a keyword cannot be decided token by token; its field begins with {@code schema}
     */
    public static GrammarSource source(JsonNode schema, SchemaOptions options) {
        SchemaRules rules = new SchemaRules(options);
        Expression start = rules.add(schema);
        return new GrammarSource(rules.rules(), start);
    }

    /**
     * The documents of a schema that is given as text.
     *
     * @throws ConfigException also if it is not JSON, nested too deeply, or too long
     */
    public static GrammarSource source(String schema, SchemaOptions options) {
        if (schema.length() > MOST_CHARACTERS) {
            throw new ConfigException(
                    SchemaDocument.ROOT, "has " + schema.length() + " characters, must be at most " + MOST_CHARACTERS);
        }
        try {
            return source(MAPPER.readTree(schema), options);
        } catch (JacksonException e) {
            throw new ConfigException(SchemaDocument.ROOT, "not valid JSON: " + e.getOriginalMessage(), e);
        }
    }

    /** Any JSON object. */
    public static GrammarSource anyObject(SchemaOptions options) {
        return source(JsonNodeFactory.instance.objectNode().put("type", "object"), options);
    }
}
