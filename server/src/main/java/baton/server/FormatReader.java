package baton.server;

import baton.engine.Engine;
import baton.engine.SamplingParams;
import baton.grammar.OutputFormat;
import baton.grammar.schema.SchemaOptions;
import baton.kv.ConfigException;
import baton.kv.JsonFields;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import tools.jackson.databind.JsonNode;

/**
 * Reads the format that a request wants of its output: {@code response_format}, {@code structured_outputs}, or the {@code guided_} fields
 * that vLLM had before.
 */
final class FormatReader {
    /** Memory to read and compile a format. */
    private static final long BYTES = 4 << 20;

    private static final List<String> KINDS =
            List.of("json", "json_object", "regex", "choice", "grammar", "structural_tag");

    private static final List<String> GUIDED =
            List.of("guided_json", "guided_json_object", "guided_regex", "guided_choice", "guided_grammar");

    private FormatReader() {}

    /**
     * A format that is wanted.
     *
     * @param path of the field that has the schema, the pattern, the choices or the grammar
     * @param whitespace path of the field that has the pattern of white space
     */
    private record Wanted(OutputFormat format, String path, String whitespace) {}

    /** @throws ConfigException naming a field that is malformed, or one of two fields that both have a format */
    static Optional<OutputFormat> read(JsonFields fields) {
        return wanted(fields).map(Wanted::format);
    }

    /**
     * Compiles the format of a request, which may take milliseconds.
     *
     * @throws ConfigException naming the client's field, if it cannot be compiled
     */
    static void prepare(JsonFields fields, Engine engine, SamplingParams sampling, Preparation preparation) {
        if (sampling.format().isEmpty()) {
            return;
        }
        preparation.reserve(BYTES);
        try {
            engine.prepare(sampling);
        } catch (ConfigException e) {
            if (e.field().startsWith("tools") || fields.value(e.field()).isPresent()) {
                throw e;
            }
            throw wanted(fields)
                    .map(wanted -> e.at(e.field().equals("whitespace_pattern") ? wanted.whitespace : wanted.path))
                    .orElseGet(() -> e.at("tools"));
        }
    }

    private static Optional<Wanted> wanted(JsonFields fields) {
        List<Wanted> all = new ArrayList<>();
        fields.object("response_format").flatMap(FormatReader::responseFormat).ifPresent(all::add);
        fields.object("structured_outputs").ifPresent(outputs -> {
            SchemaOptions options = new SchemaOptions(
                    outputs.bool("any_property_order").orElse(false),
                    outputs.bool("disable_any_whitespace").orElse(false),
                    outputs.string("whitespace_pattern"),
                    outputs.bool("disable_additional_properties").orElse(false));
            int before = all.size();
            for (String kind : KINDS) {
                format(outputs, kind, kind, options)
                        .map(format -> new Wanted(format, outputs.field(kind), outputs.field("whitespace_pattern")))
                        .ifPresent(all::add);
            }
            if (all.size() == before) {
                throw ApiException.badField(
                        "structured_outputs", "has no format, must have one of " + String.join(", ", KINDS));
            }
        });
        SchemaOptions guided = new SchemaOptions(false, false, fields.string("guided_whitespace_pattern"), false);
        for (String name : GUIDED) {
            guided(fields, name, name.substring("guided_".length()), guided).ifPresent(all::add);
        }
        guided(fields, "structural_tag", "structural_tag", guided).ifPresent(all::add);
        if (all.size() > 1) {
            throw ApiException.badField(
                    all.get(1).path, "is a second format beside " + all.getFirst().path + ", a request may have one");
        }
        return all.stream().findFirst();
    }

    private static Optional<Wanted> guided(JsonFields fields, String name, String kind, SchemaOptions options) {
        return fields.value(name)
                .filter(RequestFields::isSet)
                .flatMap(_ -> format(fields, name, kind, options))
                .map(format -> new Wanted(format, name, "guided_whitespace_pattern"));
    }

    private static Optional<Wanted> responseFormat(JsonFields format) {
        String type = format.string("type").orElse("text");
        return switch (type) {
            case "text" -> Optional.empty();
            case "json_object" -> {
                OutputFormat any = new OutputFormat.JsonObject(SchemaOptions.DEFAULT);
                yield Optional.of(new Wanted(any, format.field("type"), ""));
            }
            case "json_schema" -> {
                JsonFields schema = format.object("json_schema")
                        .orElseThrow(() -> ApiException.badField(
                                format.field("json_schema"), "is missing, must be an object with a schema"));
                schema.string("name");
                schema.string("description");
                schema.bool("strict");
                OutputFormat json = format(schema, "schema", "json", SchemaOptions.DEFAULT)
                        .orElseThrow(() ->
                                ApiException.badField(schema.field("schema"), "is missing, must be a JSON Schema"));
                yield Optional.of(new Wanted(json, schema.field("schema"), ""));
            }
            case "structural_tag" -> {
                OutputFormat tag = new OutputFormat.StructuralTag(format.toString());
                yield Optional.of(new Wanted(tag, "response_format", ""));
            }
            default ->
                throw ConfigException.unsupported(
                        format.field("type"), type, "text, json_object, json_schema, structural_tag");
        };
    }

    private static Optional<OutputFormat> format(JsonFields fields, String name, String kind, SchemaOptions options) {
        return switch (kind) {
            case "json" ->
                fields.value(name)
                        .map(schema -> new OutputFormat.JsonSchema(
                                text(fields.field(name), schema, "a JSON Schema"), options));
            case "json_object" ->
                fields.bool(name).filter(wanted -> wanted).map(_ -> new OutputFormat.JsonObject(options));
            case "regex" -> fields.string(name).map(OutputFormat.Regex::new);
            case "choice" ->
                fields.value(name).map(choice -> new OutputFormat.Choices(choices(fields.field(name), choice)));
            case "grammar" -> fields.string(name).map(OutputFormat.GrammarText::new);
            case "structural_tag" ->
                fields.value(name)
                        .map(tag -> new OutputFormat.StructuralTag(text(fields.field(name), tag, "a structural tag")));
            default -> throw new IllegalArgumentException(kind);
        };
    }

    /** JSON that is given as such or as a string. */
    private static String text(String field, JsonNode value, String wanted) {
        if (!value.isString() && !value.isObject() && !value.isBoolean()) {
            throw ApiException.badField(
                    field, "must be " + wanted + ", as an object or a string of JSON, is " + Json.shown(value));
        }
        return value.isString() ? value.asString() : value.toString();
    }

    private static List<String> choices(String field, JsonNode value) {
        if (!value.isArray() || value.isEmpty()) {
            throw ApiException.badField(
                    field, "must be an array of strings that is not empty, is " + Json.shown(value));
        }
        return RequestFields.strings(field, value);
    }
}
