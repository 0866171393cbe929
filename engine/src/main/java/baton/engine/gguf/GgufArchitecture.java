package baton.engine.gguf;

import baton.kv.ConfigException;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;

/** The supported values of {@code general.architecture}, and how the conversion from a Hugging Face checkpoint changes its tensors. */
enum GgufArchitecture {
    /** Llama, Mistral, Mixtral and others of their shape. */
    LLAMA(
            "LlamaForCausalLM",
            Map.of(
                    "ffn_gate_inp", "block_sparse_moe.gate",
                    "ffn_gate_exps", "block_sparse_moe.experts.*.w1",
                    "ffn_down_exps", "block_sparse_moe.experts.*.w2",
                    "ffn_up_exps", "block_sparse_moe.experts.*.w3")),
    QWEN2("Qwen2ForCausalLM", Map.of()),
    QWEN2MOE("Qwen2MoeForCausalLM", Map.of()),
    QWEN3("Qwen3ForCausalLM", Map.of()),
    QWEN3MOE("Qwen3MoeForCausalLM", Map.of()),
    GEMMA2("Gemma2ForCausalLM", Names.OF_GEMMA),
    GEMMA3("Gemma3ForCausalLM", Names.OF_GEMMA),
    PHI3("Phi3ForCausalLM", Map.of("attn_qkv", "self_attn.qkv_proj", "ffn_up", "mlp.gate_up_proj")),
    GPT_OSS(
            "GptOssForCausalLM",
            Map.of("post_attention_norm", "post_attention_layernorm", "ffn_gate_inp", "mlp.router")),
    GLM4(
            "Glm4ForCausalLM",
            Map.of(
                    "post_attention_norm", "post_self_attn_layernorm",
                    "post_ffw_norm", "post_mlp_layernorm",
                    "ffn_up", "mlp.gate_up_proj")),
    GRANITE("GraniteForCausalLM", Map.of()),
    SMOLLM3("SmolLM3ForCausalLM", Map.of()),
    /** OLMo 2, and 3 with a window. */
    OLMO2(
            "Olmo2ForCausalLM",
            Map.of(
                    "post_attention_norm", "post_attention_layernorm",
                    "post_ffw_norm", "post_feedforward_layernorm")),
    STARCODER2("Starcoder2ForCausalLM", Map.of("ffn_up", "mlp.c_fc", "ffn_down", "mlp.c_proj")),
    NEMOTRON("NemotronForCausalLM", Map.of()),
    /** DeepSeek V2, and V3 where an expert's share is a sigmoid. */
    DEEPSEEK2(
            "DeepseekV2ForCausalLM",
            Map.of(
                    "attn_q_a", "self_attn.q_a_proj",
                    "attn_q_a_norm", "self_attn.q_a_layernorm",
                    "attn_q_b", "self_attn.q_b_proj",
                    "attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa",
                    "attn_kv_a_norm", "self_attn.kv_a_layernorm",
                    "attn_kv_b", "self_attn.kv_b_proj",
                    "ffn_gate_shexp", "mlp.shared_experts.gate_proj",
                    "ffn_up_shexp", "mlp.shared_experts.up_proj",
                    "ffn_down_shexp", "mlp.shared_experts.down_proj"));

    private static final String KEY = "general.architecture";

    private static final Map<String, String> OF_MODEL =
            Map.of("token_embd", "model.embed_tokens", "output_norm", "model.norm", "output", "lm_head");

