package baton.engine.model;

import baton.engine.model.ModelConfig.Llama3RopeScaling;
import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.JsonFields;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.OptionalDouble;
import java.util.OptionalInt;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

/** Between config.json and generation_config.json of Hugging Face checkpoints and this package's records. */
final class CheckpointConfig {
    private static final String ARCHITECTURE = "LlamaForCausalLM";

    private CheckpointConfig() {}

    /** @throws ConfigException naming the field that is missing, malformed or asks for something unsupported */
    static ModelConfig parse(String name, JsonFields json) {
        requireLlama(json);
        int hidden = positive(json, "hidden_size");
        int heads = positive(json, "num_attention_heads");
        int kvHeads = json.integerAtLeast("num_key_value_heads", 1).orElse(heads);
        if (heads % kvHeads != 0) {
            throw new ConfigException(
                    json.field("num_key_value_heads"),
                    "is %d, must divide num_attention_heads %d".formatted(kvHeads, heads));
        }
        int headDim = json.integerAtLeast("head_dim", 2).orElseGet(() -> {
            if (hidden % heads != 0) {
                throw new ConfigException(
                        json.field("head_dim"),
                        "is missing, and hidden_size %d is no multiple of num_attention_heads %d"
                                .formatted(hidden, heads));
            }
            return hidden / heads;
        });
        if (headDim % 2 != 0) {
            throw new ConfigException(json.field("head_dim"), "is " + headDim + ", must be even");
        }
        // Transformers 5 moved rope_theta into the object that was called rope_scaling before.
        Optional<JsonFields> rope = json.object("rope_parameters").or(() -> json.object("rope_scaling"));
        double theta = rope.flatMap(fields -> fields.number("rope_theta"))
                .or(() -> json.number("rope_theta"))
                .orElse(10000.0);
        return new ModelConfig(
                name,
                positive(json, "vocab_size"),
                hidden,
                positive(json, "intermediate_size"),
                positive(json, "num_hidden_layers"),
                heads,
                kvHeads,
                headDim,
                positive(json, "max_position_embeddings"),
                json.number("rms_norm_eps").orElse(1e-6),
                theta,
                rope.flatMap(CheckpointConfig::ropeScaling),
                json.bool("tie_word_embeddings").orElse(false),
                json.string("dtype")
                        .map(type -> DType.parse(json.field("dtype"), type))
                        .or(() -> json.string("torch_dtype").map(type -> DType.parse(json.field("torch_dtype"), type)))
                        .orElse(DType.F32));
    }

    /** The config.json that {@link #parse} reads as {@code config}. */
    static ObjectNode write(ModelConfig config) {
        ObjectNode json = JsonNodeFactory.instance.objectNode();
        json.putArray("architectures").add(ARCHITECTURE);
        json.put("model_type", "llama");
        json.put("hidden_act", "silu");
        json.put("vocab_size", config.vocabularySize());
        json.put("hidden_size", config.hiddenSize());
        json.put("intermediate_size", config.intermediateSize());
        json.put("num_hidden_layers", config.layers());
        json.put("num_attention_heads", config.heads());
        json.put("num_key_value_heads", config.kvHeads());
        json.put("head_dim", config.headDim());
        json.put("max_position_embeddings", config.maxPositions());
        json.put("rms_norm_eps", config.rmsNormEps());
        json.put("rope_theta", config.ropeTheta());
        config.ropeScaling()
                .ifPresentOrElse(
                        scaling -> json.putObject("rope_scaling")
                                .put("rope_type", "llama3")
                                .put("factor", scaling.factor())
                                .put("low_freq_factor", scaling.lowFreqFactor())
                                .put("high_freq_factor", scaling.highFreqFactor())
                                .put("original_max_position_embeddings", scaling.originalMaxPositions()),
                        () -> json.putNull("rope_scaling"));
        json.put("tie_word_embeddings", config.tiedEmbeddings());
        json.put("torch_dtype", config.dtype().torchName());
        return json;
    }

    /** {@code eos_token_id}, one or several. */
    static Optional<List<Integer>> eosTokenIds(JsonFields json) {
        return json.value("eos_token_id").map(value -> {
            List<Integer> ids = new ArrayList<>();
            for (JsonNode id : value.isArray()
                    ? value
                    : JsonNodeFactory.instance.arrayNode().add(value)) {
                if (!id.isIntegralNumber() || !id.canConvertToInt() || id.asInt() < 0) {
                    throw new ConfigException(
                            json.field("eos_token_id"), "must be a token id or a list of them, is " + value);
                }
                ids.add(id.asInt());
            }
            return List.copyOf(ids);
        });
    }

    static GenerationDefaults generationDefaults(JsonFields json) {
        if (!json.bool("do_sample").orElse(false)) {
            return GenerationDefaults.NONE;
        }
        return new GenerationDefaults(
                json.number("temperature").map(OptionalDouble::of).orElseGet(OptionalDouble::empty),
                json.number("top_p").map(OptionalDouble::of).orElseGet(OptionalDouble::empty),
                json.integerAtLeast("top_k", -1).map(OptionalInt::of).orElseGet(OptionalInt::empty));
    }

    private static void requireLlama(JsonFields json) {
        JsonNode architectures = json.value("architectures")
                .orElseThrow(() ->
                        new ConfigException(json.field("architectures"), "is missing; supported: " + ARCHITECTURE));
        if (!architectures.isArray()
                || architectures.size() != 1
                || !ARCHITECTURE.equals(architectures.get(0).asString(""))) {
            throw ConfigException.unsupported(json.field("architectures"), architectures, "[\"" + ARCHITECTURE + "\"]");
        }
        json.string("hidden_act")
                .filter(activation -> !activation.equals("silu"))
                .ifPresent(activation -> {
                    throw ConfigException.unsupported(json.field("hidden_act"), activation, "silu");
                });
        for (String bias : List.of("attention_bias", "mlp_bias")) {
            if (json.bool(bias).orElse(false)) {
                throw ConfigException.unsupported(json.field(bias), true, "false");
            }
        }
        json.object("quantization_config").ifPresent(quantization -> {
            throw new ConfigException(
                    json.field("quantization_config"),
                    "quantized checkpoints are not supported; use the bf16 original");
        });
    }

    private static Optional<Llama3RopeScaling> ropeScaling(JsonFields rope) {
        String typeField = rope.value("rope_type").isPresent() ? "rope_type" : "type";
        return switch (rope.string(typeField).orElse("default")) {
            case "default" -> Optional.empty();
            case "llama3" ->
                Optional.of(new Llama3RopeScaling(
                        required(rope, "factor", rope.number("factor")),
                        required(rope, "low_freq_factor", rope.number("low_freq_factor")),
                        required(rope, "high_freq_factor", rope.number("high_freq_factor")),
                        positive(rope, "original_max_position_embeddings")));
            default ->
                throw ConfigException.unsupported(
                        rope.field(typeField), rope.string(typeField).orElse(""), "default, llama3");
        };
    }

    private static int positive(JsonFields json, String name) {
        return required(json, name, json.integerAtLeast(name, 1));
    }

    private static <T> T required(JsonFields json, String name, Optional<T> value) {
        return value.orElseThrow(() -> new ConfigException(json.field(name), "is missing"));
    }
}
