package baton.engine.model;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import tools.jackson.databind.JsonNode;

/**
 * The fields of config.json that Baton does not read: those that change nothing that a model computes, and those by which other
 * families and other programs compute something else, which are refused unless their value changes nothing.
 */
final class ConfigFields {
    /** Read by {@link CheckpointConfig}, {@link RopeConfig} or a family. */
    private static final Set<String> READ = Set.of(
            "architectures",
            "attention_bias",
            "dtype",
            "eos_token_id",
            "head_dim",
            "hidden_act",
            "hidden_size",
            "intermediate_size",
            "layer_types",
            "max_position_embeddings",
            "max_window_layers",
            "mlp_bias",
            "model_type",
            "num_attention_heads",
            "num_hidden_layers",
            "num_key_value_heads",
            "original_max_position_embeddings",
            "partial_rotary_factor",
            "rms_norm_eps",
            "rope_parameters",
            "rope_scaling",
            "rope_theta",
            "sliding_window",
            "tie_word_embeddings",
            "torch_dtype",
            "use_sliding_window",
            "vocab_size");

    /**
     * Fields of training, of the form of answers, of special tokens, of programs; and parameters of sampling, which transformers skips
     * here.
     */
    private static final Set<String> HARMLESS = Set.of(
            "attention_dropout",
            "attn_implementation",
            "auto_map",
            "aux_loss_alpha",
            "bad_words_ids",
            "begin_suppress_tokens",
            "bos_token_id",
            "cache_implementation",
            "chunk_size_feed_forward",
            "cls_token_id",
            "decoder_start_token_id",
            "diversity_penalty",
            "do_sample",
            "dropout",
            "early_stopping",
            "embd_pdrop",
            "encoder_no_repeat_ngram_size",
            "exponential_decay_length_penalty",
            "finetuning_task",
            "forced_bos_token_id",
            "forced_eos_token_id",
            "hidden_dropout",
            "id2label",
            "initializer_range",
            "is_decoder",
            "is_llama_config",
            "label2id",
            "length_penalty",
            "max_length",
            "min_length",
            "model_max_length",
            "name_or_path",
            "no_repeat_ngram_size",
            "num_beam_groups",
            "num_beams",
            "num_labels",
            "num_return_sequences",
            "output_attentions",
            "output_hidden_states",
            "output_router_logits",
            "output_scores",
            "pad_token_id",
            "prefix",
            "pretraining_tp",
            "problem_type",
            "remove_invalid_values",
            "repetition_penalty",
            "resid_pdrop",
            "return_dict",
            "return_dict_in_generate",
            "router_aux_loss_coef",
            "router_jitter_noise",
            "sep_token_id",
            "seq_aux",
            "suppress_tokens",
            "task_specific_params",
            "temperature",
            "tf_legacy_loss",
            "tie_encoder_decoder",
            "tokenizer_class",
            "top_k",
            "top_p",
            "torchscript",
            "transformers_version",
            "typical_p",
            "unk_token_id",
            "unsloth_fixed",
            "unsloth_version",
            "use_bfloat16",
            "use_cache");

    /** Factors, which change nothing at 1. */
    private static final Set<String> ONE = Set.of(
            "embedding_multiplier",
            "embedding_scale",
            "lm_head_multiplier",
            "logit_scale",
            "logits_scaling",
            "residual_multiplier",
            "rope_pct",
            "rotary_pct",
            "scale_emb");

    /** Parts of a model that it does not have at null, false, 0, and where the value is empty. */
    private static final Set<String> NONE = Set.of(
            "ada_rms_norm_t_cond",
            "add_cross_attention",
            "alibi",
            "attention_chunk_size",
            "attention_multiplier",
            "attn_logit_softcapping",
            "attn_temperature_tuning",
            "audio_config",
            "bias",
            "clip_qkv",
            "compression_config",
            "cross_attention_hidden_size",
            "dim_model_base",
            "dual_chunk_attention_config",
            "final_logit_softcapping",
            "interleaved_sliding_window",
            "is_encoder_decoder",
            "kv_lora_rank",
            "moe_intermediate_size",
            "n_routed_experts",
            "n_shared_experts",
            "no_rope_layer_interval",
            "no_rope_layers",
            "num_experts",
            "num_experts_per_tok",
            "num_local_experts",
            "num_nextn_predict_layers",
            "parallel_attn",
            "per_layer_config",
            "pruned_heads",
            "q_lora_rank",
            "qk_layernorm",
            "qk_norm",
            "query_pre_attn_scalar",
            "rope_dim",
            "rope_interleave",
            "rope_interleaved",
            "scale_depth",
            "shared_expert_intermediate_size",
            "sliding_window_pattern",
            "text_config",
            "use_alibi",
            "use_bidirectional_attention",
            "use_bias",
            "use_qk_norm",
            "vision_config");

