package baton.engine.model;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.engine.model.ModelConfig.YarnRopeScaling;
import baton.engine.model.Recipe.Everything;
import baton.engine.model.Recipe.LayerAttention;
import baton.engine.model.Recipe.Part;
import baton.engine.model.Recipe.Rotation;
import baton.engine.model.Recipe.Window;
import baton.kv.ConfigException;
import baton.kv.JsonFields;
import java.util.Optional;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Defaults of families' own fields, and values that are refused. */
class DenseFamiliesTest {
    private static ModelConfig config(String family, String fields) {
        return CheckpointConfig.parse("small", JsonFields.parse("config.json", """
                        {"architectures": ["%s"], "vocab_size": 50, "hidden_size": 32, "intermediate_size": 24,
                         "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
                         "max_position_embeddings": 128, "head_dim": 8, %s}""".formatted(family, fields)));
    }

    @Test
    void layersOfAnOlmo3() {
        Recipe olmo = config("Olmo3ForCausalLM", """
                        "rope_theta": 10000, "rope_scaling": {"rope_type": "yarn", "factor": 8,
                         "original_max_position_embeddings": 16}""").recipe();
        LayerAttention sliding = new LayerAttention(new Window(4096), new Rotation(500000, Optional.empty()));
        assertThat(olmo.layers().subList(0, 3)).containsOnly(sliding);
        assertThat(olmo.layers().get(3).reach()).isEqualTo(new Everything());
        assertThat(olmo.layers().get(3).rotation().flatMap(Rotation::scaling))
                .get()
                .isInstanceOf(YarnRopeScaling.class);
    }

    @Test
    void defaultsOfGlmAndGranite() {
        ModelConfig glm = config("Glm4ForCausalLM", "\"rope_theta\": 5000");
        assertThat(glm.recipe().rotations()).containsExactly(new Rotation(5000, Optional.empty(), 0.5, true));
        assertThat(glm.recipe().biased()).isEqualTo(Part.PROJECTIONS);
        ModelConfig granite = config("GraniteMoeHybridForCausalLM", """
                "layer_types": ["attention", "attention", "attention", "attention"], "num_local_experts": 0,
                 "shared_intermediate_size": 40""");
        assertThat(granite.intermediateSize()).isEqualTo(40);
        assertThat(granite.recipe().rotations())
                .as("position_embedding_type is null")
                .isEmpty();
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            quoteCharacter = '`',
            value = {
                "GraniteMoeHybridForCausalLM | \"shared_intermediate_size\": 40 | config.json.layer_types: is missing; must be 'attention' for each layer, as Mamba layers are not supported",
                "GraniteMoeHybridForCausalLM | \"shared_intermediate_size\": 40, \"layer_types\": [\"attention\"] | config.json.layer_types: must be an array of num_hidden_layers=4, is [\"attention\"]",
                "GraniteMoeHybridForCausalLM | \"shared_intermediate_size\": 40, \"layer_types\": [\"attention\", \"mamba\", \"attention\", \"attention\"] | config.json.layer_types[1]: unsupported value '\"mamba\"'; allowed: attention, full_attention",
                "GraniteMoeHybridForCausalLM | \"shared_intermediate_size\": 40, \"layer_types\": [\"attention\", \"attention\", \"attention\", \"attention\"] | config.json.num_local_experts: is 8, must be 0: Granite 4 with experts is not supported",
                "Phi3ForCausalLM | \"partial_rotary_factor\": 0.4 | config.json.partial_rotary_factor: is 0.4, so that 3 of a head's 8 elements are turned; they must be an even number of them",
                "Glm4ForCausalLM | \"partial_rotary_factor\": 0.5, \"rope_parameters\": {\"partial_rotary_factor\": 0.75} | config.json.rope_parameters.partial_rotary_factor: is 0.75, but config.json.partial_rotary_factor is 0.5; both must be the same, or one be left out",
                "Glm4ForCausalLM | \"rope_parameters\": {\"sliding_attention\": {}} | config.json.rope_parameters.sliding_attention: rotations that differ by layer are not supported",
            })
    void refusesUnsupportedModels(String family, String fields, String message) {
        assertThatThrownBy(() -> config(family, fields))
                .isInstanceOf(ConfigException.class)
                .hasMessage(message);
    }
}
