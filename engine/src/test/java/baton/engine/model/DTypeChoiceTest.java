package baton.engine.model;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.engine.model.KernelChoice.Kind;
import baton.kv.DType;
import java.util.Optional;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.parallel.Isolated;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;

/** The type that {@code --dtype auto} chooses. */
@Isolated("sets a property of the system")
class DTypeChoiceTest {
    @ParameterizedTest
    @CsvSource({"F32, F32, the checkpoint's", "F16, F16, the checkpoint's"})
    void holdsTheCheckpointsWeightsExactly(DType stored, DType chosen, String reason) {
        DTypeChoice choice = DTypeChoice.here(Optional.empty(), model(stored), Quantization.NONE);
        assertThat(choice.dtype()).isEqualTo(chosen);
        assertThat(choice.describe()).startsWith(chosen.torchName()).contains(reason);
    }

    @ParameterizedTest
    @EnumSource
    void bf16IsKeptUnlessOnlyLibTorchComputesIt(Kind kernels) {
        assertThat(DTypeChoice.ofBf16(kernels).dtype()).isEqualTo(kernels == Kind.LIBTORCH ? DType.F32 : DType.BF16);
    }

    @ParameterizedTest
    @EnumSource
    void f16IsKeptUnlessOnlyLibTorchComputesIt(Kind kernels) {
        assertThat(DTypeChoice.ofF16(kernels).dtype()).isEqualTo(kernels == Kind.LIBTORCH ? DType.F32 : DType.F16);
    }

    @ParameterizedTest
    @EnumSource(names = {"F32", "BF16"})
    void theConfiguredTypeIsTaken(DType configured) {
        assertThat(DTypeChoice.here(Optional.of(configured), model(DType.F16), Quantization.NONE)
                        .dtype())
                .isEqualTo(configured);
    }

    @Test
    void forcedKernelsThatCannotBeNameTheModelsType() {
        System.setProperty(KernelChoice.PROPERTY, "amx");
        try {
            assertThatThrownBy(() -> DTypeChoice.here(Optional.empty(), model(DType.F16), Quantization.NONE))
                    .hasMessage("baton.kernels: is 'amx', but it computes in bfloat16, the model in float16");
        } finally {
            System.clearProperty(KernelChoice.PROPERTY);
        }
    }

    private static ModelConfig model(DType dtype) {
        return new ModelConfig("m", 64, 64, 64, 1, 2, 1, 32, 64, 1e-5, 1e4, Optional.empty(), true, dtype);
    }
}