    /** Switches that change nothing where they are on. */
    private static final Set<String> ON = Set.of("is_causal", "use_rope", "use_rms_norm");

    static final String MXFP4 = "experts in mxfp4";
    private static final String QUANTIZATION = "quantization_config";

    private ConfigFields() {}

    /** @throws ConfigException naming the field by which the model would compute something else */
    static void refuseUnsupported(JsonFields json, DecoderFamily family) {
        json.string("model_type")
                .filter(type -> !type.equals(family.modelType()))
                .ifPresent(type -> {
                    throw new ConfigException(
                            json.field("model_type"),
                            "is '%s', must be '%s' where architectures is %s"
                                    .formatted(type, family.modelType(), family.architecture()));
                });
        Optional<Fp8Weights> _ = fp8Weights(json, family);
        Set<String> names = new TreeSet<>(json.names());
        names.removeAll(family.ownFields());
        for (String name : names) {
            json.value(name).ifPresent(value -> {
                if (ONE.contains(name) && !(value.isNumber() && value.asDouble() == 1)) {
                    throw ConfigException.unsupported(json.field(name), JsonFields.shown(value), "1");
                }
                if (NONE.contains(name) && !isNone(value)) {
                    throw new ConfigException(
                            json.field(name),
                            "is %s, but %s has no such part; it must be left out"
                                    .formatted(JsonFields.shown(value), family.architecture()));
                }
                if (ON.contains(name) && !(value.isBoolean() && value.asBoolean())) {
                    throw ConfigException.unsupported(json.field(name), JsonFields.shown(value), "true");
                }
            });
        }
        refuseFixed(json, family);
    }

    /** The form of packed weights, for people; empty if there are none, or the model is refused. */
    static Optional<String> packing(JsonFields json) {
        try {
            DecoderFamily family = DecoderFamily.of(json);
            return family.ownFields().contains(QUANTIZATION)
                    ? json.object(QUANTIZATION).map(_ -> MXFP4)
                    : fp8Weights(json, family).map(Fp8Weights::describe);
        } catch (ConfigException _) {
            return Optional.empty();
        }
    }

    /** @throws ConfigException if the weights are of another form that is not supported */
    static Optional<Fp8Weights> fp8Weights(JsonFields json, DecoderFamily family) {
        return json.value(QUANTIZATION)
                .filter(value -> !family.ownFields().contains(QUANTIZATION) && !isNone(value))
                .map(_ -> Fp8Weights.of(json));
    }

    /** The fields that have a value and that Baton knows nothing of, in order. */
    static Set<String> unknown(JsonFields json) {
        Set<String> unknown = new TreeSet<>(json.names());
        DecoderFamily family = DecoderFamily.of(json);
        unknown.removeAll(family.ownFields());
        unknown.removeAll(family.fixed().keySet());
        unknown.removeAll(family.renamed().values());
        unknown.removeIf(name -> name.startsWith("_")
                || json.value(name).isEmpty()
                || READ.contains(name)
                || HARMLESS.contains(name)
                || ONE.contains(name)
                || NONE.contains(name)
                || ON.contains(name)
                || name.equals(QUANTIZATION));
        return unknown;
    }

    private static void refuseFixed(JsonFields json, DecoderFamily family) {
        for (Map.Entry<String, Object> field : new TreeMap<>(family.fixed()).entrySet()) {
            String name = field.getKey();
            switch (field.getValue()) {
                case Boolean only ->
                    json.bool(name).filter(value -> !value.equals(only)).ifPresent(value -> {
                        throw new ConfigException(
                                json.field(name),
                                "is %s, must be %s for %s".formatted(value, only, family.architecture()));
                    });
                case String only ->
                    json.string(name).filter(value -> !value.equals(only)).ifPresent(value -> {
                        throw ConfigException.unsupported(json.field(name), value, only);
                    });
                default -> throw new IllegalArgumentException(name + ": is " + field.getValue());
            }
        }
    }

    private static boolean isNone(JsonNode value) {
        return switch (value.getNodeType()) {
            case BOOLEAN -> !value.asBoolean();
            case NUMBER -> value.asDouble() == 0;
            case STRING -> value.asString().isEmpty();
            case ARRAY, OBJECT -> value.isEmpty();
            case NULL, MISSING -> true;
            case BINARY, POJO -> false;
        };
    }
}
