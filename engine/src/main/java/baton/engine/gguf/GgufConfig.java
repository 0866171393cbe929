package baton.engine.gguf;

import baton.engine.gguf.GgufFile.Tensor;
import baton.kv.ConfigException;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

/**
 * The config.json that a GGUF file was made of. A key that changes the computation and that no supported architecture has becomes the
 * field of config.json with the same meaning, by which the model is refused.
 */
final class GgufConfig {
    private static final String EPSILON = "attention.layer_norm_rms_epsilon";
    /** The epsilon of norms that subtract the mean. */
    private static final String CENTERED_EPSILON = "attention.layer_norm_epsilon";

    private static final Map<String, String> INTEGERS = Map.ofEntries(
            Map.entry("context_length", "max_position_embeddings"),
            Map.entry("embedding_length", "hidden_size"),
            Map.entry("block_count", "num_hidden_layers"),
            Map.entry("feed_forward_length", "intermediate_size"),
            Map.entry("attention.head_count", "num_attention_heads"),
            Map.entry("attention.head_count_kv", "num_key_value_heads"),
            Map.entry("attention.key_length", "head_dim"),
            Map.entry("attention.sliding_window", "sliding_window"),
            Map.entry("attention.q_lora_rank", "q_lora_rank"),
            Map.entry("attention.kv_lora_rank", "kv_lora_rank"),
            Map.entry("leading_dense_block_count", "first_k_dense_replace"),
            Map.entry("expert_count", "num_local_experts"),
            Map.entry("expert_used_count", "num_experts_per_tok"),
            Map.entry("expert_feed_forward_length", "moe_intermediate_size"),
            Map.entry("expert_shared_feed_forward_length", "shared_expert_intermediate_size"),
            Map.entry("expert_shared_count", "n_shared_experts"),
            Map.entry("expert_group_count", "n_group"),
            Map.entry("expert_group_used_count", "topk_group"));

    private static final Map<String, String> NUMBERS = Map.ofEntries(
            Map.entry(EPSILON, "rms_norm_eps"),
            Map.entry("rope.freq_base", "rope_theta"),
            Map.entry("rope.freq_base_swa", "rope_local_base_freq"),
            Map.entry("attn_logit_softcapping", "attn_logit_softcapping"),
            Map.entry("final_logit_softcapping", "final_logit_softcapping"),
            Map.entry("attention.scale", "attention_multiplier"),
            Map.entry("attention.temperature_scale", "attn_temperature_tuning"),
            Map.entry("attention.clamp_kqv", "clip_qkv"),
            Map.entry("attention.max_alibi_bias", "alibi"),
            Map.entry("embedding_scale", "embedding_multiplier"),
            Map.entry("residual_scale", "residual_multiplier"),
            Map.entry("logit_scale", "logit_scale"),
            Map.entry("expert_weights_scale", "routed_scaling_factor"));

    private static final Pattern DENSE_GATE = Pattern.compile("model\\.layers\\.(\\d{1,9})\\.mlp\\.gate_proj\\.weight");

    private static final String PATTERN = "attention.sliding_window_pattern";

    private static final Set<String> REQUIRED =
            Set.of("context_length", "embedding_length", "block_count", "feed_forward_length", "attention.head_count");

    /** Read here one by one, or without an effect. */
    private static final Set<String> OTHERS = Set.of(
            "vocab_size",
            PATTERN,
            "attention.value_length",
            "attention.key_length_swa",
            "attention.value_length_swa",
            CENTERED_EPSILON,
            "rope.dimension_count",
            "rope.dimension_count_swa",
            "rope.scale_linear",
            "rope.scaling.type",
            "rope.scaling.factor",
            "rope.scaling.original_context_length",
            "rope.scaling.attn_factor",
            "rope.scaling.yarn_attn_factor",
            "rope.scaling.yarn_beta_fast",
            "rope.scaling.yarn_beta_slow",
            "rope.scaling.yarn_ext_factor",
            "rope.scaling.finetuned",
            "tensor_data_layout");

