package baton.connectors.lmcache;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.Setting;
import java.io.File;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import tools.jackson.core.JacksonException;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;
import tools.jackson.dataformat.yaml.YAMLMapper;

/**
 * LMCache's configuration by its keys, from where LMCache takes it, the later first: {@code kv_connector_extra_config}, where keys may have
 * {@code lmcache.} in front; variables {@code LMCACHE_<KEY>}; the YAML file named by {@code LMCACHE_CONFIG_FILE}. A key of LMCache's that
 * turns on a function that Baton does not have, and an unknown key, is an error.
 */
final class LmCacheConfig {
    private static final String FILE = "LMCACHE_CONFIG_FILE";
    private static final String VARIABLE = "LMCACHE_";
    private static final String PREFIX = "lmcache.";
    private static final String EXTRA = "extra_config";
    private static final JsonMapper JSON = JsonMapper.builder().build();

    /** Variables that are no keys: they concern LMCache's own process. */
    private static final Set<String> OTHER_VARIABLES = Set.of(
            FILE,
            LmCacheSettings.FORCE_SKIP_SAVE,
            "LMCACHE_LOG_LEVEL",
            "LMCACHE_TRACK_USAGE",
            "LMCACHE_USE_EXPERIMENTAL");

    /** LMCache's options that Baton lacks, which may only be switched off. */
    private static final Set<String> ONLY_OFF = Set.of(
            "use_layerwise",
            "enable_blending",
            "enable_p2p",
            "enable_controller",
            "enable_async_loading",
            "enable_kv_events",
            "enable_nixl",
            "internal_api_server_enabled",
            "enable_scheduler_bypass_lookup",
            "enable_lazy_memory_allocator",
            "enable_chunk_statistics",
            "enable_hidden_state_cache",
            "local_cpu_use_hugepages",
            "py_enable_gc",
            "use_gds",
            "use_gpu_connector_v3");

    /** LMCache's former names. */
    private static final Map<String, String> ALIASES = Map.of(
            "enable_xpyd", "enable_pd",
            "nixl_role", "pd_role",
            "nixl_peer_host", "pd_peer_host",
            "nixl_peer_init_port", "pd_peer_init_port",
            "nixl_peer_alloc_port", "pd_peer_alloc_port",
            "nixl_proxy_host", "pd_proxy_host",
            "nixl_proxy_port", "pd_proxy_port",
            "nixl_buffer_size", "pd_buffer_size");

    private final Map<String, Given> settings = new LinkedHashMap<>();

    /**
     * A value and where it is set.
     *
     * @param field for errors
     */
    private record Given(String field, JsonNode value) {}

    private LmCacheConfig() {}

    /**
     * @param extra {@code kv_connector_extra_config}
     * @param known keys that mean something
     * @throws ConfigException if the file cannot be read, or a key is not known
     */
    static LmCacheConfig of(JsonFields extra, Map<String, String> environment, List<Setting> known) {
        LmCacheConfig config = new LmCacheConfig();
        Optional.ofNullable(environment.get(FILE))
                .filter(name -> !name.isBlank())
                .ifPresent(config::addFile);
        environment.entrySet().stream()
                .filter(entry -> entry.getKey().startsWith(VARIABLE) && !OTHER_VARIABLES.contains(entry.getKey()))
                .sorted(Map.Entry.comparingByKey())
                .forEach(entry -> config.addVariable(entry.getKey(), entry.getValue()));
        ObjectNode own = extra.toJson();
        // A key with its prefix is LMCache's own form, and goes first.
        for (boolean prefixed : new boolean[] {false, true}) {
            for (String name : own.propertyNames()) {
                if (name.startsWith(PREFIX) == prefixed) {
                    String key = prefixed ? name.substring(PREFIX.length()) : name;
                    config.add(key, new Given(extra.field(name), own.get(name)));
                }
            }
        }
        config.requireKnown(known);
        known.forEach(setting -> setting.value()
                .ifPresent(value -> config.settings.putIfAbsent(setting.name(), new Given(setting.name(), value))));
        return config;
    }

    private void addFile(String name) {
        JsonNode read;
        try {
            read = YAMLMapper.builder().build().readTree(new File(name));
        } catch (JacksonException e) {
            throw new ConfigException(FILE, "is " + name + ", which cannot be read: " + e.getMessage(), e);
        }
        if (read instanceof ObjectNode object) {
            for (String key : object.propertyNames()) {
                add(key, new Given(name + ": " + key, object.get(key)));
            }
        } else if (!read.isMissingNode() && !read.isNull()) {
            throw new ConfigException(FILE, "is " + name + ", which is not a map of keys to values");
        }
    }