    private static final Map<String, String> OF_LAYER = Map.ofEntries(
            Map.entry("attn_norm", "input_layernorm"),
            Map.entry("attn_q", "self_attn.q_proj"),
            Map.entry("attn_k", "self_attn.k_proj"),
            Map.entry("attn_v", "self_attn.v_proj"),
            Map.entry("attn_q_norm", "self_attn.q_norm"),
            Map.entry("attn_k_norm", "self_attn.k_norm"),
            Map.entry("attn_output", "self_attn.o_proj"),
            Map.entry("ffn_norm", "post_attention_layernorm"),
            Map.entry("ffn_gate", "mlp.gate_proj"),
            Map.entry("ffn_up", "mlp.up_proj"),
            Map.entry("ffn_down", "mlp.down_proj"),
            Map.entry("ffn_gate_inp", "mlp.gate"),
            Map.entry("ffn_gate_exps", "mlp.experts.*.gate_proj"),
            Map.entry("ffn_up_exps", "mlp.experts.*.up_proj"),
            Map.entry("ffn_down_exps", "mlp.experts.*.down_proj"),
            Map.entry("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
            Map.entry("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
            Map.entry("ffn_up_shexp", "mlp.shared_expert.up_proj"),
            Map.entry("ffn_down_shexp", "mlp.shared_expert.down_proj"));

    /** Tensors with these names in files have no ending in checkpoints. */
    private static final Map<String, String> WHOLE =
            Map.of("attn_sinks.weight", "self_attn.sinks", "exp_probs_b.bias", "mlp.gate.e_score_correction_bias");

    private static final Pattern NAME = Pattern.compile("(?:blk\\.(\\d{1,9})\\.)?(\\w+)\\.(weight|bias)");

    private static final Set<GgufArchitecture> ADDING_ONE = EnumSet.of(GEMMA2, GEMMA3, NEMOTRON);
    private static final Set<GgufArchitecture> INTERLEAVING = EnumSet.of(LLAMA, GRANITE, SMOLLM3);

    private final String family;

    @SuppressWarnings("ImmutableEnumChecker") // made by Map.of
    private final Map<String, String> own;

    /**
     * @param family its name in config.json
     * @param own a layer's tensors that others do not have, or have under another name; {@code *} stands for an expert's number
     */
    GgufArchitecture(String family, Map<String, String> own) {
        this.family = family;
        this.own = own;
    }

    private static final class Names {
        private static final Map<String, String> OF_GEMMA = Map.of(
                "ffn_norm", "pre_feedforward_layernorm",
                "post_attention_norm", "post_attention_layernorm",
                "post_ffw_norm", "post_feedforward_layernorm");
    }

    /** @throws ConfigException if the file's is not supported */
    static GgufArchitecture of(GgufFile file) {
        String name = file.string(KEY).orElseThrow(() -> file.damaged(KEY, "is missing"));
        return Arrays.stream(values())
                .filter(each -> each.key().equals(name))
                .findFirst()
                .orElseThrow(() -> file.damaged(
                        KEY,
                        "unsupported value '%s'; allowed: %s"
                                .formatted(
                                        name,
                                        Arrays.stream(values())
                                                .map(GgufArchitecture::key)
                                                .collect(Collectors.joining(", ")))));
    }

    /** The name in files, which keys of the model's shape begin with. */
    String key() {
        return this == GPT_OSS ? "gpt-oss" : name().toLowerCase(Locale.ROOT);
    }

    /** The family's name in config.json. */
    String family() {
        return family;
    }

    /**
     * A tensor's name in a checkpoint; its own where checkpoints have no such tensor. A {@code *} in it stands for the number of an expert:
     * the file has one tensor of all experts of a layer.
     */
    String checkpointName(String tensor) {
        Matcher name = NAME.matcher(tensor);
        if (!name.matches()) {
            return tensor;
        }
        String layer = name.group(1);
        String part = name.group(2);
        String ending = "." + name.group(3);
        if (layer == null) {
            return OF_MODEL.containsKey(part) ? OF_MODEL.get(part) + ending : tensor;
        }
        String prefix = "model.layers." + layer + ".";
        if (WHOLE.containsKey(part + ending)) {
            return prefix + WHOLE.get(part + ending);
        }
        return Optional.ofNullable(own.get(part))
                .or(() -> Optional.ofNullable(OF_LAYER.get(part)))
                .map(found -> prefix + found + ending)
                .orElse(tensor);
    }

    /** Whether the conversion adds 1 to a weight, which the family's norms do themselves. */
    boolean addsOne(String checkpointName) {
        return ADDING_ONE.contains(this) && checkpointName.endsWith("norm.weight");
    }

    /** Whether the conversion puts the two halves of each head's rows in turns, for a rotation that turns neighbours. */
    boolean interleaves(String checkpointName) {
        return INTERLEAVING.contains(this)
                && (checkpointName.contains(".q_proj.") || checkpointName.contains(".k_proj."));
    }
}
