package baton.cuda.model;

import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.model.Checkpoint;
import baton.engine.model.Logits;
import baton.engine.model.ModelOptions;
import baton.engine.model.ModelRanks;
import baton.engine.model.ModelRunner.LayerHooks;
import baton.engine.model.ModelRunner.SequenceSlice;
import baton.engine.model.Quantization;
import baton.kv.DType;
import java.io.IOException;
import java.nio.file.Files;
import java.util.List;
import java.util.OptionalInt;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/** Tiny-ledger gives its recorded answers on a device. */
class TinyLedgerOnDeviceTest {
    /** @param doubtful the least margin of two logits that a type's rounding cannot turn around */
    @ParameterizedTest(name = "{0} in {1}")
    @CsvSource({"hello, F32, 1e-3, 3", "who, BF16, 0.25, 2"})
    void recordedTokens(String name, DType dtype, double doubtful, int steps) throws IOException {
        JsonNode golden = golden(name);
        int[] prompt = ints(golden.get("prompt_ids"));
        int[] output = ints(golden.get("output_ids"));
        ModelOptions options = ModelOptions.oneRank(dtype, Quantization.NONE, 16, 4, OptionalInt.of(1), 64);
        try (Checkpoint checkpoint = Checkpoint.open(TestBackends.TINY_LEDGER);
                ModelRanks ranks = TestBackends.backend().load(checkpoint, options)) {
            int[] tokens = prompt;
            int start = 0;
            for (int step = 0; step < steps; step++) {
                SequenceSlice slice = new SequenceSlice(tokens, start, new int[] {3, 1}, 1);
                try (Logits logits = ranks.first().forward(List.of(slice), LayerHooks.NONE)) {
                    if (golden.get("margins").get(step).asDouble() > doubtful) {
                        assertThat(logits.argmax(0)).as("step %d", step).isEqualTo(output[step]);
                    }
                }
                start += tokens.length;
                tokens = new int[] {output[step]};
            }
        }
    }

    private static JsonNode golden(String name) throws IOException {
        JsonNode root = JsonMapper.builder()
                .build()
                .readTree(Files.readString(TestBackends.TINY_LEDGER.resolve("golden.json")));
        return root.get("prompts").values().stream()
                .filter(prompt -> prompt.get("name").asString().equals(name))
                .findFirst()
                .orElseThrow();
    }

    private static int[] ints(JsonNode array) {
        return array.values().stream().mapToInt(JsonNode::asInt).toArray();
    }
}
