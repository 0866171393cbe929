package baton.kv;

import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.UUID;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

/**
 * How an instance exchanges KV caches: vLLM's {@code KVTransferConfig}, field for field (vllm/config/kv_transfer.py).
 *
 * <p>From a program: {@code KvTransferConfig.builder("SharedStorageConnector", KvRole.PRODUCER).extra("shared_storage_path",
 * path).build()}. From JSON: {@link #fromJson}. From a command line: {@link #fromArgs}. Every way checks the same
 * and throws {@link ConfigException} naming vLLM's field.
 *
 * @param connector {@code kv_connector}: a connector's name, or a class in {@code modulePath}
 * @param engineId {@code engine_id}: unique per instance; random unless given
 * @param bufferDevice {@code kv_buffer_device}: {@code cpu}, or {@code cuda} for connectors that reach a device's pool directly
 * @param bufferSize {@code kv_buffer_size}, bytes
 * @param role {@code kv_role}; present whenever {@code connector} is
 * @param rank {@code kv_rank}, for two-sided connectors; less than {@code parallelSize}
 * @param parallelSize {@code kv_parallel_size}
 * @param ip {@code kv_ip}
 * @param port {@code kv_port}; 0 lets the system choose one
 * @param extra {@code kv_connector_extra_config}: the connector's own settings
 * @param modulePath {@code kv_connector_module_path}: the Java package of a connector class of the user's own
 * @param permuteLocalKv {@code enable_permute_local_kv}
 * @param loadFailurePolicy {@code kv_load_failure_policy}
 * @param verifyKv {@code verify_kv}, which vLLM does not have
 */