    private static final String KEYS_OF_EACH_HEAD = "attention.key_length_mla";
    private static final String VALUES_OF_EACH_HEAD = "attention.value_length_mla";
    private static final String GATING = "expert_gating_func";
    private static final String NORMALISED = "expert_weights_norm";
    private static final String LOG_MULTIPLIER = "rope.scaling.yarn_log_multiplier";

    /** The keys of {@link #OTHERS} in DeepSeek's models. */
    private static final Set<String> OF_DEEPSEEK =
            Set.of(KEYS_OF_EACH_HEAD, VALUES_OF_EACH_HEAD, GATING, NORMALISED, LOG_MULTIPLIER);

    /** Tokens that end a turn, for files that do not name any. */
    private static final Set<String> ENDS_OF_TURNS =
            Set.of("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>");

    /** The tokens that end a turn of gpt-oss, where the token "end" is between the channels of an answer. */
    private static final Set<String> ENDS_OF_HARMONY = Set.of("<|return|>", "<|call|>");

    /** Layers of the Gemmas 2 and 3 that scale scores by the part of the hidden size of one head. */
    private static final int LAYERS_OF_GEMMA2_27B = 46;

    private static final int LAYERS_OF_GEMMA3_27B = 62;

    private final GgufModel model;
    private final GgufFile file;
    private final GgufArchitecture architecture;

    GgufConfig(GgufModel model) {
        this.model = model;
        this.file = model.metadata();
        this.architecture = GgufArchitecture.of(file);
    }

    int heads() {
        return positive("attention.head_count");
    }

    int kvHeads() {
        return file.integer(key("attention.head_count_kv")).orElseGet(this::heads);
    }

    /** The number of experts of each layer that has some. */
    int experts() {
        return positive("expert_count");
    }

    ObjectNode json() {
        Set<String> required = new TreeSet<>(REQUIRED);
        boolean centersNorms = architecture == GgufArchitecture.STARCODER2 || architecture == GgufArchitecture.NEMOTRON;
        required.add(centersNorms ? CENTERED_EPSILON : EPSILON);
        for (String name : required) {
            if (!file.keys().contains(key(name))) {
                throw file.damaged(key(name), "is missing");
            }
        }
        ObjectNode json = JsonNodeFactory.instance.objectNode();
        INTEGERS.forEach((name, field) -> file.integer(key(name)).ifPresent(value -> json.put(field, value)));
        NUMBERS.forEach((name, field) -> file.number(key(name)).ifPresent(value -> json.put(field, value)));
        int heads = heads();
        int hidden = positive("embedding_length");
        boolean isLatent = architecture == GgufArchitecture.DEEPSEEK2;
        int headDim = isLatent
                ? positive("rope.dimension_count")
                : file.integer(key("attention.key_length")).orElse(hidden / heads);
        json.put("num_key_value_heads", kvHeads());
        json.put("head_dim", headDim);
        json.put("vocab_size", vocabularySize());
        json.put("tie_word_embeddings", !has("lm_head.weight"));
        json.put("dtype", dtype());
        file.integer(key("attention.value_length"))
                .filter(length -> length != headDim && !isLatent)
                .ifPresent(length -> {
                    throw file.damaged(
                            key("attention.value_length"),
                            "is %d, must be %d, as attention.key_length".formatted(length, headDim));
                });
        file.integer(key("rope.dimension_count"))
                .filter(rotated -> rotated != headDim)
                .ifPresent(rotated -> json.put("partial_rotary_factor", (double) rotated / headDim));
        windows(json);
        rotation(json);
        ofFamily(json, hidden / heads, headDim);
        ends(json);
        Set<String> known = Stream.of(
                        INTEGERS.keySet(), NUMBERS.keySet(), OTHERS, isLatent ? OF_DEEPSEEK : Set.<String>of())
                .flatMap(Set::stream)
                .map(this::key)
                .collect(Collectors.toSet());
        // Checkpoint warns of fields that it does not know.
        file.keys().stream()
                .filter(key -> key.startsWith(key("")) && !known.contains(key))
                .forEach(key -> json.put(key, true));
        return json;
    }

