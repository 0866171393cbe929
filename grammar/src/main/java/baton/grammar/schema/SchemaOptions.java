package baton.grammar.schema;

import java.util.Optional;

/**
 * How documents of a schema are written.
 *
 * @param anyOrder whether the properties of an object come in any order, or in the schema's
 * @param disableAnyWhitespace whether there is no white space between the tokens of JSON
 * @param whitespacePattern regular expression of the white space between two tokens of JSON
 * @param disableAdditionalProperties whether objects with {@code properties} or {@code patternProperties} have no others,
 *     where {@code additionalProperties} is absent
 */
public record SchemaOptions(
        boolean anyOrder,
        boolean disableAnyWhitespace,
        Optional<String> whitespacePattern,
        boolean disableAdditionalProperties) {
    public static final SchemaOptions DEFAULT = new SchemaOptions(false, false, Optional.empty(), false);

    /** The same with properties in any order. */
    public SchemaOptions withAnyOrder() {
        return new SchemaOptions(true, disableAnyWhitespace, whitespacePattern, disableAdditionalProperties);
    }
}
