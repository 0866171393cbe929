package baton.kv;

import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import org.jspecify.annotations.Nullable;
import tools.jackson.core.JacksonException;
import tools.jackson.databind.DeserializationFeature;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

/**
 * vLLM's command-line forms of a {@link KvTransferConfig}:
 *
 * <pre>
 * --kv-transfer-config '{"kv_connector": "X", ...}'
 * --kv-transfer-config.kv_connector X                                     one field
 * --kv-transfer-config.kv_connector_extra_config.a.b 3                    objects on the way are made
 * --kv-transfer-config.kv_connector_extra_config.backends+ UCX,LIBFABRIC  appends to a list
 * </pre>
 *
 * Values are JSON where they parse as JSON, else text. A dotted form wins over the same field in the object, whichever comes
 * first; of two equal dotted forms the last wins. {@code --option=value} and {@code --kv_transfer_config} are accepted too.
 *
 * @param config the configuration, if any of these options was given
 * @param rest all other arguments, in order
 */
public record KvTransferConfigArgs(Optional<KvTransferConfig> config, List<String> rest) {
    private static final String OPTION = "--kv-transfer-config";
    private static final JsonMapper MAPPER = JsonMapper.builder()
            .enable(DeserializationFeature.FAIL_ON_TRAILING_TOKENS)
            .build();

    public KvTransferConfigArgs {
        rest = List.copyOf(rest);
    }

    /**
     * Takes the options of the KV transfer out of a command line. What follows {@code --} is left alone.
     *
     * @throws ConfigException if an option lacks its value, or the configuration is wrong
     */
    public static KvTransferConfigArgs parse(List<String> args) {
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
            if (option.startsWith("--kv_transfer_config")) {
                option = OPTION + option.substring(OPTION.length());
            }
            if (!option.equals(OPTION) && !option.startsWith(OPTION + ".")) {
                rest.add(arg);
                continue;
            }
            if (equals < 0 && i + 1 == args.size()) {
                throw new ConfigException(option, "needs a value");
            }
            String value = equals < 0 ? args.get(++i) : arg.substring(equals + 1);
            if (option.equals(OPTION)) {
                object = Optional.of(JsonFields.parse(OPTION, value));
            } else {
                dotted.add(new Dotted(option, value));
            }
        }
        if (object.isEmpty() && dotted.isEmpty()) {
            return new KvTransferConfigArgs(Optional.empty(), rest);
        }
        ObjectNode root = object.map(JsonFields::toJson).orElseGet(JsonNodeFactory.instance::objectNode);
        dotted.forEach(option -> option.applyTo(root));
        return new KvTransferConfigArgs(Optional.of(KvTransferConfig.fromJson(JsonFields.of("", root))), rest);
    }

    private record Dotted(String option, String value) {
        void applyTo(ObjectNode root) {
            String path = option.substring(OPTION.length() + 1);
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
            } else if (keys.length == 1 && KvTransferConfig.isText(last)) {
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

        private static JsonNode jsonOrText(String value) {
            JsonNode parsed = json(value);
            return parsed == null ? text(value) : parsed;
        }

        private static JsonNode text(String value) {
            return JsonNodeFactory.instance.stringNode(value);
        }

        private static @Nullable JsonNode json(String value) {
            try {
                JsonNode parsed = MAPPER.readTree(value);
                return parsed.isMissingNode() ? null : parsed;
            } catch (JacksonException e) {
                return null;
            }
        }
    }
}