    private void ofFamily(ObjectNode json, int hiddenOfHead, int headDim) {
        String family = architecture.family();
        json.put("attention_bias", has("model.layers.0.self_attn.o_proj.bias"));
        json.put("mlp_bias", has("model.layers.0.mlp.down_proj.bias"));
        boolean hasWindow = json.path("sliding_window").asInt(0) > 0;
        switch (architecture) {
            case LLAMA -> {
                if (json.path("num_local_experts").asInt(0) > 0) {
                    family = "MixtralForCausalLM";
                } else if (hasWindow) {
                    family = "MistralForCausalLM";
                }
            }
            case GEMMA2, GEMMA3 -> {
                double scale = json.path("attention_multiplier").asDouble(0);
                json.remove("attention_multiplier");
                int largest = architecture == GgufArchitecture.GEMMA2 ? LAYERS_OF_GEMMA2_27B : LAYERS_OF_GEMMA3_27B;
                int ofHead = json.path("num_hidden_layers").asInt() == largest ? hiddenOfHead : headDim;
                json.put("query_pre_attn_scalar", scale > 0 ? Math.rint(1000 / (scale * scale)) / 1000 : ofHead);
            }
            case QWEN2 -> json.remove("attention_bias");
            case QWEN2MOE, QWEN3MOE -> {
                json.put("qkv_bias", hasQueryBias());
                json.put("norm_topk_prob", architecture == GgufArchitecture.QWEN3MOE);
                ArrayNode dense = json.putArray("mlp_only_layers");
                model.names().stream()
                        .map(DENSE_GATE::matcher)
                        .filter(Matcher::matches)
                        .forEach(name -> dense.add(Integer.parseInt(name.group(1))));
            }
            // The width of experts is feed_forward_length.
            case GPT_OSS -> json.remove("moe_intermediate_size");
            case GLM4 -> json.put("attention_bias", hasQueryBias());
            case GRANITE -> {
                rename(json, "logit_scale", "logits_scaling");
                if (!file.bool(key("rope.scaling.finetuned")).orElse(true)) {
                    throw file.damaged(key("rope.scaling.finetuned"), "is false, must be true: layers rotate");
                }
            }
            case OLMO2 -> {
                if (hasWindow) {
                    family = "Olmo3ForCausalLM";
                    rotationsOfOlmo3(json);
                }
            }
            case STARCODER2 -> {
                file.number(key(CENTERED_EPSILON)).ifPresent(epsilon -> json.put("norm_epsilon", epsilon));
                json.put("use_bias", has("model.layers.0.self_attn.o_proj.bias"));
            }
            case NEMOTRON -> file.number(key(CENTERED_EPSILON)).ifPresent(epsilon -> json.put("norm_eps", epsilon));
            case DEEPSEEK2 -> {
                if (hasSigmoid()) {
                    family = "DeepseekV3ForCausalLM";
                }
                latent(json, headDim);
            }
            case QWEN3, PHI3, SMOLLM3 -> {}
        }
        json.putArray("architectures").add(family);
    }

    /** @param rotated elements of a head */
    private void latent(ObjectNode json, int rotated) {
        rename(json, "num_local_experts", "n_routed_experts");
        int queries = file.integer(key(KEYS_OF_EACH_HEAD)).orElseGet(() -> positive("attention.key_length"));
        json.put("qk_rope_head_dim", rotated);
        json.put("qk_nope_head_dim", queries - rotated);
        json.put(
                "v_head_dim",
                file.integer(key(VALUES_OF_EACH_HEAD)).orElseGet(() -> positive("attention.value_length")));
        json.put("norm_topk_prob", file.bool(key(NORMALISED)).orElse(false));
        for (String field : List.of("q_lora_rank", "n_group", "topk_group")) {
            if (!json.has(field)) {
                json.putNull(field);
            }
        }
        if (!hasSigmoid()) {
            json.put("topk_method", json.path("n_group").asInt(1) > 1 ? "group_limited_greedy" : "greedy");
        }
    }

