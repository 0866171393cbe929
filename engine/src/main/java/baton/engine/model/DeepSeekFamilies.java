package baton.engine.model;

import static baton.engine.model.FamilyFields.orNone;

import baton.engine.kernel.Activation;
import baton.engine.model.DecoderFamily.Defaults;
import baton.engine.model.DecoderFamily.Shape;
import baton.engine.model.ModelConfig.YarnRopeScaling;
import baton.engine.model.Recipe.Caps;
import baton.engine.model.Recipe.Dense;
import baton.engine.model.Recipe.Experts;
import baton.engine.model.Recipe.FeedForward;
import baton.engine.model.Recipe.Latent;
import baton.engine.model.Recipe.Part;
import baton.engine.model.Recipe.Rotation;
import baton.engine.model.Recipe.Routing;
import baton.engine.model.Recipe.Scales;
import baton.kv.ConfigException;
import baton.kv.JsonFields;
import java.util.EnumMap;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/** DeepSeek's families with latent attention, and experts in all layers but the first ones. */
final class DeepSeekFamilies {
    private static final Set<String> OWN_FIELDS = Set.of(
            "ep_size",
            "first_k_dense_replace",
            "kv_lora_rank",
            "moe_intermediate_size",
            "moe_layer_freq",
            "n_group",
            "n_routed_experts",
            "n_shared_experts",
            "norm_topk_prob",
            "num_experts_per_tok",
            "num_nextn_predict_layers",
            "q_lora_rank",
            "qk_head_dim",
            "qk_nope_head_dim",
            "qk_rope_head_dim",
            "rope_interleave",
            "routed_scaling_factor",
            "scoring_func",
            "topk_group",
            "topk_method",
            "v_head_dim");

    /** Fields that are fixed for both. */
    private static final Map<String, Object> FIXED = Map.of(
            "hidden_act", "silu",
            "attention_bias", false,
            "mlp_bias", false,
            "qkv_bias", false,
            "rope_interleave", true);

    /** DeepSeek V2: the shares of experts are a softmax. */
    static final DecoderFamily V2 = family(
            "DeepseekV2ForCausalLM",
            "deepseek_v2",
            Map.of("scoring_func", "softmax", "norm_topk_prob", false),
            DeepSeekFamilies::v2);

    /** DeepSeek V3 and R1: an expert's share is a sigmoid, and experts are chosen by it and a correction. */
    static final DecoderFamily V3 = family(
            "DeepseekV3ForCausalLM",
            "deepseek_v3",
            Map.of("scoring_func", "sigmoid", "topk_method", "noaux_tc"),
            DeepSeekFamilies::v3);

    private DeepSeekFamilies() {}

    private static DecoderFamily family(
            String architecture, String modelType, Map<String, Object> fixed, DecoderFamily.Reader reader) {
        return new DecoderFamily(
                architecture,
                modelType,
                heads -> heads,
                Optional.of(64),
                new Defaults(10000, false, 1e-6, 1, true),
                Stream.of(FIXED, fixed)
                        .flatMap(each -> each.entrySet().stream())
                        .collect(Collectors.toUnmodifiableMap(Map.Entry::getKey, Map.Entry::getValue)),
                OWN_FIELDS,
                reader);
    }

    private static Recipe v2(JsonFields json, Shape shape) {
        boolean grouped = json.string("topk_method")
                .map(method -> switch (method) {
                    case "greedy" -> false;
                    case "group_limited_greedy" -> true;
                    default ->
                        throw ConfigException.unsupported(
                                json.field("topk_method"), method, "greedy, group_limited_greedy");
                })
                .orElse(false);
        int groups = grouped ? required(json, "n_group") : 1;
        int chosenGroups = grouped ? required(json, "topk_group") : 1;
        Routing routing = new Routing(false, groups, chosenGroups, 1, factor(json, 1));
        return recipe(json, shape, 0, experts(json, new Experts(64, 0, false, 1407, 2, Activation.SILU, routing)));
    }

    private static Recipe v3(JsonFields json, Shape shape) {
        Routing routing = new Routing(
                true, orNone(json, "n_group", 1, 8, 1), orNone(json, "topk_group", 1, 4, 1), 2, factor(json, 2.5));
        boolean normalised = json.bool("norm_topk_prob").orElse(true);
        return recipe(
                json, shape, 3, experts(json, new Experts(256, 8, normalised, 2048, 1, Activation.SILU, routing)));
    }

    private static double factor(JsonFields json, double usual) {
        return CheckpointConfig.positiveNumber(json, "routed_scaling_factor").orElse(usual);
    }

    private static int required(JsonFields json, String field) {
        return json.integerAtLeast(field, 1).orElseThrow(() -> new ConfigException(json.field(field), "is missing"));
    }

