package baton.engine.model;

import baton.engine.model.ModelConfig.LinearRopeScaling;
import baton.engine.model.ModelConfig.Llama3RopeScaling;
import baton.engine.model.ModelConfig.LongRopeScaling;
import baton.engine.model.ModelConfig.YarnRopeScaling;
import baton.engine.model.Recipe.Dense;
import baton.engine.model.Recipe.Experts;
import baton.engine.model.Recipe.Latent;
import baton.engine.model.Recipe.Part;
import baton.engine.model.Recipe.Rotation;
import baton.engine.model.Recipe.Window;
import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.JsonFields;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.stream.Stream;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

/** Between config.json and generation_config.json of Hugging Face checkpoints and this package's records. */
final class CheckpointConfig {
    private CheckpointConfig() {}

    /** @throws ConfigException naming the field that is missing, malformed or asks for something unsupported */
    static ModelConfig parse(String name, JsonFields json) {
        DecoderFamily family = DecoderFamily.of(json);
        ConfigFields.refuseUnsupported(json, family);
        int layers = positive(json, "num_hidden_layers");
        int hidden = positive(json, "hidden_size");
        int heads = positive(json, "num_attention_heads");
        int kvHeads = json.integerAtLeast("num_key_value_heads", 1)
                .orElse(
                        json.names().contains("num_key_value_heads")
                                ? heads
                                : family.defaultKvHeads().applyAsInt(heads));
        if (heads % kvHeads != 0) {
            throw new ConfigException(
                    json.field("num_key_value_heads"),
                    "is %d, must divide num_attention_heads %d".formatted(kvHeads, heads));
        }
        int headDim = json.integerAtLeast("head_dim", 2)
                .or(family::defaultHeadDim)
                .orElseGet(() -> {
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
        int configured = positive(json, "max_position_embeddings");
        RopeConfig ropes = new RopeConfig(json, family, headDim, configured);
        // A family with rotations that differ by layer has fields for that.
        Rotation rope = family.ownFields().contains(RopeConfig.OF_SLIDING) ? ropes.ofFull() : ropes.parse();
        int vocabularySize = positive(json, "vocab_size");
        int intermediateSize = positive(json, family.field("intermediate_size"));
        Recipe recipe = family.reader()
                .read(json, new DecoderFamily.Shape(family.architecture(), layers, hidden, rope, ropes.ofSliding()));
        return new ModelConfig(
                name,
                vocabularySize,
                hidden,
                intermediateSize,
                heads,
                recipe.latent().isPresent() ? 1 : kvHeads,
                recipe.latent().map(Latent::entry).orElse(headDim),
                maxPositions(family, rope, configured),
                positiveNumber(json, family.field("rms_norm_eps"))
                        .orElse(family.defaults().eps()),
                json.bool("tie_word_embeddings").orElse(family.defaults().tied()),
                json.string("dtype")
                        .map(type -> DType.parse(json.field("dtype"), type))
                        .or(() -> json.string("torch_dtype").map(type -> DType.parse(json.field("torch_dtype"), type)))
                        // Packed weights are made for bf16.
                        .orElse(json.value("quantization_config").isPresent() ? DType.BF16 : DType.F32),
                recipe);
    }

    /** The config.json that {@link #parse} reads as {@code config}, of a family with SiLU, one rotation, no factors and Qwen's experts or none. */
    static ObjectNode write(ModelConfig config) {
        ObjectNode json = JsonNodeFactory.instance.objectNode();
        Recipe recipe = config.recipe();
        Rotation rotation = recipe.rotations().getFirst();
        json.putArray("architectures").add(recipe.architecture());
        DecoderFamily.ALL.stream()
                .filter(family -> family.architecture().equals(recipe.architecture()))
                .forEach(family -> json.put("model_type", family.modelType()));
        json.put("hidden_act", "silu");
        json.put("vocab_size", config.vocabularySize());
        json.put("hidden_size", config.hiddenSize());
        json.put("intermediate_size", config.intermediateSize());
        json.put("num_hidden_layers", config.layers());
        json.put("num_attention_heads", config.heads());
        json.put("num_key_value_heads", config.kvHeads());
        json.put("head_dim", config.headDim());
        json.put("max_position_embeddings", Math.round(config.maxPositions() / linearFactor(rotation)));
        json.put("rms_norm_eps", config.rmsNormEps());
        json.put("rope_theta", rotation.theta());
        json.set("rope_scaling", ropeScaling(rotation));
        json.put("attention_bias", recipe.biased().contains(Part.QUERIES));
        json.put("mlp_bias", recipe.biased().contains(Part.UP));
        Optional<Window> window = recipe.layers().stream()
                .flatMap(layer -> layer.reach() instanceof Window each ? Stream.of(each) : Stream.empty())
                .findFirst();
        json.put("use_sliding_window", window.isPresent());
        json.putNull("sliding_window");
        window.ifPresent(each -> {
            json.put("sliding_window", each.positions());
            ArrayNode types = json.putArray("layer_types");
            recipe.layers()
                    .forEach(layer ->
                            types.add(layer.reach() instanceof Window ? "sliding_attention" : "full_attention"));
        });
        recipe.experts().ifPresent(experts -> write(experts, recipe, json));
        json.put("tie_word_embeddings", config.tiedEmbeddings());
        json.put("torch_dtype", config.dtype().torchName());
        return json;
    }

    /** Writes the experts as Qwen's families have them. */
    private static void write(Experts experts, Recipe recipe, ObjectNode json) {
        json.put("num_experts", experts.count());
        json.put("num_experts_per_tok", experts.chosen());
        json.put("norm_topk_prob", experts.normalised());
        json.put("moe_intermediate_size", experts.width());
        json.put("shared_expert_intermediate_size", experts.sharedWidth());
        ArrayNode dense = json.putArray("mlp_only_layers");
        for (int layer = 0; layer < recipe.layers().size(); layer++) {
            if (recipe.feedForward().get(layer) instanceof Dense) {
                dense.add(layer);
            }
        }
    }

    /** {@code eos_token_id}, one, several or none. A model could never choose an id beyond its vocabulary, and so never end. */
    static List<Integer> eosTokenIds(JsonFields json, int vocabularySize) {
        Optional<List<Integer>> found = json.value("eos_token_id").map(value -> {
            List<Integer> ids = new ArrayList<>();
            for (JsonNode id : value.isArray()
                    ? value
                    : JsonNodeFactory.instance.arrayNode().add(value)) {
                if (!id.isIntegralNumber() || !id.canConvertToInt() || id.asInt() < 0) {
                    throw new ConfigException(
                            json.field("eos_token_id"), "must be a token id or a list of them, is " + value);
                }
                if (id.asInt() >= vocabularySize) {
                    throw new ConfigException(
                            json.field("eos_token_id"),
                            "is %s, must be below config.json.vocab_size, which is %d"
                                    .formatted(value, vocabularySize));
                }
                ids.add(id.asInt());
            }
            return List.copyOf(ids);
        });
        return found.orElse(List.of());
    }

    /** A number greater than 0, if it is there. */
    static Optional<Double> positiveNumber(JsonFields json, String name) {
        return json.number(name).map(value -> {
            if (!(value > 0)) {
                throw new ConfigException(json.field(name), "is " + value + ", must be positive");
            }
            return value;
        });
    }

    /**
     * A rotation by frequencies that are no numbers makes every logit NaN.
     *
     * @throws ConfigException if the model's are not
     */
    static void requireRotation(JsonFields json, ModelConfig config) {
        for (Rotation rotation : config.recipe().rotations()) {
            for (double frequency : Rope.frequencies(rotation, config.rotatedDim(), config.maxPositions())) {
                if (!(frequency > 0) || frequency == Double.POSITIVE_INFINITY) {
                    throw new ConfigException(
                            json.field("rope_theta"),
                            "is %s, which with %s makes a frequency of %s; it must be positive and finite"
                                    .formatted(
                                            rotation.theta(),
                                            rotation.scaling()
                                                    .map(Object::toString)
                                                    .orElse("no scaling"),
                                            frequency));
                }
            }
        }
    }

    /** {@code max_position_embeddings} is of a model before {@code linear} and after all other scaling, as vLLM has it; of Gemma 3 after all. */
    private static int maxPositions(DecoderFamily family, Rotation rotation, int configured) {
        return family.equals(DecoderFamily.GEMMA3)
                ? configured
                : (int) Math.max(1, configured * linearFactor(rotation));
    }

    private static double linearFactor(Rotation rotation) {
        return rotation.scaling().orElse(null) instanceof LinearRopeScaling linear ? linear.factor() : 1;
    }

    /** The object that {@link #parse} reads as the model's, or null. */
    private static JsonNode ropeScaling(Rotation rotation) {
        if (rotation.scaling().isEmpty()) {
            return JsonNodeFactory.instance.nullNode();
        }
        ObjectNode json = JsonNodeFactory.instance.objectNode();
        return switch (rotation.scaling().get()) {
            case LinearRopeScaling linear -> json.put("rope_type", "linear").put("factor", linear.factor());
            case Llama3RopeScaling llama3 ->
                json.put("rope_type", "llama3")
                        .put("factor", llama3.factor())
                        .put("low_freq_factor", llama3.lowFreqFactor())
                        .put("high_freq_factor", llama3.highFreqFactor())
                        .put("original_max_position_embeddings", llama3.originalMaxPositions());
            case YarnRopeScaling yarn ->
                json.put("rope_type", "yarn")
                        .put("factor", yarn.factor())
                        .put("original_max_position_embeddings", yarn.originalMaxPositions())
                        .put("attention_factor", yarn.attentionFactor())
                        .put("beta_fast", yarn.betaFast())
                        .put("beta_slow", yarn.betaSlow())
                        .put("truncate", yarn.truncate());
            case LongRopeScaling longRope -> {
                json.put("rope_type", "longrope")
                        .put("original_max_position_embeddings", longRope.originalMaxPositions())
                        .put("attention_factor", longRope.attentionFactor());
                longRope.shortFactors().forEach(json.putArray("short_factor")::add);
                longRope.longFactors().forEach(json.putArray("long_factor")::add);
                yield json;
            }
        };
    }

    private static int positive(JsonFields json, String name) {
        return required(json, name, json.integerAtLeast(name, 1));
    }

    private static <T> T required(JsonFields json, String name, Optional<T> value) {
        return value.orElseThrow(() -> new ConfigException(json.field(name), "is missing"));
    }
}
