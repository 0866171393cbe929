package baton.engine.gguf;

import baton.kv.ConfigException;
import java.util.Arrays;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;

/** The supported values of {@code general.architecture}, and how the conversion from a Hugging Face checkpoint changes its tensors. */
enum GgufArchitecture {
    /** Llama, Mistral and others of their shape. */
    LLAMA("LlamaForCausalLM"),
    QWEN2("Qwen2ForCausalLM"),
    QWEN3("Qwen3ForCausalLM"),
    GEMMA2("Gemma2ForCausalLM"),
    GEMMA3("Gemma3ForCausalLM"),
    PHI3("Phi3ForCausalLM");

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
            Map.entry("ffn_down", "mlp.down_proj"));

    private static final Map<String, String> OF_GEMMA = Map.of(
            "ffn_norm", "pre_feedforward_layernorm",
            "post_attention_norm", "post_attention_layernorm",
            "post_ffw_norm", "post_feedforward_layernorm");

    private static final Map<String, String> OF_PHI =
            Map.of("attn_qkv", "self_attn.qkv_proj", "ffn_up", "mlp.gate_up_proj");

    private static final Pattern NAME = Pattern.compile("(?:blk\\.(\\d{1,9})\\.)?(\\w+)\\.(weight|bias)");

    private final String family;
    /** @param family its name in config.json */
    GgufArchitecture(String family) {
        this.family = family;
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
        return name().toLowerCase(Locale.ROOT);
    }

    /** The family's name in config.json. */
    String family() {
        return family;
    }

    /** A tensor's name in a checkpoint; its own where checkpoints have no such tensor. */
    String checkpointName(String tensor) {
        Matcher name = NAME.matcher(tensor);
        if (!name.matches()) {
            return tensor;
        }
        String layer = name.group(1);
        String part = name.group(2);
        Optional<String> found = layer == null
                ? Optional.ofNullable(OF_MODEL.get(part))
                : ownName(part)
                        .or(() -> Optional.ofNullable(OF_LAYER.get(part)))
                        .map(own -> "model.layers." + layer + "." + own);
        return found.map(own -> own + "." + name.group(3)).orElse(tensor);
    }

    /** Of a layer's tensor that others do not have, or have under another name. */
    private Optional<String> ownName(String part) {
        return switch (this) {
            case LLAMA, QWEN2, QWEN3 -> Optional.empty();
            case GEMMA2, GEMMA3 -> Optional.ofNullable(OF_GEMMA.get(part));
            case PHI3 -> Optional.ofNullable(OF_PHI.get(part));
        };
    }

    /** Whether the conversion adds 1 to a weight, which the family's norms do themselves. */
    boolean addsOne(String checkpointName) {
        return (this == GEMMA2 || this == GEMMA3) && checkpointName.endsWith("norm.weight");
    }

    /** Whether the conversion puts the two halves of each head's rows in turns, for a rotation that turns neighbours. */
    boolean interleaves(String checkpointName) {
        return this == LLAMA && (checkpointName.contains(".q_proj.") || checkpointName.contains(".k_proj."));
    }
}
