package baton.kv;

import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.function.Function;
import java.util.function.Predicate;
import org.jspecify.annotations.Nullable;
import tools.jackson.core.JacksonException;
import tools.jackson.databind.DeserializationFeature;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

/**
 * vLLM's command-line forms of an option with a JSON object as its value, here {@code --option}:
 *
 * <pre>
 * --option '{"field": "X", ...}'
 * --option.field X              one field
 * --option.field.a.b 3          objects on the way are made
 * --option.field.list+ X,Y      appends to a list
 * </pre>
 *
 * Values are JSON where they parse as JSON, else text. A dotted form wins over the same field in the object, whichever comes
 * first; of two equal dotted forms the last wins. {@code --option=value} and underscores for the option's hyphens are accepted too.
 *
 * @param config the merged object, or the configuration read from it, if any of these options was given
 * @param rest all other arguments, in order
 * @param <C> type of the configuration
 */
public record JsonObjectArgs<C>(Optional<C> config, List<String> rest) {
    private static final JsonMapper MAPPER = JsonMapper.builder()
            .enable(DeserializationFeature.FAIL_ON_TRAILING_TOKENS)
            .build();

    public JsonObjectArgs {
        rest = List.copyOf(rest);
    }

    /**
     * Takes an option out of a command line. Arguments after {@code --} are left alone.
     *
     * @param name the option, with hyphens
     * @param isText whether a field of the object holds text, so that {@code 42} for it is text too
     * @throws ConfigException if an option lacks its value, or does not fit the others
     */
    public static JsonObjectArgs<ObjectNode> parse(String name, Predicate<String> isText, List<String> args) {
        String underscored = "--" + name.substring(2).replace('-', '_');
        List<String> rest = new ArrayList<>();
        List<Dotted> dotted = new ArrayList<>();
        Optional<JsonFields> object = Optional.empty();
        for (int i = 0; i < args.size(); i++) {
            String arg = args.get(i);
            if (arg.equals("--")) {
                rest.addAll(args.subList(i, args.size()));
                break;
            }
            int equals = arg.indexOf('=');
            String option = equals < 0 ? arg : arg.substring(0, equals);
            if (option.startsWith(underscored)) {
                option = name + option.substring(name.length());
            }
            if (!option.equals(name) && !option.startsWith(name + ".")) {
                rest.add(arg);
                continue;
            }
            if (equals < 0 && i + 1 == args.size()) {
                throw new ConfigException(option, "needs a value");
            }
            String value = equals < 0 ? args.get(++i) : arg.substring(equals + 1);
            if (option.equals(name)) {
                object = Optional.of(JsonFields.parse(name, value));
            } else {
                dotted.add(new Dotted(option, option.substring(name.length() + 1), value));
            }
        }
        if (object.isEmpty() && dotted.isEmpty()) {
            return new JsonObjectArgs<>(Optional.empty(), rest);
        }
        ObjectNode root = object.map(JsonFields::toJson).orElseGet(JsonNodeFactory.instance::objectNode);
        dotted.forEach(each -> each.applyTo(root, isText));
        return new JsonObjectArgs<>(Optional.of(root), rest);
    }

    /** The same arguments, with a value that a function reads from the configuration. */
    <T> JsonObjectArgs<T> as(Function<C, T> read) {
        return new JsonObjectArgs<>(config.map(read), rest);
    }

    /** @param path the fields, with dots between them */
    private record Dotted(String option, String path, String value) {
        void applyTo(ObjectNode root, Predicate<String> isText) {
            boolean append = path.endsWith("+");
            String[] keys = (append ? path.substring(0, path.length() - 1) : path).split("\\.", -1);
            ObjectNode parent = root;
            for (int i = 0; i < keys.length; i++) {
                if (keys[i].isEmpty()) {
                    throw new ConfigException(option, "has an empty key between its dots");
                }
                if (i == keys.length - 1) {
                    break;
                }
                JsonNode child = parent.get(keys[i]);
                if (child == null || child.isNull()) {
                    parent = parent.putObject(keys[i]);
                } else if (child instanceof ObjectNode next) {
                    parent = next;
                } else {
                    throw new ConfigException(option, "goes into " + keys[i] + ", which is not an object: " + child);
                }
            }
            String last = keys[keys.length - 1];
            if (append) {
                appendTo(parent, last);
            } else if (keys.length == 1 && isText.test(last)) {
                JsonNode parsed = json(value);
                parent.set(last, parsed != null && (parsed.isString() || parsed.isNull()) ? parsed : text(value));
            } else {
                parent.set(last, jsonOrText(value));
            }
        }

        private void appendTo(ObjectNode parent, String key) {
            JsonNode present = parent.get(key);
            ArrayNode list;
            if (present == null || present.isNull()) {
                list = parent.putArray(key);
            } else if (present instanceof ArrayNode array) {
                list = array;
            } else {
                throw new ConfigException(option, "appends to " + key + ", which is not a list: " + present);
            }
            JsonNode whole = json(value);
            if (whole != null) {
                list.add(whole);
                return;
            }
            for (String element : value.split(",", -1)) {
                list.add(jsonOrText(element));
            }
        }

        private JsonNode jsonOrText(String value) {
            JsonNode parsed = json(value);
            return parsed == null ? text(value) : parsed;
        }

        private static JsonNode text(String value) {
            return JsonNodeFactory.instance.stringNode(value);
        }

        /** Null if the value is not JSON. */
        private @Nullable JsonNode json(String value) {
            try {
                JsonNode parsed = MAPPER.readTree(value);
                return parsed.isMissingNode() ? null : parsed.isContainer() ? JsonFields.tree(option, value) : parsed;
            } catch (JacksonException e) {
                return null;
            }
        }
    }
}