    private static Experts experts(JsonFields json, Experts defaults) {
        int count = json.integerAtLeast("n_routed_experts", 1).orElse(defaults.count());
        int chosen = json.integerAtLeast("num_experts_per_tok", 1)
                .or(() -> Optional.of(defaults.chosen()).filter(usual -> usual > 0))
                .orElseThrow(() -> new ConfigException(json.field("num_experts_per_tok"), "is missing"));
        int width = json.integerAtLeast("moe_intermediate_size", 1).orElse(defaults.width());
        int shared = orNone(json, "n_shared_experts", 0, defaults.sharedWidth(), 0);
        Routing routing = defaults.routing();
        if (count % routing.groups() != 0 || count / routing.groups() < routing.summed()) {
            throw new ConfigException(
                    json.field("n_group"),
                    "is %d, must divide n_routed_experts, which is %d, into groups of at least %d"
                            .formatted(routing.groups(), count, routing.summed()));
        }
        if (routing.chosenGroups() > routing.groups()) {
            throw new ConfigException(
                    json.field("topk_group"),
                    "is %d, must be at most n_group, which is %d".formatted(routing.chosenGroups(), routing.groups()));
        }
        int candidates = count / routing.groups() * routing.chosenGroups();
        if (chosen > candidates) {
            throw new ConfigException(
                    json.field("num_experts_per_tok"),
                    "is %d, must be at most the number of experts in the chosen groups, which is %d"
                            .formatted(chosen, candidates));
        }
        requireInt(json, "n_shared_experts", (long) shared * width);
        return new Experts(count, chosen, defaults.normalised(), width, shared * width, defaults.activation(), routing);
    }

    private static Recipe recipe(JsonFields json, Shape shape, int usualDenseLayers, Experts experts) {
        json.integerAtLeast("moe_layer_freq", 1).filter(every -> every != 1).ifPresent(every -> {
            throw ConfigException.unsupported(json.field("moe_layer_freq"), every, "1");
        });
        Latent latent = latent(json);
        Map<Part, String> tensors = new EnumMap<>(Recipe.USUAL_TENSORS);
        tensors.remove(Part.KEYS);
        tensors.remove(Part.VALUES);
        tensors.putAll(DecoderFamily.QWEN_EXPERTS);
        tensors.putAll(Map.of(
                Part.ENTRY, "self_attn.kv_a_proj_with_mqa",
                Part.LATENT_NORM, "self_attn.kv_a_layernorm",
                Part.EXPANSION, "self_attn.kv_b_proj",
                Part.SHARED_GATE, "mlp.shared_experts.gate_proj",
                Part.SHARED_UP, "mlp.shared_experts.up_proj",
                Part.SHARED_DOWN, "mlp.shared_experts.down_proj"));
        if (latent.queryRank() > 0) {
            tensors.putAll(Map.of(
                    Part.QUERY_LATENT, "self_attn.q_a_proj",
                    Part.QUERY_LATENT_NORM, "self_attn.q_a_layernorm",
                    Part.QUERIES, "self_attn.q_b_proj"));
        }
        if (experts.routing().independent()) {
            tensors.put(Part.ROUTER_CORRECTION, "mlp.gate.e_score_correction_bias");
        }
        int dense = json.integerAtLeast("first_k_dense_replace", 0).orElse(usualDenseLayers);
        FeedForward usual = new Dense(Activation.SILU);
        return new Recipe(
                shape.architecture(),
                FamilyFields.attendingToAll(shape),
                tensors,
                Set.of(),
                FamilyFields.byLayer(shape.layers(), layer -> layer < dense ? usual : experts),
                new Scales(1, Optional.of(scoreScale(json, latent, shape.rotation())), 1, 1),
                false,
                Caps.NONE,
                Optional.of(latent));
    }

    private static Latent latent(JsonFields json) {
        Latent latent = new Latent(
                orNone(json, "q_lora_rank", 1, 1536, 0),
                json.integerAtLeast("kv_lora_rank", 1).orElse(512),
                json.integerAtLeast("qk_nope_head_dim", 1).orElse(128),
                json.integerAtLeast("qk_rope_head_dim", 1).orElse(64),
                json.integerAtLeast("v_head_dim", 1).orElse(128));
        requireMultiple(json, "q_lora_rank", latent.queryRank(), 4);
        requireMultiple(json, "kv_lora_rank", latent.rank(), 16);
        requireMultiple(json, "qk_rope_head_dim", latent.rotated(), 16);
        requireInt(json, "kv_lora_rank", (long) latent.rank() + latent.rotated());
        requireInt(json, "qk_nope_head_dim", (long) latent.plain() + latent.rotated());
        requireInt(json, "v_head_dim", (long) latent.plain() + latent.values());
        return latent;
    }

    private static void requireInt(JsonFields json, String field, long elements) {
        if (elements > Integer.MAX_VALUE) {
            throw new ConfigException(
                    json.field(field),
                    "makes a vector of %d elements, which must be at most %d".formatted(elements, Integer.MAX_VALUE));
        }
    }

    private static void requireMultiple(JsonFields json, String field, int value, int of) {
        if (value % of != 0) {
            throw new ConfigException(json.field(field), "is %d, must be a multiple of %d".formatted(value, of));
        }
    }

    /** YaRN's {@code mscale_all_dim} is a factor of queries and keys, beside that of their rotated parts. */
    private static double scoreScale(JsonFields json, Latent latent, Rotation rotation) {
        double scale = 1 / Math.sqrt(latent.query());
        return rotation.scaling()
                .flatMap(scaling -> scaling instanceof YarnRopeScaling yarn
                        ? RopeConfig.factorOfAll(json, yarn.factor())
                        : Optional.empty())
                .map(each -> scale * each * each)
                .orElse(scale);
    }
}
