package baton.engine.model;

import static baton.engine.model.FamilyFields.attendingToAll;

import baton.engine.model.DecoderFamily.Defaults;
import baton.engine.model.Recipe.Part;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;

/** Families without experts whose shape no other family shares. */
final class DenseFamilies {
    private static final Map<Part, String> ONE_TENSOR_OF_GATE_AND_UP =
            Map.of(Part.GATE, "mlp.gate_up_proj", Part.UP, "mlp.gate_up_proj");

    private DenseFamilies() {}

    static List<DecoderFamily> all() {
        return List.of(
                glm("GlmForCausalLM", "glm", Recipe.USUAL_TENSORS),
                glm(
                        "Glm4ForCausalLM",
                        "glm4",
                        Recipe.with(
                                Recipe.USUAL_TENSORS,
                                Map.of(
                                        Part.AFTER_ATTENTION_NORM, "post_self_attn_layernorm",
                                        Part.AFTER_FEED_FORWARD_NORM, "post_mlp_layernorm"))));
    }

    /** GLM 4 without experts: half of each head is turned, by neighbours. */
    private static DecoderFamily glm(String architecture, String modelType, Map<Part, String> tensors) {
        return new DecoderFamily(
                architecture,
                modelType,
                _ -> 2,
                Optional.of(128),
                new Defaults(10000, false, 1.5625e-7, 0.5, true),
                Map.of("hidden_act", "silu", "mlp_bias", false, "qkv_bias", false),
                Set.of("partial_rotary_factor"),
                (json, shape) -> Recipe.usual(
                        architecture,
                        attendingToAll(shape),
                        Recipe.with(tensors, ONE_TENSOR_OF_GATE_AND_UP),
                        json.bool("attention_bias").orElse(true) ? Part.PROJECTIONS : Set.of()));
    }
}