    /** Whether an expert's share is a sigmoid, and not a softmax. */
    private boolean hasSigmoid() {
        int function = file.integer(key(GATING)).orElse(1);
        if (function < 1 || function > 2) {
            throw file.damaged(key(GATING), "is %d, must be 1 (softmax) or 2 (sigmoid)".formatted(function));
        }
        return function == 2;
    }

    /** The layers with the window: each layer is true or false, or their period is a number. */
    private void windows(ObjectNode json) {
        if (!file.isArray(key(PATTERN))) {
            file.integer(key(PATTERN)).ifPresent(period -> json.put("sliding_window_pattern", period));
            return;
        }
        ArrayNode types = json.putArray("layer_types");
        for (boolean slides : file.bools(key(PATTERN)).orElseThrow()) {
            types.add(slides ? "sliding_attention" : "full_attention");
        }
    }

    /** Only layers without a window stretch their rotation. */
    private void rotationsOfOlmo3(ObjectNode json) {
        JsonNode scaling = json.remove("rope_scaling");
        JsonNode theta = json.remove("rope_theta");
        JsonNode ofWindows = json.remove("rope_local_base_freq");
        ObjectNode rotations = json.putObject("rope_parameters");
        ObjectNode full = scaling == null
                ? rotations.putObject("full_attention")
                : (ObjectNode) rotations.set("full_attention", scaling).path("full_attention");
        if (theta != null) {
            full.set("rope_theta", theta);
            rotations.putObject("sliding_attention").set("rope_theta", ofWindows == null ? theta : ofWindows);
        }
    }

    private static void rename(ObjectNode json, String from, String to) {
        JsonNode value = json.remove(from);
        if (value != null) {
            json.set(to, value);
        }
    }

    private boolean hasQueryBias() {
        return has("model.layers.0.self_attn.q_proj.bias");
    }

    private void rotation(ObjectNode json) {
        Optional<float[]> longFactors = model.ofConfig("rope_factors_long.weight");
        Optional<float[]> factors = model.ofConfig("rope_freqs.weight");
        Optional<Double> linear = file.number(key("rope.scale_linear")).filter(factor -> factor != 1);
        String type = longFactors.isPresent()
                ? "longrope"
                : file.string(key("rope.scaling.type")).orElse(linear.isPresent() ? "linear" : "none");
        if (type.equals("none") && factors.isEmpty()) {
            return;
        }
        ObjectNode scaling = json.putObject("rope_scaling");
        scaling.put("rope_type", type);
        file.number(key("rope.scaling.factor")).or(() -> linear).ifPresent(factor -> scaling.put("factor", factor));
        file.integer(key("rope.scaling.original_context_length"))
                .ifPresent(original -> scaling.put("original_max_position_embeddings", original));
        for (String name : List.of("attn_factor", "yarn_ext_factor")) {
            file.number(key("rope.scaling." + name))
                    .filter(factor -> factor != 1 && !type.equals("longrope"))
                    .ifPresent(factor -> {
                        throw file.damaged(key("rope.scaling." + name), "is " + factor + ", must be 1");
                    });
        }
        switch (type) {
            case "yarn" -> {
                file.number(key("rope.scaling.yarn_beta_fast")).ifPresent(beta -> scaling.put("beta_fast", beta));
                file.number(key("rope.scaling.yarn_beta_slow")).ifPresent(beta -> scaling.put("beta_slow", beta));
                file.number(key("rope.scaling.yarn_attn_factor"))
                        .filter(factor -> factor != 1)
                        .ifPresent(factor -> scaling.put("attention_factor", factor));
                if (architecture == GgufArchitecture.GPT_OSS) {
                    scaling.put("truncate", false);
                }
                if (architecture == GgufArchitecture.DEEPSEEK2) {
                    // A tenth of mscale_all_dim, which mscale equals in all of these models.
                    file.number(key(LOG_MULTIPLIER))
                            .map(tenth -> Math.rint(tenth * 1e7) / 1e6)
                            .ifPresent(scale -> scaling.put("mscale", scale).put("mscale_all_dim", scale));
                }
            }
            case "longrope" -> {
                put(scaling.putArray("long_factor"), longFactors.orElseThrow());
                model.ofConfig("rope_factors_short.weight")
                        .ifPresent(each -> put(scaling.putArray("short_factor"), each));
            }
            default -> {}
        }
        factors.ifPresent(each -> llama3(json, scaling, type, each));
    }

