package baton.engine.model;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeFalse;

import baton.engine.model.KernelChoice.Kind;
import baton.engine.model.ModelRunner.LayerHooks;
import baton.engine.model.ModelRunner.SequenceSlice;
import baton.engine.model.OperatorRate.Bound;
import baton.kv.DType;
import baton.memory.Processor;
import java.io.IOException;
import java.nio.file.Path;
import java.util.List;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.stream.IntStream;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** No operator of the kernels that are chosen on this processor is a scalar loop; one that is is found. */
class OperatorTimesTest {
    private static final int PROMPT = 512;

    @TempDir
    private static Path checkpoint;

    @BeforeAll
    static void makeCheckpoint() throws IOException {
        ModelConfig config = new ModelConfig(
                "two-layers", 4096, 1024, 2816, 2, 16, 4, 64, 1024, 1e-5, 1e4, Optional.empty(), true, DType.BF16);
        RandomCheckpoint.write(checkpoint, config, 1);
    }

    @ParameterizedTest
    @CsvSource({"BF16, NONE", "F32, NONE", "BF16, INT8"})
    void everyOperatorOfTheChosenKernelsIsVectorCode(DType dtype, Quantization quantization) throws IOException {
        List<OperatorRate> rates = rates(dtype, quantization, Optional.empty());
        for (Bound bound : Bound.values()) {
            assertThat(rates)
                    .filteredOn(rate -> rate.bound() == bound)
                    .extracting(OperatorRate::operator)
                    .contains("qkv_proj", "gate_proj", "up_proj", "down_proj");
        }
        assertThat(rates).extracting(OperatorRate::operator).contains("attention", "lm_head");
        assertThat(rates).noneMatch(OperatorRate::isSlow);
    }

    @Tag("thorough")
    @Test
    void attentionInLibTorchsScalarLoopIsFound() throws IOException {
        assumeFalse(
                Processor.current().has("amx_bf16"),
                "does not apply: LibTorch's attention in bf16 is a scalar loop only on a processor without AMX");
        assertThat(rates(DType.BF16, Quantization.NONE, Optional.of(Kind.LIBTORCH)))
                .filteredOn(OperatorRate::isSlow)
                .extracting(OperatorRate::operator)
                .contains("attention");
    }

    private static List<OperatorRate> rates(DType dtype, Quantization quantization, Optional<Kind> forced)
            throws IOException {
        try (Checkpoint opened = Checkpoint.open(checkpoint)) {
            KernelChoice choice = forced.map(kind -> new KernelChoice(kind, List.of()))
                    .orElseGet(() -> KernelChoice.here(opened.config(), dtype, quantization));
            ModelOptions options =
                    new ModelOptions(dtype, quantization, dtype, 16, 64, OptionalInt.of(1), 1024, 1, 1, false, false);
            try (ModelRanks ranks = CpuModels.load(opened, choice, options)) {
                ModelRunner runner = ranks.first();
                int[] table = IntStream.range(0, 64).toArray();
                int[] prompt = IntStream.range(0, PROMPT).toArray();
                for (int time = 0; time < 3; time++) {
                    runner.forward(List.of(new SequenceSlice(prompt, 0, table, 1)), LayerHooks.NONE)
                            .close();
                    runner.forward(List.of(new SequenceSlice(new int[] {7}, PROMPT, table, 1)), LayerHooks.NONE)
                            .close();
                }
                return runner.operatorRates();
            }
        }
    }
}