public record KvTransferConfig(
        Optional<String> connector,
        String engineId,
        String bufferDevice,
        long bufferSize,
        Optional<KvRole> role,
        OptionalInt rank,
        int parallelSize,
        String ip,
        int port,
        JsonFields extra,
        Optional<String> modulePath,
        boolean permuteLocalKv,
        LoadFailurePolicy loadFailurePolicy,
        VerifyKv verifyKv) {

    /** The key in {@code kv_connector_extra_config} of connectors with ports: the file with the secret by which peers authenticate. */
    public static final String AUTH_SECRET_FILE = "kv_auth_secret_file";

    /** There too: {@code required} has the connections of such ports encrypted. */
    public static final String ENCRYPTION = "kv_encryption";

    /** There too: such ports may be open to other hosts without a secret. */
    public static final String ALLOW_UNAUTHENTICATED = "kv_allow_unauthenticated";

    public static final String VERIFY_KV = "verify_kv";

    static final String CONNECTOR = "kv_connector";
    static final String ENGINE_ID = "engine_id";
    static final String BUFFER_DEVICE = "kv_buffer_device";
    static final String BUFFER_SIZE = "kv_buffer_size";
    static final String ROLE = "kv_role";
    static final String RANK = "kv_rank";
    static final String PARALLEL_SIZE = "kv_parallel_size";
    static final String IP = "kv_ip";
    static final String PORT = "kv_port";
    static final String EXTRA = "kv_connector_extra_config";
    static final String MODULE_PATH = "kv_connector_module_path";
    static final String PERMUTE_LOCAL_KV = "enable_permute_local_kv";
    static final String LOAD_FAILURE_POLICY = "kv_load_failure_policy";

    /** All its fields, those of {@link #EXTRA} without. */
    public static final List<Setting> FIELDS = List.of(
            Setting.absent(CONNECTOR, "none", "The connector's name, or a class in `kv_connector_module_path`."),
            Setting.absent(ENGINE_ID, "a random UUID", "Of the instance, among all that exchange KV caches."),
            Setting.of(
                    BUFFER_DEVICE,
                    "cpu",
                    "Of a model on a device: `cpu` moves blocks through a staging pool in host memory, `cuda` has the connector and its transfer agent reach the device's memory."),
            Setting.of(BUFFER_SIZE, 1_000_000_000L, "Bytes of tensors that a two-sided connector keeps."),
            Setting.absent(ROLE, "none", "`kv_producer`, `kv_consumer` or `kv_both`; needed with a connector."),
            Setting.absent(RANK, "0 for the producer, 1 for the consumer", "Of `PyNcclConnector`: rank 0 listens."),
            Setting.of(PARALLEL_SIZE, 1, "Instances that exchange KV caches; 2 with `PyNcclConnector`."),
            Setting.of(IP, "127.0.0.1", "Where a two-sided connector or Mooncake's listens, and peers find it."),
            Setting.of(PORT, 14579, "The first of a two-sided connector's ports."),
            Setting.absent(EXTRA, "`{}`", "The connector's own settings, below."),
            Setting.absent(MODULE_PATH, "none", "The Java package or the jar of a connector of your own."),
            Setting.of(PERMUTE_LOCAL_KV, false, "Accepted; has no effect."),
            Setting.of(
                    LOAD_FAILURE_POLICY,
                    LoadFailurePolicy.FAIL.configName(),
                    "`fail`: if the KV cache cannot be loaded the request ends with an error; `recompute`: its prompt is computed"
                            + " here."),
            Setting.of(
                    VERIFY_KV,
                    VerifyKv.AUTO.configName(),
                    "The part of loaded keys and values that is compared with the model's own: `off`; `last`, the last loaded token in"
                            + " all layers; `first_layer`, the last 12 there and all of them in the first layer; `each_block`,"
                            + " the last 12 and the last token of each block in all layers; `full`, everything; `auto`,"
                            + " `first_layer` of loads without digests."));

    private static final List<String> NAMES = List.copyOf(Setting.names(FIELDS));

    /** @throws ConfigException if a field's value is out of range or fields contradict each other */
    public KvTransferConfig {
        Objects.requireNonNull(role, "role");
        Objects.requireNonNull(rank, "rank");
        Objects.requireNonNull(extra, "extra");
        Objects.requireNonNull(loadFailurePolicy, "loadFailurePolicy");
        Objects.requireNonNull(verifyKv, "verifyKv");
        connector.ifPresent(name -> requireText(CONNECTOR, name));
        requireText(ENGINE_ID, engineId);
        if (!bufferDevice.equals("cpu") && !bufferDevice.equals("cuda")) {
            throw ConfigException.unsupported(BUFFER_DEVICE, bufferDevice, "cpu, cuda");
        }
        Require.atLeast(BUFFER_SIZE, bufferSize, 0);
        if (connector.isPresent() && role.isEmpty()) {
            throw new ConfigException(
                    ROLE, "Please specify kv_role when kv_connector is set, supported roles are " + KvRole.supported());
        }
        Require.atLeast(PARALLEL_SIZE, parallelSize, 1);
        Require.atLeast(RANK, rank.orElse(0), 0);
        if (rank.isPresent() && rank.getAsInt() >= parallelSize) {
            throw new ConfigException(
                    RANK, "is " + rank.getAsInt() + ", must be less than kv_parallel_size=" + parallelSize);
        }
        requireText(IP, ip);
        Require.port(PORT, port);
        modulePath.ifPresent(path -> {
            if (path.isBlank()) {
                throw new ConfigException(MODULE_PATH, "kv_connector_module_path cannot be an empty string.");
            }
        });
    }

    /** No connector: KV caches stay in their instance. */
    public static KvTransferConfig none() {
        return fromJson(JsonFields.empty(""));
    }

    /** A configuration to be completed in code; a field that is not set has its default. */
    public static Builder builder(String connector, KvRole role) {
        return new Builder(connector, role);
    }

    /**
     * Reads vLLM's JSON form. Fields that are absent or {@code null} have their defaults.
     *
     * @throws ConfigException if a field is unknown, has the wrong type or a value that is not allowed
     */
    public static KvTransferConfig fromJson(JsonFields given) {
        for (String name : given.names()) {
            if (!NAMES.contains(name)) {
                throw new ConfigException(given.field(name), "unknown field" + suggestion(name));
            }
        }
        JsonFields json = given.withDefaults(FIELDS);
        return new KvTransferConfig(
                json.string(CONNECTOR),
                json.string(ENGINE_ID).orElseGet(() -> UUID.randomUUID().toString()),
                json.string(BUFFER_DEVICE).orElseThrow(),
                json.integer(BUFFER_SIZE).orElseThrow(),
                json.string(ROLE).map(KvRole::parse),
                json.integerAtLeast(RANK, 0).map(OptionalInt::of).orElse(OptionalInt.empty()),
                json.integerAtLeast(PARALLEL_SIZE, 1).orElseThrow(),
                json.string(IP).orElseThrow(),
                json.integerAtLeast(PORT, 0).orElseThrow(),
                JsonFields.of(
                        EXTRA,
                        json.object(EXTRA).orElse(JsonFields.empty(EXTRA)).toJson()),
                json.string(MODULE_PATH),
                json.bool(PERMUTE_LOCAL_KV).orElseThrow(),
                json.string(LOAD_FAILURE_POLICY).map(LoadFailurePolicy::parse).orElseThrow(),
                json.string(VERIFY_KV).map(VerifyKv::parse).orElseThrow());
    }

    /**
     * Takes {@code --kv-transfer-config} out of a command line, in all forms of {@link JsonObjectArgs}.
     *
     * @throws ConfigException if an option lacks its value, or the configuration is wrong
     */
    public static JsonObjectArgs<KvTransferConfig> fromArgs(List<String> args) {
        return JsonObjectArgs.parse("--kv-transfer-config", KvTransferConfig::isText, args)
                .as(object -> fromJson(JsonFields.of("", object)));
    }

    /** vLLM's JSON form, defaults written out; {@link #fromJson} gives an equal configuration. */
    public ObjectNode toJson() {
        ObjectNode json = JsonNodeFactory.instance.objectNode();
        connector.ifPresent(name -> json.put(CONNECTOR, name));
        json.put(ENGINE_ID, engineId);
        json.put(BUFFER_DEVICE, bufferDevice);
        json.put(BUFFER_SIZE, bufferSize);
        role.ifPresent(value -> json.put(ROLE, value.configName()));
        rank.ifPresent(value -> json.put(RANK, value));
        json.put(PARALLEL_SIZE, parallelSize);
        json.put(IP, ip);
        json.put(PORT, port);
        json.set(EXTRA, extra.toJson());
        modulePath.ifPresent(path -> json.put(MODULE_PATH, path));
        json.put(PERMUTE_LOCAL_KV, permuteLocalKv);
        json.put(LOAD_FAILURE_POLICY, loadFailurePolicy.configName());
        json.put(VERIFY_KV, verifyKv.configName());
        return json;
    }

    /**
     * The same with one of the connector's own settings.
     *
     * @param value as {@link Builder#extra} takes it
     */
    public KvTransferConfig withExtra(String name, Object value) {
        ObjectNode json = toJson();
        json.withObjectProperty(EXTRA).set(name, Builder.tree(EXTRA + "." + name, value));
        return fromJson(JsonFields.of("", json));
    }

    /** Whether connectors that can do without host memory reach a device's pool directly. */
    public boolean buffersOnDevice() {
        return bufferDevice.equals("cuda");
    }

    public boolean isProducer() {
        return connector.isPresent() && role.map(KvRole::produces).orElse(false);
    }

    public boolean isConsumer() {
        return connector.isPresent() && role.map(KvRole::consumes).orElse(false);
    }

    /** True if the field holds text, so that {@code 42} on a command line is text too. */
    private static boolean isText(String field) {
        return switch (field) {
            case CONNECTOR, ENGINE_ID, BUFFER_DEVICE, ROLE, IP, MODULE_PATH, LOAD_FAILURE_POLICY, VERIFY_KV -> true;
            default -> false;
        };
    }

    private static void requireText(String field, String value) {
        if (value.isBlank()) {
            throw new ConfigException(field, "must not be empty");
        }
    }

    private static String suggestion(String name) {
        String nearest = NAMES.getFirst();
        for (String field : NAMES) {
            if (editDistance(name, field) < editDistance(name, nearest)) {
                nearest = field;
            }
        }
        return editDistance(name, nearest) <= Math.max(2, name.length() / 2)
                ? "; did you mean " + nearest + "?"
                : "; known: " + String.join(", ", NAMES);
    }

    /** Insertions, deletions and substitutions that turn {@code a} into {@code b} (Levenshtein). */
    private static int editDistance(String a, String b) {
        int[] row = new int[b.length() + 1];
        for (int j = 0; j <= b.length(); j++) {
            row[j] = j;
        }
        for (int i = 1; i <= a.length(); i++) {
            int diagonal = row[0];
            row[0] = i;
            for (int j = 1; j <= b.length(); j++) {
                int substituted = diagonal + (a.charAt(i - 1) == b.charAt(j - 1) ? 0 : 1);
                diagonal = row[j];
                row[j] = Math.min(substituted, 1 + Math.min(row[j], row[j - 1]));
            }
        }
        return row[b.length()];
    }

    /** Collects a configuration; {@link #build} checks it. */
    public static final class Builder {
        private final ObjectNode fields = JsonNodeFactory.instance.objectNode();
        private final ObjectNode extra = fields.putObject(EXTRA);

        private Builder(String connector, KvRole role) {
            fields.put(CONNECTOR, connector).put(ROLE, role.configName());
        }

        public Builder engineId(String value) {
            return set(ENGINE_ID, value);
        }

        public Builder bufferDevice(String value) {
            return set(BUFFER_DEVICE, value);
        }

        /** The size in bytes. */
        public Builder bufferSize(long value) {
            return set(BUFFER_SIZE, value);
        }

        public Builder rank(int value) {
            return set(RANK, value);
        }

        public Builder parallelSize(int value) {
            return set(PARALLEL_SIZE, value);
        }

        public Builder ip(String value) {
            return set(IP, value);
        }

        public Builder port(int value) {
            return set(PORT, value);
        }

        public Builder modulePath(String value) {
            return set(MODULE_PATH, value);
        }

        public Builder permuteLocalKv(boolean value) {
            return set(PERMUTE_LOCAL_KV, value);
        }

        public Builder loadFailurePolicy(LoadFailurePolicy value) {
            return set(LOAD_FAILURE_POLICY, value.configName());
        }

        public Builder verifyKv(VerifyKv value) {
            return set(VERIFY_KV, value.configName());
        }

        private Builder set(String field, Object value) {
            fields.set(field, tree(field, value));
            return this;
        }

        /**
         * One of the connector's own settings.
         *
         * @param value a string, number, boolean, path, Jackson tree, or a list or map (with text keys) of these
         * @throws ConfigException if it is something else
         */
        public Builder extra(String name, Object value) {
            extra.set(name, tree(EXTRA + "." + name, value));
            return this;
        }

        /** @throws ConfigException if a value is out of range or values contradict each other */
        public KvTransferConfig build() {
            return fromJson(JsonFields.of("", fields));
        }

        private static JsonNode tree(String field, Object value) {
            JsonNodeFactory nodes = JsonNodeFactory.instance;
            return switch (value) {
                case JsonNode node -> node.deepCopy();
                case String text -> nodes.stringNode(text);
                case Path path -> nodes.stringNode(path.toString());
                case Boolean bool -> nodes.booleanNode(bool);
                case Integer number -> nodes.numberNode(number.intValue());
                case Long number -> nodes.numberNode(number.longValue());
                case Double number -> nodes.numberNode(number.doubleValue());
                case List<?> list -> {
                    ArrayNode array = nodes.arrayNode();
                    list.forEach(element -> array.add(tree(field, element)));
                    yield array;
                }
                case Map<?, ?> map -> {
                    ObjectNode object = nodes.objectNode();
                    map.forEach((key, element) -> object.set(String.valueOf(key), tree(field, element)));
                    yield object;
                }
                default ->
                    throw new ConfigException(
                            field, "cannot hold a value of " + value.getClass().getName());
            };
        }
    }
}
