package baton.cuda.model;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.within;

import baton.engine.backend.CpuBackend;
import baton.engine.backend.ModelBackend;
import baton.engine.model.Checkpoint;
import baton.engine.model.Logits;
import baton.engine.model.ModelConfig;
import baton.engine.model.ModelOptions;
import baton.engine.model.ModelRanks;
import baton.engine.model.ModelRunner;
import baton.engine.model.ModelRunner.LayerHooks;
import baton.engine.model.ModelRunner.SequenceSlice;
import baton.engine.model.Quantization;
import baton.kv.DType;
import java.io.IOException;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Random;
import java.util.stream.IntStream;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/**
 * The device's logits of small random checkpoints are those of the processor, which other tests compare with transformers: of a prompt in chunks
 * beside another sequence, then token by token.
 */
class FamiliesOnDeviceTest {
    private static final int BLOCK = 16;
    private static final int BLOCKS = 32;
    private static final int LONG = 40;
    private static final int SHORT = 7;
    private static final int DECODED = 2;
    private static final double BF16_ROUNDING = 0x1p-8;
    private static final int ROUNDINGS_PER_LAYER = 12;

    @ParameterizedTest
    @ValueSource(
            strings = {
                "llama3",
                "qwen3",
                "gemma2",
                "gemma3",
                "gpt-oss",
                "olmo2",
                "glm4",
                "smollm3",
                "nemotron",
                "starcoder2",
                "granite",
                "qwen2-moe",
                "mixtral",
                "phi3",
                "phi3-long",
                "phi3-short",
                "glm",
                "mistral",
                "ministral",
                "qwen2",
                "qwen3-moe",
                "olmo3",
                "llama2",
                "llama-biases",
                "gpt-oss-bf16",
                "granite-hybrid",
                "deepseek-v2",
                "deepseek-v2-lite",
                "deepseek-v3"
            })
    void logitsInFp32(String family) throws IOException {
        try (Checkpoint checkpoint = Checkpoint.open(TestBackends.family(family))) {
            List<float[]> expected = logits(new CpuBackend(), checkpoint, DType.F32, DType.F32, false);
            List<float[]> computed = logits(TestBackends.backend(), checkpoint, DType.F32, DType.F32, false);
            assertThat(computed).hasSameSizeAs(expected);
            for (int row = 0; row < expected.size(); row++) {
                assertThat(computed.get(row))
                        .as("row %d", row)
                        .containsExactly(expected.get(row), within(resolution(checkpoint.config(), expected.get(row))));
            }
        }
    }

    @ParameterizedTest
    @CsvSource({
        "llama3, BF16, BF16, false",
        "gemma3, BF16, BF16, true",
        "qwen3, F16, F16, false",
        "qwen3, F32, F8_E4M3, false",
        "llama3, BF16, F32, false",
        "deepseek-v3, BF16, BF16, false"
    })
    void logitsInHalfPrecision(String family, DType dtype, DType cached, boolean hybrid) throws IOException {
        try (Checkpoint checkpoint = Checkpoint.open(TestBackends.family(family))) {
            DType exactly = cached == DType.F8_E4M3 ? cached : DType.F32;
            List<float[]> expected = logits(new CpuBackend(), checkpoint, DType.F32, exactly, false);
            List<float[]> computed = logits(TestBackends.backend(), checkpoint, dtype, cached, hybrid);
            double squares = 0;
            double spread = 0;
            for (int row = 0; row < expected.size(); row++) {
                for (int id = 0; id < expected.get(row).length; id++) {
                    squares += Math.pow(computed.get(row)[id] - expected.get(row)[id], 2);
                    spread += Math.pow(expected.get(row)[id], 2);
                }
            }
            double bound = ROUNDINGS_PER_LAYER * checkpoint.config().layers() * BF16_ROUNDING;
            assertThat(Math.sqrt(squares / spread)).isLessThan(bound);
        }
    }

    /** A rounding for each term of the longest sums, relative to the greatest logit, in each of two computations. */
    private static float resolution(ModelConfig config, float[] logits) {
        float greatest = 0;
        for (float logit : logits) {
            greatest = Math.max(greatest, Math.abs(logit));
        }
        return 2 * (LONG + config.intermediateSize()) * Math.ulp(1f) * greatest;
    }

    /** @param hybrid layers with a window have blocks of their own */
    private static List<float[]> logits(
            ModelBackend backend, Checkpoint checkpoint, DType dtype, DType cached, boolean hybrid) throws IOException {
        Random random = new Random(3);
        int[] tokens = random.ints(LONG + DECODED, 0, checkpoint.config().vocabularySize())
                .toArray();
        int[] others = random.ints(SHORT + 1 + DECODED, 0, checkpoint.config().vocabularySize())
                .toArray();
        ModelOptions options = new ModelOptions(
                dtype, Quantization.NONE, cached, BLOCK, BLOCKS, OptionalInt.of(1), 64, 1, 1, false, hybrid);
        try (ModelRanks ranks = backend.load(checkpoint, options)) {
            ModelRunner runner = ranks.first();
            List<float[]> rows = new ArrayList<>();
            rows.addAll(forward(runner, slice(runner, others, 0, SHORT, 0, SHORT), slice(runner, tokens, 0, 20, 1, 1)));
            rows.addAll(
                    forward(runner, slice(runner, others, SHORT, 1, 0, 1), slice(runner, tokens, 20, LONG - 20, 1, 2)));
            for (int i = 0; i < DECODED; i++) {
                rows.addAll(forward(
                        runner,
                        slice(runner, tokens, LONG + i, 1, 1, 1),
                        slice(runner, others, SHORT + 1 + i, 1, 0, 1)));
            }
            return rows;
        }
    }

    private static SequenceSlice slice(
            ModelRunner runner, int[] tokens, int start, int count, int sequence, int logits) {
        int groups = runner.cache().groups().size();
        int[][] tables = IntStream.range(0, groups)
                .mapToObj(group -> IntStream.range(0, 3)
                        .map(i -> 1 + ((i * 2 + sequence) * groups + group) % (BLOCKS - 1))
                        .toArray())
                .toArray(int[][]::new);
        return new SequenceSlice(
                Arrays.copyOfRange(tokens, start, start + count), start, tables, logits, Optional.empty());
    }

    private static List<float[]> forward(ModelRunner runner, SequenceSlice... slices) {
        try (Logits logits = runner.forward(List.of(slices), LayerHooks.NONE)) {
            List<float[]> rows = new ArrayList<>();
            for (int row = 0; row < logits.rows(); row++) {
                float[] copy = logits.row(row).toArray(ValueLayout.JAVA_FLOAT);
                assertThat(copy[logits.argmax(row)]).isEqualTo(greatest(copy));
                assertThat(logits.isFinite(row)).isTrue();
                rows.add(copy);
            }
            return rows;
        }
    }

    private static float greatest(float[] row) {
        float greatest = row[0];
        for (float each : row) {
            greatest = Math.max(greatest, each);
        }
        return greatest;
    }
}
