package baton.engine.model;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.within;

import baton.kv.DType;
import baton.testkit.RealModels;
import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.OptionalInt;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/** Published models' results in fp32 equal those of transformers for the same weights; {@code make_real_goldens.py} writes these. */
@Tag("real")
class RealModelsTest {
    private static final float LOGITS = 1e-3f;
    private static final int BLOCK = 16;
    private static final int BUDGET = 512;

    @ParameterizedTest
    @EnumSource
    void checkpoints(RealModels model) throws IOException {
        List<JsonNode> prompts = prompts(model);
        List<Replay.Sequence> sequences = replay(model.assumeCheckpoint(), goldens(prompts));
        for (int i = 0; i < prompts.size(); i++) {
            Replay.Sequence sequence = sequences.get(i);
            JsonNode steps = prompts.get(i).path("top");
            for (int step = 0; step < steps.size(); step++) {
                assertTop(sequence, step, steps.path(step), prompts.get(i));
            }
        }
    }

    @ParameterizedTest
    @EnumSource
    void ggufFiles(RealModels model) throws IOException {
        List<JsonNode> prompts = prompts(model);
        List<Golden> goldens = goldens(prompts).stream()
                .map(golden -> new Golden(
                        golden.name(), golden.prompt(), new int[1], new double[0], new int[0], new double[0]))
                .toList();
        List<Replay.Sequence> sequences = replay(model.assumeGguf(), goldens);
        for (int i = 0; i < prompts.size(); i++) {
            assertTop(sequences.get(i), 0, prompts.get(i).path("gguf"), prompts.get(i));
        }
    }

    private static void assertTop(Replay.Sequence sequence, int step, JsonNode top, JsonNode prompt) {
        float[] logits = sequence.logits.get(step);
        for (JsonNode each : top) {
            int token = each.path(0).asInt();
            assertThat(logits[token])
                    .as("logit of token %d in step %d of '%s'", token, step, prompt.path("name"))
                    .isCloseTo((float) each.path(1).asDouble(), within(LOGITS));
        }
        int second = top.path(1).path(0).asInt();
        if (logits[top.path(0).path(0).asInt()] - logits[second] > LOGITS) {
            assertThat(sequence.chosen.get(step)).isEqualTo(top.path(0).path(0).asInt());
        }
    }

    private static List<Replay.Sequence> replay(Path model, List<Golden> goldens) throws IOException {
        int blocks = goldens.stream()
                .mapToInt(golden -> 1 + (golden.prompt().length + golden.output().length) / BLOCK)
                .sum();
        try (Checkpoint checkpoint = Checkpoint.open(model);
                ModelRunner runner = CpuModels.load(
                        checkpoint,
                        DType.F32,
                        checkpoint.config().kvLayout(BLOCK, DType.F32),
                        blocks,
                        OptionalInt.of(1),
                        checkpoint.config().maxPositions())) {
            Replay replay = new Replay(runner, true);
            List<Replay.Sequence> sequences = replay.add(goldens);
            replay.run(BUDGET, BUDGET);
            return sequences;
        }
    }

    private static List<Golden> goldens(List<JsonNode> prompts) {
        List<Golden> goldens = new ArrayList<>();
        for (JsonNode prompt : prompts) {
            goldens.add(new Golden(
                    prompt.path("name").asString(),
                    Golden.ints(prompt.path("prompt_ids")),
                    Golden.ints(prompt.path("output_ids")),
                    new double[0],
                    new int[0],
                    new double[0]));
        }
        return goldens;
    }

    private static List<JsonNode> prompts(RealModels model) throws IOException {
        try (var in = Objects.requireNonNull(
                RealModelsTest.class.getResourceAsStream("real/" + model.checkpoint() + ".json"))) {
            return List.copyOf(JsonMapper.builder().build().readTree(in).values());
        }
    }
}