    private void addVariable(String variable, String text) {
        String key = variable.substring(VARIABLE.length()).toLowerCase(Locale.ROOT);
        if (text.isEmpty() || text.equals("None")) {
            return;
        }
        JsonNode value = JsonNodeFactory.instance.stringNode(text);
        if (key.equals(EXTRA)) {
            try {
                value = JSON.readTree(text);
            } catch (JacksonException e) {
                throw new ConfigException(variable, "is not valid JSON: " + e.getOriginalMessage(), e);
            }
        }
        add(key, new Given(variable, value));
    }

    private void add(String key, Given setting) {
        if (!key.equals(EXTRA)) {
            put(key, setting);
        } else if (setting.value instanceof ObjectNode object) {
            for (String name : object.propertyNames()) {
                put(EXTRA + "." + name, new Given(setting.field + "." + name, object.get(name)));
            }
        } else if (!setting.value.isNull()) {
            throw new ConfigException(setting.field, "is " + setting.value + ", must be a map");
        }
    }

    private void put(String name, Given setting) {
        String key = ALIASES.getOrDefault(name, name);
        if (setting.value.isNull()) {
            settings.remove(key);
        } else {
            settings.put(key, setting);
        }
    }

    private void requireKnown(List<Setting> known) {
        Set<String> all = known.stream().map(Setting::name).collect(Collectors.toCollection(TreeSet::new));
        settings.forEach((key, setting) -> {
            if (ONLY_OFF.contains(key)) {
                if (bool(key).orElse(false)) {
                    throw new ConfigException(
                            setting.field, "is true, must be false: Baton does not have this function");
                }
            } else if (!all.contains(key)) {
                throw new ConfigException(
                        setting.field,
                        "is not a key that Baton has for LMCacheConnectorV1; it has " + String.join(", ", all));
            }
        });
    }

    /** Where a key is set, for errors; the key itself if it is not. */
    String field(String key) {
        return Optional.ofNullable(settings.get(key)).map(Given::field).orElse(key);
    }

    /** One field, named as where it is set. */
    private Optional<JsonFields> fields(String key) {
        return Optional.ofNullable(settings.get(key)).map(setting -> {
            ObjectNode node = JsonNodeFactory.instance.objectNode();
            node.set(setting.field, setting.value);
            return JsonFields.of("", node);
        });
    }

    Optional<String> string(String key) {
        return fields(key).flatMap(fields -> fields.string(field(key)));
    }

    Optional<Path> path(String key) {
        return fields(key).flatMap(fields -> fields.path(field(key)));
    }

    Optional<Integer> integerAtLeast(String key, int min) {
        return fields(key).flatMap(fields -> fields.integerAtLeast(field(key), min));
    }

    Optional<Integer> integer(String key, int least, int most) {
        return fields(key).flatMap(fields -> fields.integer(field(key), least, most));
    }

    /** A text that is one of these. */
    Optional<String> choice(String key, String... allowed) {
        return fields(key).flatMap(fields -> fields.choice(field(key), allowed));
    }

    /** @throws ConfigException if it is not a number from {@code least} to {@code most} */
    double number(String key, double least, double most) {
        return fields(key)
                .flatMap(fields -> fields.number(field(key), least, most))
                .orElseThrow();
    }

    boolean has(String key) {
        return settings.containsKey(key);
    }

    /** A whole number. */
    Optional<Long> integer(String key) {
        return fields(key).flatMap(fields -> fields.integer(field(key)));
    }

    /**
     * The first of a list of ports, which a variable has with commas between them.
     *
     * @throws ConfigException if it is none
     */
    Optional<Integer> firstPort(String key) {
        return Optional.ofNullable(settings.get(key)).map(setting -> {
            JsonNode value = setting.value.isArray() ? setting.value.path(0) : setting.value;
            String first = value.isString() || value.isIntegralNumber()
                    ? value.asString().split(",", 2)[0].strip()
                    : "";
            if (!first.matches("[0-9]{1,5}") || Integer.parseInt(first) > 65_535) {
                throw new ConfigException(setting.field, "is " + setting.value + ", must be ports from 0 to 65535");
            }
            return Integer.parseInt(first);
        });
    }

    /** Reads a truth value; {@code 1} and {@code 0} count too, as LMCache reads variables. */
    Optional<Boolean> bool(String key) {
        Optional<String> text = Optional.ofNullable(settings.get(key))
                .map(Given::value)
                .filter(value -> value.isString() || value.isIntegralNumber())
                .map(JsonNode::asString);
        if (text.isPresent() && List.of("0", "1").contains(text.get())) {
            return Optional.of(text.get().equals("1"));
        }
        return fields(key).flatMap(fields -> fields.bool(field(key)));
    }
}
