package baton.connectors.nixl;

import baton.connectors.onesided.TransferMode;
import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.JsonFields;
import baton.kv.KvLayout;
import baton.kv.Setting;
import baton.kv.Sha256;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import tools.jackson.databind.JsonNode;

/**
 * {@code vllm_compat}: the options of vLLM instances that hand over to this one and from it, for the hash that their handshake compares
 * ({@code nixl/metadata.py:compute_nixl_compatibility_hash} of vLLM 0.32 and 0.33).
 *
 * @param versions the field's {@code vllm.__version__}, with the suffix of a build if it has one; of instances of several versions all
 * @param model {@code model}: the value of {@code --model}, to the letter
 * @param attentionBackend {@code attn_backend_name}
 * @param cacheDtype {@code cache_dtype}, of {@code --kv-cache-dtype}
 * @param dtype of {@code --dtype}, by torch's name; empty: the KV cache's type
 * @param hybridManager {@code is_hma_enabled}
 * @param kvHeads {@code num_kv_heads}; empty: the KV cache's. Of a model with latents it is that of config.json
 * @param port {@code side_channel_port} of vLLM instances of several versions, at which an asking instance is asked for its hash
 */
public record VllmCompatibility(
        List<String> versions,
        String model,
        String attentionBackend,
        String cacheDtype,
        Optional<String> dtype,
        boolean hybridManager,
        Optional<Integer> kvHeads,
        int port) {
    /** Group 1 is the number of a release before 1.0. */
    private static final Pattern RELEASE = Pattern.compile("0\\.(\\d{1,6})(\\D.*)?");

    private static final String PATH = "kv_connector_extra_config.vllm_compat.";
    private static final String VERSION = "version";
    private static final String MODEL = "model";
    private static final String ATTENTION = "attn_backend_name";
    private static final String CACHE_DTYPE = "cache_dtype";
    private static final String DTYPE = "dtype";
    private static final String HYBRID = "is_hma_enabled";
    private static final String KV_HEADS = "num_kv_heads";
    private static final String PORT = "side_channel_port";

    /** All of them. */
    static final List<Setting> SETTINGS = List.of(
            Setting.absent(
                    VERSION,
                    "required",
                    "`vllm.__version__`, such as `0.32.0`; of instances of several versions `[\"0.32.0\", \"0.33.0\"]`."),
            Setting.absent(MODEL, "required", "The value of `--model`, to the letter."),
            Setting.absent(
                    ATTENTION,
                    "required",
                    "vLLM's log names it: `FLASH_ATTN`, `FLASHINFER`, `TRITON_ATTN`, `CPU_ATTN`."),
            Setting.of(CACHE_DTYPE, "auto", "Of vLLM's `--kv-cache-dtype`."),
            Setting.absent(
                    DTYPE,
                    "that of the KV cache",
                    "vLLM's `--dtype` where its KV cache has another type, such as `bfloat16` beside `fp8`."),
            Setting.of(HYBRID, true, "Whether vLLM's hybrid KV cache manager is on."),
            Setting.absent(
                    KV_HEADS,
                    "the KV cache's",
                    "Of a model with latent attention, such as DeepSeek-V3: `num_key_value_heads` of its config.json."),
            Setting.of(
                    PORT,
                    5600,
                    "With several versions: where an instance that asks is asked for its own hash, its `VLLM_NIXL_SIDE_CHANNEL_PORT`."));

    /** @throws ConfigException if a value is missing or unknown */
    static VllmCompatibility of(JsonFields given) {
        given.requireKnown(SETTINGS);
        JsonFields fields = given.withDefaults(SETTINGS);
        return new VllmCompatibility(
                versions(fields),
                need(fields, MODEL),
                need(fields, ATTENTION),
                fields.string(CACHE_DTYPE).orElseThrow(),
                fields.string(DTYPE)
                        .map(name -> DType.parse(fields.field(DTYPE), name).torchName()),
                fields.bool(HYBRID).orElseThrow(),
                fields.integerAtLeast(KV_HEADS, 1),
                fields.integer(PORT, 1, 65_535).orElseThrow());
    }

    private static List<String> versions(JsonFields fields) {
        if (fields.value(VERSION).filter(JsonNode::isArray).isEmpty()) {
            return List.of(need(fields, VERSION));
        }
        List<String> all = fields.strings(VERSION).orElseThrow();
        if (all.isEmpty() || Set.copyOf(all).size() < all.size()) {
            throw new ConfigException(fields.field(VERSION), "is " + all + ", must name each version once");
        }
        return all;
    }

    /** {@code nixl_connector_version}. */
    private static int connectorVersion(String version) {
        Matcher release = RELEASE.matcher(version);
        return release.matches() && Integer.parseInt(release.group(1)) >= 33 ? 15 : 14;
    }

    private static String need(JsonFields fields, String name) {
        return fields.string(name)
                .filter(value -> !value.isBlank())
                .orElseThrow(() -> new ConfigException(fields.field(name), "is missing, must be vLLM's value"));
    }

    /**
     * The hash of each version in hexadecimal.
     *
     * @throws ConfigException if vLLM would have another value than the default of a factor that is missing
     */
    List<String> hashes(KvLayout model, TransferMode mode) {
        if (model.dtype() == DType.F8_E4M3 && (dtype.isEmpty() || cacheDtype.equals("auto"))) {
            throw new ConfigException(
                    PATH + (dtype.isEmpty() ? DTYPE : CACHE_DTYPE),
                    "is missing beside a KV cache of fp8; %s and %s must be vLLM's --dtype and --kv-cache-dtype"
                            .formatted(DTYPE, CACHE_DTYPE));
        }
        if (model.dtype() == DType.F8_E4M3 && attentionBackend.equals(VllmRank.CPU_BACKEND)) {
            throw new ConfigException(
                    PATH + ATTENTION,
                    "is CPU_ATTN beside a KV cache of fp8, which a vLLM on a CPU cannot hand over and ends by reading;"
                            + " --kv-cache-dtype must be another on both sides");
        }
        if (model.latent() && kvHeads.isEmpty()) {
            throw new ConfigException(PATH + KV_HEADS, "is missing; must be num_key_value_heads of config.json");
        }
        return versions.stream().map(version -> hash(version, model, mode)).toList();
    }

    private String hash(String version, KvLayout model, TransferMode mode) {
        Map<String, String> factors = new TreeMap<>();
        factors.put("attn_backend_name", quoted(attentionBackend));
        factors.put("cache_dtype", quoted(cacheDtype));
        factors.put("dtype", quoted("torch." + dtype.orElse(model.dtype().torchName())));
        factors.put("head_size", Integer.toString(model.headDim()));
        factors.put("is_hma_enabled", Boolean.toString(hybridManager));
        factors.put("model", quoted(this.model));
        factors.put("nixl_connector_version", Integer.toString(connectorVersion(version)));
        factors.put("num_hidden_layers", Integer.toString(model.layers()));
        factors.put("num_kv_heads", Integer.toString(kvHeads.orElse(model.kvHeads())));
        factors.put("speculative_config", "null");
        factors.put("transfer_mode", quoted(mode.label()));
        factors.put("vllm_version", quoted(version));
        String json = factors.entrySet().stream()
                .map(factor -> quoted(factor.getKey()) + ": " + factor.getValue())
                .collect(Collectors.joining(", ", "{", "}"));
        return HexFormat.of().formatHex(Sha256.of(json));
    }

    /** Quotes a text as Python's json module does, everything but ASCII escaped. */
    private static String quoted(String text) {
        StringBuilder json = new StringBuilder("\"");
        for (int i = 0; i < text.length(); i++) {
            char each = text.charAt(i);
            Optional<String> escape = switch (each) {
                case '"' -> Optional.of("\\\"");
                case '\\' -> Optional.of("\\\\");
                case '\n' -> Optional.of("\\n");
                case '\r' -> Optional.of("\\r");
                case '\t' -> Optional.of("\\t");
                case '\b' -> Optional.of("\\b");
                case '\f' -> Optional.of("\\f");
                default -> each < ' ' || each > '~' ? Optional.of("\\u%04x".formatted((int) each)) : Optional.empty();
            };
            escape.ifPresentOrElse(json::append, () -> json.append(each));
        }
        return json.append('"').toString();
    }
}
