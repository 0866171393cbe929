package baton.kv;

import java.math.BigDecimal;
import java.math.MathContext;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.function.Function;
import tools.jackson.core.JacksonException;
import tools.jackson.core.StreamReadFeature;
import tools.jackson.core.json.JsonFactory;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

/**
 * A JSON object read field by field, with errors that name the field's path. Used for configuration,
 * {@code kv_connector_extra_config} and {@code kv_transfer_params}. A field that is absent or JSON {@code null} is empty.
 * Numbers and booleans written as strings ({@code "1e10"}, {@code "true"}) are accepted, as vLLM does.
 *
 * <p>The object is copied at construction; instances never change.
 */
public final class JsonFields {
    private static final JsonMapper MAPPER = JsonMapper.builder(JsonFactory.builder()
                    .enable(StreamReadFeature.STRICT_DUPLICATE_DETECTION)
                    .build())
            .build();

    private final String path;
    private final ObjectNode node;

    private JsonFields(String path, ObjectNode node) {
        this.path = path;
        this.node = node;
    }

    /** An object without fields. */
    public static JsonFields empty(String path) {
        return new JsonFields(path, JsonNodeFactory.instance.objectNode());
    }

    /** Wraps a copy of {@code node}; {@code path} is put in front of field names in errors, and may be empty. */
    public static JsonFields of(String path, ObjectNode node) {
        return new JsonFields(path, node.deepCopy());
    }

    /** A process's variables that are not blank, each named in errors. */
    public static JsonFields ofVariables(Map<String, String> environment) {
        ObjectNode node = JsonNodeFactory.instance.objectNode();
        environment.forEach((name, value) -> {
            if (!value.isBlank()) {
                node.put(name, value.strip());
            }
        });
        return new JsonFields("", node);
    }

    /** @throws ConfigException if {@code json} is not a JSON object, or has an object with a key twice */
    public static JsonFields parse(String path, String json) {
        JsonNode parsed = tree(path, json);
        if (parsed instanceof ObjectNode object) {
            return new JsonFields(path, object);
        }
        throw new ConfigException(path, "must be a JSON object, is " + shown(parsed));
    }

    /** @throws ConfigException if {@code json} is not JSON, or has an object with a key twice */
    static JsonNode tree(String path, String json) {
        try {
            return MAPPER.readTree(json);
        } catch (JacksonException e) {
            throw new ConfigException(path, "not valid JSON: " + problem(e), e);
        }
    }

    /** Jackson's message without the beginning of an unfinished value, which is missing for strings. */
    private static String problem(JacksonException e) {
        String message = e.getOriginalMessage();
        int start = message.indexOf(" (start marker");
        return start < 0 ? message : message.substring(0, start);
    }

    /** The same with the values of absent settings that have one; keys of objects in it stay as they are. */
    public JsonFields withDefaults(Collection<Setting> settings) {
        ObjectNode complete = node.deepCopy();
        for (Setting setting : settings) {
            boolean isInside = setting.name().contains(".") || setting.name().contains("[");
            if (!isInside && value(setting.name()).isEmpty()) {
                setting.value().ifPresent(value -> complete.set(setting.name(), value));
            }
        }
        return new JsonFields(path, complete);
    }

    /** These fields, completed by {@code others} where a field is absent or {@code null} here; errors name them as here. */
    public JsonFields over(JsonFields others) {
        ObjectNode merged = others.toJson();
        node.properties().stream()
                .filter(field -> !field.getValue().isNull())
                .forEach(field -> merged.set(field.getKey(), field.getValue()));
        return new JsonFields(path, merged);
    }

    public Set<String> names() {
        return Set.copyOf(node.propertyNames());
    }

    public boolean isEmpty() {
        return node.isEmpty();
    }

    /** The raw value, if present and not null. */
    public Optional<JsonNode> value(String name) {
        JsonNode value = node.get(name);
        return value == null || value.isNull() ? Optional.empty() : Optional.of(value);
    }

    public Optional<String> string(String name) {
        return value(name).map(value -> {
            if (value.isString()) {
                return value.asString();
            }
            throw wrongType(name, value, "a string");
        });
    }

    /** A whole number; {@code 1e9} and {@code "1e9"} count as such. */
    public Optional<Long> integer(String name) {
        return value(name).map(value -> {
            Double number = toDouble(value);
            if (number == null || number != Math.rint(number) || Math.abs(number) > 0x1p53) {
                throw wrongType(name, value, "a whole number");
            }
            return value.isIntegralNumber() ? value.asLong() : number.longValue();
        });
    }

    /** A whole number that fits an {@code int} and is at least {@code min}. */
    public Optional<Integer> integerAtLeast(String name, int min) {
        return integer(name).map(value -> {
            if (value < min) {
                throw new ConfigException(field(name), "is " + value + ", must be at least " + min);
            }
            if (value > Integer.MAX_VALUE) {
                throw new ConfigException(field(name), "is " + value + ", must be at most " + Integer.MAX_VALUE);
            }
            return value.intValue();
        });
    }

    public Optional<Double> number(String name) {
        return value(name).map(value -> {
            Double number = toDouble(value);
            if (number == null) {
                throw wrongType(name, value, "a number");
            }
            return number;
        });
    }

