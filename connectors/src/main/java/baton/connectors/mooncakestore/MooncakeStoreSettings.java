package baton.connectors.mooncakestore;

import baton.connectors.bykey.StoreKey;
import baton.connectors.bykey.StorePolicy;
import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.Setting;
import baton.messages.PeerSecret;
import baton.store.mooncake.MooncakeConfig;
import baton.store.mooncake.MooncakeRest;
import baton.store.mooncake.MooncakeSetup;
import baton.store.mooncake.StoreLibrary;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import tools.jackson.databind.JsonNode;

/**
 * {@code kv_connector_extra_config} of the connector and its {@code mooncake.json}, by vLLM 0.32's names; those with {@code rest}, {@code
 * library}, {@code path}, {@code _seconds} and {@code local_buffer_size} in the first are Baton's.
 *
 * @param memoryBytes {@code local_buffer_size}: of values in this instance's memory
 * @param loads {@code enable_lookup}: whether the store is asked for prompts
 * @param stores whether blocks are stored: a consumer's are with {@code save_decode_cache} only
 * @param prefix {@code cache_prefix}
 * @param storeTensorShares {@code store_tp_size}, or the least common multiple of {@code prefill_tp_sizes}
 * @param key {@code kv_store_key_file}
 */
record MooncakeStoreSettings(
        StoreAccess access,
        long memoryBytes,
        boolean loads,
        boolean stores,
        StorePolicy policy,
        String prefix,
        OptionalInt storeTensorShares,
        Optional<PeerSecret> key) {
    static final String REST_URL = "store_rest_url";
    static final String STORE_TP = "store_tp_size";
    private static final String REST_CONNECTIONS = "store_rest_connections";
    private static final String LIBRARY = "mooncake_store_library";
    private static final String CONFIG_PATH = "mooncake_config_path";
    private static final String LOAD_TIMEOUT = "load_timeout_seconds";
    private static final String LOAD_ASYNC = "load_async";
    private static final String LOOKUP_ASYNC = "lookup_async";
    private static final String ENABLE_LOOKUP = "enable_lookup";
    private static final String CACHE_PREFIX = "cache_prefix";
    private static final String SAVE_DECODE = "save_decode_cache";
    private static final String PREFERRED_SEGMENT = "preferred_segment";
    private static final String RPC_PORT = "lookup_rpc_port";
    private static final String CROSS_LAYERS = "enable_cross_layers_blocks";
    private static final String GROUPS = "enable_group_semantics";
    private static final String MEMORY_POOL = "custom_mem_pool";
    private static final String STORE_TP_LCM = "enable_store_tp_lcm";
    private static final String PREFILL_TP_SIZES = "prefill_tp_sizes";

    private static final String CONFIG_VARIABLE = "MOONCAKE_CONFIG_PATH";
    private static final String HOSTNAME_VARIABLE = "MOONCAKE_REQUESTER_LOCAL_HOSTNAME";
    private static final String SEGMENT_VARIABLE = "MOONCAKE_PREFERRED_SEGMENT";

    /** All of them. */
    static final List<Setting> SETTINGS = List.of(
            Setting.absent(
                    REST_URL,
                    "none",
                    "`http://host:port` of a REST service of the store. Without it the C library is used."),
            Setting.absent(REST_CONNECTIONS, "4", "Requests for reading at once, and as many for writing."),
            Setting.absent(
                    LIBRARY,
                    "variable `" + StoreLibrary.VARIABLE + "`, else the system's loader",
                    "The file `libmooncake_store.so`."),
            Setting.absent(
                    CONFIG_PATH, "variable `" + CONFIG_VARIABLE + "`", "`mooncake.json`; a REST service needs none."),
            Setting.absent(
                    MooncakeConfig.BUFFER,
                    "that of `mooncake.json`, else 4 GiB",
                    "Memory for values in front of the store, of all ranks together."),
            Setting.of(
                    LOAD_TIMEOUT,
                    2,
                    "The longest that a request waits for the store, and its answer until its prompt is stored."),
            Setting.of(ENABLE_LOOKUP, true, "`false`: the store is never asked, the instance only writes."),
            Setting.of(SAVE_DECODE, false, "`true`: outputs are stored too, and a `kv_consumer` stores."),
            StoreKey.SETTING,
            StorePolicy.TENANT_SETTING,
            Setting.of(CACHE_PREFIX, "", "Before all keys, for several deployments at one master."),
            Setting.absent(STORE_TP, "none", "The heads are divided among so many objects."),
            Setting.of(STORE_TP_LCM, false, "Likewise, by the least common multiple of `" + PREFILL_TP_SIZES + "`."),
            Setting.absent(PREFILL_TP_SIZES, "none", "Tensor parallel sizes of the instances that share objects."),
            Setting.absent(
                    PREFERRED_SEGMENT,
                    "variable `" + SEGMENT_VARIABLE + "`",
                    "Where objects are to be put; C library only."),
            Setting.of(LOAD_ASYNC, true, "No other."),
            Setting.absent(LOOKUP_ASYNC, "as if `true`", "Accepted: look-ups never hold up the scheduler."),
            Setting.absent(RPC_PORT, "none", "Accepted; has no effect."),
            Setting.of(CROSS_LAYERS, false, "No other."),
            Setting.of(GROUPS, false, "No other."),
            Setting.absent(MEMORY_POOL, "none", "No other: it is about memory of GPUs."));

    private static final Duration COPY_TIMEOUT = Duration.ofSeconds(30);
    private static final Duration CONNECT_TIMEOUT = Duration.ofSeconds(2);

    /** Keys that are counted by a filter, which is off. */
    private static final int TRACKED_KEYS = 1;

    /** Whether it does nothing but give the store memory. */
    boolean isCapacityOnly() {
        return !loads && !stores;
    }

    /**
     * @param environment of the process
     * @throws ConfigException if a setting cannot be used, or the library is needed and not there
     */
    static MooncakeStoreSettings of(KvTransferConfig config, Map<String, String> environment) {
        JsonFields extra = config.extra().withDefaults(SETTINGS);
        requireHonoured(extra);
        JsonFields variables = JsonFields.ofVariables(environment);
        Optional<String> path = extra.string(CONFIG_PATH).or(() -> variables.string(CONFIG_VARIABLE));
        Optional<MooncakeConfig> file = path.map(text -> MooncakeConfig.read(
                extra.value(CONFIG_PATH).isPresent() ? extra.field(CONFIG_PATH) : CONFIG_VARIABLE, text));
        boolean loads = extra.bool(ENABLE_LOOKUP).orElseThrow();
        boolean saveDecode = extra.bool(SAVE_DECODE).orElseThrow();
        boolean stores = config.role().map(KvRole::produces).orElse(true) || saveDecode;
        StoreAccess access = extra.string(REST_URL).isPresent()
                ? rest(extra, file, path, loads || stores)
                : library(config, extra, file, path, environment);
        long memory = MooncakeConfig.bytes(
                extra,
                MooncakeConfig.BUFFER,
                file.map(MooncakeConfig::bufferBytes).orElse(4L << 30));
        if (memory == 0) {
            throw new ConfigException(extra.field(MooncakeConfig.BUFFER), "is 0, must be more than 0");
        }
        OptionalInt shares = storeTensorShares(extra);
        Optional<PeerSecret> key = StoreKey.of(extra);
        if (key.isPresent() && shares.isPresent()) {
            throw new ConfigException(
                    extra.field(StoreKey.FILE),
                    "must be left out with " + STORE_TP + ": vLLM, which shares these objects, does not decrypt them");
        }
        return new MooncakeStoreSettings(
                access,
                memory,
                loads,
                stores,
                new StorePolicy(
                        !saveDecode,
                        0,
                        TRACKED_KEYS,
                        extra.seconds(LOAD_TIMEOUT, Double.MIN_VALUE, 3600).orElseThrow(),
                        true,
                        0,
                        StorePolicy.tenantShare(extra),
                        COPY_TIMEOUT),
                extra.string(CACHE_PREFIX).orElseThrow(),
                shares,
                key);
    }

    /** Settings with only one valid value here. */
    private static void requireHonoured(JsonFields extra) {
        extra.requireOnly(LOAD_ASYNC, true, "blocks are loaded beside the engine's steps");
        // Look-ups never block the scheduler, which is allowed in both cases.
        extra.bool(LOOKUP_ASYNC);
        extra.requireOnly(CROSS_LAYERS, false, "the names of vLLM's objects do not distinguish that layout");
        extra.requireOnly(GROUPS, false, "Mooncake's C library has no groups of objects");
        extra.value(MEMORY_POOL).filter(pool -> !pool.asString("").isEmpty()).ifPresent(pool -> {
            throw new ConfigException(
                    extra.field(MEMORY_POOL), "is " + pool + ", must be absent: it is about memory of GPUs");
        });
    }

    private static StoreAccess rest(
            JsonFields extra, Optional<MooncakeConfig> file, Optional<String> path, boolean isUsed) {
        if (extra.value(LIBRARY).isPresent()) {
            throw new ConfigException(
                    extra.field(LIBRARY), "is set and " + REST_URL + " too: the store is reached in one way");
        }
        if (extra.value(PREFERRED_SEGMENT).isPresent()) {
            throw new ConfigException(
                    extra.field(PREFERRED_SEGMENT), "cannot be chosen through " + REST_URL + ": leave it out");
        }
        String place = path.orElse("");
        if (file.isPresent() && file.get().embedded()) {
            throw new ConfigException(
                    place + "." + MooncakeConfig.MODE,
                    "is embedded: through " + REST_URL + " an instance gives the store no memory, so it must be"
                            + " standalone-store, with global_segment_size 0");
        }
        if (file.isPresent() && !file.get().tenant().equals(MooncakeConfig.DEFAULT_TENANT)) {
            throw tenant(place, file.get(), "the REST service has a tenant of its own");
        }
        if (!isUsed) {
            throw new ConfigException(
                    extra.field(REST_URL),
                    "is set, but this instance neither looks up nor stores, and gives no memory through it: set "
                            + ENABLE_LOOKUP + " or " + SAVE_DECODE + ", or leave the connector out");
        }
        String url = extra.string(REST_URL).orElseThrow();
        int connections = extra.integer(REST_CONNECTIONS, 1, 64).orElse(4);
        return new StoreAccess.Rest(MooncakeRest.at(extra.field(REST_URL), url, connections, CONNECT_TIMEOUT));
    }

    private static ConfigException tenant(String place, MooncakeConfig file, String why) {
        return new ConfigException(
                place + "." + MooncakeConfig.TENANT, "is '" + file.tenant() + "', must be default: " + why);
    }

    private static StoreAccess library(
            KvTransferConfig config,
            JsonFields extra,
            Optional<MooncakeConfig> file,
            Optional<String> path,
            Map<String, String> environment) {
        if (file.isEmpty()) {
            throw new ConfigException(
                    CONFIG_VARIABLE,
                    "is not set: it names mooncake.json, as does " + extra.field(CONFIG_PATH) + "; or "
                            + extra.field(REST_URL) + " names a REST service of the store");
        }
        MooncakeConfig mooncake = file.get();
        String place = path.orElse("");
        if (!mooncake.tenant().equals(MooncakeConfig.DEFAULT_TENANT)) {
            throw tenant(place, mooncake, "Mooncake's C library has no tenants");
        }
        if (mooncake.masterServerAddress().isEmpty()) {
            throw new ConfigException(place + "." + MooncakeConfig.MASTER, "is empty, must be host:port");
        }
        if (extra.value(REST_CONNECTIONS).isPresent()) {
            throw new ConfigException(extra.field(REST_CONNECTIONS), "is set without " + REST_URL);
        }
        Optional<String> segment = extra.string(PREFERRED_SEGMENT).map(String::strip);
        if (segment.isPresent() && segment.get().isEmpty()) {
            throw new ConfigException(extra.field(PREFERRED_SEGMENT), "is empty, must be a host:port, or absent");
        }
        JsonFields variables = JsonFields.ofVariables(environment);
        Optional<String> preferred = segment.or(() -> variables.string(SEGMENT_VARIABLE));
        MooncakeSetup setup = new MooncakeSetup(
                variables.string(HOSTNAME_VARIABLE).orElse(config.ip()),
                mooncake.metadataServer(),
                mooncake.masterServerAddress(),
                mooncake.segmentBytes(),
                mooncake.protocol(),
                mooncake.deviceName(),
                preferred.map(List::of).orElse(List.of()));
        return switch (StoreLibrary.find(extra.path(LIBRARY), environment)) {
            case StoreLibrary.Found found -> new StoreAccess.Library(found, setup);
            case StoreLibrary.Absent absent -> throw new ConfigException(extra.field(LIBRARY), absent.reason());
        };
    }

    private static OptionalInt storeTensorShares(JsonFields extra) {
        if (!extra.bool(STORE_TP_LCM).orElseThrow()) {
            return extra.integerAtLeast(STORE_TP, 1).map(OptionalInt::of).orElse(OptionalInt.empty());
        }
        Optional<JsonNode> sizes = extra.value(PREFILL_TP_SIZES);
        long multiple = 1;
        boolean valid =
                sizes.isPresent() && sizes.get().isArray() && !sizes.get().isEmpty();
        if (valid) {
            for (JsonNode size : sizes.get()) {
                long each = size.isIntegralNumber() ? size.asLong() : 0;
                valid &= each >= 1 && each <= 1024 && multiple <= 1024;
                multiple = valid ? multiple / gcd(multiple, each) * each : multiple;
            }
        }
        if (!valid) {
            throw new ConfigException(
                    extra.field(PREFILL_TP_SIZES),
                    "is " + sizes.map(JsonNode::toString).orElse("absent")
                            + ", must be an array of sizes from 1 to 1024 with " + STORE_TP_LCM);
        }
        return OptionalInt.of(Math.toIntExact(multiple));
    }

    private static long gcd(long a, long b) {
        return b == 0 ? a : gcd(b, a % b);
    }
}
