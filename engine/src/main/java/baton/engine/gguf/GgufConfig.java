package baton.engine.gguf;

import baton.engine.gguf.GgufFile.Tensor;
import baton.kv.ConfigException;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

/**
 * The config.json that a GGUF file was made of. A key that changes the computation and that no supported architecture has becomes the
 * field of config.json with the same meaning, by which the model is refused.
 */
final class GgufConfig {
    private static final Map<String, String> INTEGERS = Map.of(
            "context_length", "max_position_embeddings",
            "embedding_length", "hidden_size",
            "block_count", "num_hidden_layers",
            "feed_forward_length", "intermediate_size",
            "attention.head_count", "num_attention_heads",
            "attention.head_count_kv", "num_key_value_heads",
            "attention.key_length", "head_dim",
            "attention.sliding_window", "sliding_window",
            "attention.sliding_window_pattern", "sliding_window_pattern",
            "expert_count", "num_local_experts");

    private static final Map<String, String> NUMBERS = Map.ofEntries(
            Map.entry("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
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
            Map.entry("logit_scale", "logit_scale"));

    private static final Set<String> REQUIRED = Set.of(
            "context_length",
            "embedding_length",
            "block_count",
            "feed_forward_length",
            "attention.head_count",
            "attention.layer_norm_rms_epsilon");

    /** Read here one by one, or without an effect. */
    private static final Set<String> OTHERS = Set.of(
            "vocab_size",
            "attention.value_length",
            "attention.key_length_swa",
            "attention.value_length_swa",
            "attention.layer_norm_epsilon",
            "expert_used_count",
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

    /** Tokens that end a turn, in files that do not name theirs. */
    private static final Set<String> ENDS_OF_TURNS =
            Set.of("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>");

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

    ObjectNode json() {
        for (String name : new TreeSet<>(REQUIRED)) {
            if (!file.keys().contains(key(name))) {
                throw file.damaged(key(name), "is missing");
            }
        }
        ObjectNode json = JsonNodeFactory.instance.objectNode();
        INTEGERS.forEach((name, field) -> file.integer(key(name)).ifPresent(value -> json.put(field, value)));
        NUMBERS.forEach((name, field) -> file.number(key(name)).ifPresent(value -> json.put(field, value)));
        int heads = heads();
        int hidden = positive("embedding_length");
        int headDim = file.integer(key("attention.key_length")).orElse(hidden / heads);
        json.put("num_key_value_heads", kvHeads());
        json.put("head_dim", headDim);
        json.put("vocab_size", vocabularySize());
        json.put("tie_word_embeddings", !has("lm_head.weight"));
        json.put("dtype", dtype());
        file.integer(key("attention.value_length"))
                .filter(length -> length != headDim)
                .ifPresent(length -> {
                    throw file.damaged(
                            key("attention.value_length"),
                            "is %d, must be %d, as attention.key_length".formatted(length, headDim));
                });
        file.integer(key("rope.dimension_count"))
                .filter(rotated -> rotated != headDim)
                .ifPresent(rotated -> json.put("partial_rotary_factor", (double) rotated / headDim));
        rotation(json);
        ofFamily(json, hidden / heads, headDim);
        ends(json);
        Set<String> known = Stream.of(INTEGERS.keySet(), NUMBERS.keySet(), OTHERS)
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
        switch (architecture) {
            case LLAMA -> {
                json.put("mlp_bias", has("model.layers.0.mlp.down_proj.bias"));
                if (json.path("sliding_window").asInt(0) > 0) {
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
            case QWEN2, QWEN3, PHI3 -> {}
        }
        if (architecture != GgufArchitecture.QWEN2) {
            json.put("attention_bias", has("model.layers.0.self_attn.o_proj.bias"));
        }
        json.putArray("architectures").add(family);
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
        for (String name : List.of("attn_factor", "yarn_attn_factor", "yarn_ext_factor")) {
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

    /** The scaling of Llama 3.1 and later, of which files have only what each frequency is divided by. */
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
            for (int id = 0; id < tokens.size(); id++) {
                if (ENDS_OF_TURNS.contains(tokens.get(id))) {
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