    /** A whole number from {@code least} to {@code most}. */
    public Optional<Integer> integer(String name, int least, int most) {
        Optional<Integer> value = integerAtLeast(name, least);
        value.filter(given -> given > most).ifPresent(given -> {
            throw new ConfigException(field(name), "is " + given + ", must be at most " + most);
        });
        return value;
    }

    /** @param least {@link Double#MIN_VALUE} for any number above 0 */
    public Optional<Double> number(String name, double least, double most) {
        Optional<Double> value = number(name);
        value.filter(given -> !(given >= least && given <= most)).ifPresent(given -> {
            String bound = least == Double.MIN_VALUE ? "more than 0" : "at least " + shown(least);
            throw new ConfigException(
                    field(name), "is " + given + ", must be " + bound + " and at most " + shown(most));
        });
        return value;
    }

    private static String shown(double bound) {
        return new BigDecimal(bound, MathContext.DECIMAL64).stripTrailingZeros().toPlainString();
    }

    /** A number of seconds, as {@link #number(String, double, double)}. */
    public Optional<Duration> seconds(String name, double least, double most) {
        return number(name, least, most).map(seconds -> Duration.ofNanos((long) (seconds * 1e9)));
    }

    /** A text that is one of these. */
    public Optional<String> choice(String name, String... allowed) {
        return string(name).map(text -> ConfigException.choose(field(name), text, allowed, Function.identity()));
    }

    public Optional<Path> path(String name) {
        return string(name).map(text -> ConfigException.path(field(name), text));
    }

    /** @throws ConfigException if a field is none of these settings */
    public void requireKnown(Collection<Setting> settings) {
        Set<String> known = Setting.names(settings);
        node.propertyNames().stream()
                .filter(name -> !known.contains(name))
                .findFirst()
                .ifPresent(name -> {
                    throw new ConfigException(field(name), "unknown field; known: " + String.join(", ", known));
                });
    }

    public Optional<Boolean> bool(String name) {
        return value(name).map(value -> {
            if (value.isBoolean()) {
                return value.asBoolean();
            }
            return switch (value.isString() ? value.asString() : "") {
                case "true", "True" -> true;
                case "false", "False" -> false;
                default -> throw wrongType(name, value, "true or false");
            };
        });
    }

    /** @throws ConfigException if the field is there and is not this, giving the reason */
    public void requireOnly(String name, boolean only, String why) {
        bool(name).filter(value -> value != only).ifPresent(value -> {
            throw new ConfigException(field(name), "is " + value + ", must be " + only + ": " + why);
        });
    }

    public Optional<JsonFields> object(String name) {
        return value(name).map(value -> {
            if (value instanceof ObjectNode object) {
                return new JsonFields(field(name), object);
            }
            throw wrongType(name, value, "an object");
        });
    }

    /** @throws ConfigException if it is not an array of strings that are not empty */
    public Optional<List<String>> strings(String name) {
        return value(name).map(value -> {
            List<String> strings = new ArrayList<>();
            for (JsonNode each : value) {
                strings.add(each.isString() ? each.asString() : "");
            }
            if (!value.isArray() || strings.contains("")) {
                throw new ConfigException(field(name), "must be an array of strings, is " + value);
            }
            return List.copyOf(strings);
        });
    }

    /** The objects of an array. */
    public Optional<List<JsonFields>> objects(String name) {
        return value(name).map(value -> {
            if (!value.isArray()) {
                throw wrongType(name, value, "an array of objects");
            }
            List<JsonFields> objects = new ArrayList<>();
            for (JsonNode element : value) {
                String elementName = name + "[" + objects.size() + "]";
                if (!(element instanceof ObjectNode object)) {
                    throw wrongType(elementName, element, "an object");
                }
                objects.add(new JsonFields(field(elementName), object));
            }
            return objects;
        });
    }

    /** The full name of a field, for errors. */
    public String field(String name) {
        return path.isEmpty() ? name : path + "." + name;
    }

    /** A copy as a Jackson tree. */
    public ObjectNode toJson() {
        return node.deepCopy();
    }

    @Override
    public String toString() {
        return node.toString();
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof JsonFields fields && node.equals(fields.node);
    }

    @Override
    public int hashCode() {
        return node.hashCode();
    }

    private ConfigException wrongType(String name, JsonNode value, String wanted) {
        return new ConfigException(field(name), "must be " + wanted + ", is " + shown(value));
    }

    /** Its text, of which at most 80 characters, for errors. */
    public static String shown(JsonNode value) {
        String text = value.toString();
        return text.length() <= 80 ? text : text.substring(0, 77) + "...";
    }

    private static @org.jspecify.annotations.Nullable Double toDouble(JsonNode value) {
        if (value.isNumber()) {
            // Of any number of digits.
            double number = value.isIntegralNumber() ? value.asBigInteger().doubleValue() : value.asDouble();
            return Double.isFinite(number) ? number : null;
        }
        if (value.isString()) {
            try {
                double number = Double.parseDouble(value.asString().strip());
                return Double.isFinite(number) ? number : null;
            } catch (NumberFormatException e) {
                return null;
            }
        }
        return null;
    }
}