    private static void put(ArrayNode array, float[] values) {
        for (float value : values) {
            array.add(Double.parseDouble(Float.toString(value)));
        }
    }

    /** The scaling of Llama 3.1 and later; files have only the divisor of each frequency. */
    private void llama3(ObjectNode json, ObjectNode scaling, String type, float[] divisors) {
        double low = 1;
        double high = 4;
        double original = 8192;
        double factor = divisors.length == 0 ? 1 : divisors[divisors.length - 1];
        double theta = json.path("rope_theta").asDouble(10000);
        boolean isKnown = type.equals("none");
        for (int i = 0; i < divisors.length; i++) {
            double turns = original / (2 * Math.PI) * Math.pow(theta, -(double) i / divisors.length);
            double smooth = Math.clamp((turns - low) / (high - low), 0, 1);
            double wanted = 1 / ((1 - smooth) / factor + smooth);
            isKnown &= Math.abs(divisors[i] - wanted) <= 1e-4 * wanted;
        }
        if (!isKnown || 2 * divisors.length != json.path("head_dim").asInt()) {
            throw file.damaged(
                    "rope_freqs.weight", "has other factors than Llama 3's, for 8192 positions with 1 and 4 turns");
        }
        scaling.put("rope_type", "llama3")
                .put("factor", factor)
                .put("low_freq_factor", low)
                .put("high_freq_factor", high)
                .put("original_max_position_embeddings", (int) original);
    }

    private void ends(ObjectNode json) {
        Set<Integer> ids = new LinkedHashSet<>();
        for (String name : List.of("eos", "eot", "eom")) {
            file.integer("tokenizer.ggml.%s_token_id".formatted(name)).ifPresent(ids::add);
        }
        if (!file.keys().contains("tokenizer.ggml.eot_token_id")) {
            List<String> tokens = file.strings("tokenizer.ggml.tokens").orElse(List.of());
            Set<String> ends = architecture == GgufArchitecture.GPT_OSS ? ENDS_OF_HARMONY : ENDS_OF_TURNS;
            for (int id = 0; id < tokens.size(); id++) {
                if (ends.contains(tokens.get(id))) {
                    ids.add(id);
                }
            }
        }
        ArrayNode array = json.putArray("eos_token_id");
        ids.forEach(array::add);
    }

    /** The type that holds the weights as the file has them; bf16 for packed ones. */
    private String dtype() {
        Set<GgufType> types = model.tensors().stream()
                .filter(tensor -> tensor.shape().size() > 1 && tensor.type() != GgufType.F32)
                .map(Tensor::type)
                .collect(Collectors.toSet());
        return types.isEmpty() ? "float32" : types.equals(Set.of(GgufType.F16)) ? "float16" : "bfloat16";
    }

    private long vocabularySize() {
        return model.tensor("model.embed_tokens.weight")
                .orElseThrow(() -> file.damaged("token_embd.weight", "is missing"))
                .shape()
                .getFirst();
    }

    private boolean has(String tensor) {
        return model.tensor(tensor).isPresent();
    }

    /** @throws ConfigException if it is missing or 0 */
    private int positive(String name) {
        return file.integer(key(name))
                .filter(value -> value > 0)
                .orElseThrow(() -> file.damaged(key(name), "must be a positive number"));
    }

    private String key(String name) {
        return architecture.key() + "." + name;
    }
}
