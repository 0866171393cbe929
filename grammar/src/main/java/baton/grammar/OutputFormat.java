package baton.grammar;

import baton.grammar.rule.GrammarSource;
import baton.grammar.schema.JsonSchemas;
import baton.grammar.schema.SchemaOptions;

/** The format of an output. Equal formats have the same grammar, so a format is the key of compiled grammars. */
public sealed interface OutputFormat {
    /**
     * The grammar of the format.
     *
     * @throws baton.kv.ConfigException naming the part that has no grammar
     */
    GrammarSource source();

    /** A grammar that is given. */
    record Rules(GrammarSource source) implements OutputFormat {}

    /** Any JSON object. */
    record JsonObject(SchemaOptions options) implements OutputFormat {
        @Override
        public GrammarSource source() {
            return JsonSchemas.anyObject(options);
        }
    }

    /**
     * A JSON document.
     *
     * @param schema JSON Schema of draft 2020-12, as text
     */
    record JsonSchema(String schema, SchemaOptions options) implements OutputFormat {
        @Override
        public GrammarSource source() {
            return JsonSchemas.source(schema, options);
        }
    }
}
