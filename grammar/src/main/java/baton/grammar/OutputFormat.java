package baton.grammar;

import baton.grammar.regex.Regexes;
import baton.grammar.rule.Expression;
import baton.grammar.rule.GrammarSource;
import baton.grammar.schema.JsonSchemas;
import baton.grammar.schema.SchemaOptions;
import baton.grammar.text.Grammars;
import baton.grammar.text.StructuralTags;
import baton.kv.ConfigException;
import java.util.List;
import java.util.function.Supplier;

/** The format of an output. Equal formats have the same grammar, so a format is the key of compiled grammars. */
public sealed interface OutputFormat {
    /**
     * The grammar of the format.
     *
     * @throws baton.kv.ConfigException naming the part that has no grammar
     */
    default GrammarSource source() {
        return switch (this) {
            case Rules(GrammarSource source) -> source;
            case Keyed keyed -> keyed.grammar().get();
            case JsonObject(SchemaOptions options) -> JsonSchemas.anyObject(options);
            case JsonSchema(String schema, SchemaOptions options) -> JsonSchemas.source(schema, options);
            case Regex(String pattern) -> GrammarSource.of(Regexes.expression(pattern));
            case Choices(List<String> choices)
            when choices.isEmpty() -> throw new ConfigException("choice", "is empty, must have a text");
            case Choices(List<String> choices) -> GrammarSource.of(Expression.oneOf(choices));
            case GrammarText(String text) -> Grammars.source(text);
            case StructuralTag(String json) -> StructuralTags.source(json);
            case After(Expression beginning, OutputFormat format) -> {
                GrammarSource own = format.source();
                yield new GrammarSource(own.rules(), Expression.sequence(beginning, own.start()));
            }
        };
    }

    /** How much memory it takes as a key, about. */
    default long bytes() {
        return switch (this) {
            case Rules _, JsonObject _ -> 0;
            // Of nodes of JSON, mostly, which take more than their text.
            case Keyed keyed -> 16L * keyed.key().toString().length();
            case JsonSchema json -> 2L * json.schema().length();
            case Regex(String pattern) -> 2L * pattern.length();
            case Choices(List<String> choices) ->
                choices.stream().mapToLong(choice -> 50 + 2L * choice.length()).sum();
            case GrammarText(String text) -> 2L * text.length();
            case StructuralTag(String json) -> 2L * json.length();
            case After(Expression _, OutputFormat format) -> format.bytes();
        };
    }

    /** A grammar that is given. */
    record Rules(GrammarSource source) implements OutputFormat {}

    /**
     * A grammar that is made when it is compiled.
     *
     * @param key equal where the grammar is equal
     * @param hash the key's, so that a look-up of the format does not compute it
     */
    record Keyed(Object key, int hash, Supplier<GrammarSource> grammar) implements OutputFormat {
        public Keyed(Object key, Supplier<GrammarSource> grammar) {
            this(key, key.hashCode(), grammar);
        }

        @Override
        public boolean equals(Object other) {
            return other instanceof Keyed keyed && hash == keyed.hash && key.equals(keyed.key);
        }

        @Override
        public int hashCode() {
            return hash;
        }
    }

    /** Any JSON object. */
    record JsonObject(SchemaOptions options) implements OutputFormat {}

    /**
     * A JSON document.
     *
     * @param schema JSON Schema of draft 2020-12, as text
     */
    record JsonSchema(String schema, SchemaOptions options) implements OutputFormat {}

    /** Texts that a regular expression matches as a whole. */
    record Regex(String pattern) implements OutputFormat {}

    /** One of some texts. */
    record Choices(List<String> choices) implements OutputFormat {
        public Choices {
            choices = List.copyOf(choices);
        }
    }

    /** Texts of a grammar in EBNF or Lark. */
    record GrammarText(String text) implements OutputFormat {}

    /** Texts of a structural tag in JSON. */
    record StructuralTag(String json) implements OutputFormat {}

    /** A format after a beginning. */
    record After(Expression beginning, OutputFormat format) implements OutputFormat {}
}
