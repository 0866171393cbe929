package baton.cuda.kernel;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cuda.Ptxas;
import baton.cuda.ptx.PtxKernel;
import baton.kv.DType;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** NVIDIA's assembler takes all kernels of {@link GpuKernels}, for each target, and their registers suffice. */
class AssembledKernelsTest {
    /** Of a kernel that is kept to fewer registers than there are, so that more threads have some. */
    private static final int FEW_BYTES = 16;

    @ParameterizedTest
    @EnumSource(
            value = DType.class,
            names = {"BF16", "F16", "F32"})
    void assembleWithoutSpills(DType computed) {
        Ptxas ptxas = Ptxas.assumed();
        assertThat(ptxas.assemble(PtxKernel.module(GpuKernels.kernels(computed))))
                .isNotEmpty()
                .allSatisfy(report ->
                        assertThat(report.spilled()).as(report.toString()).isLessThanOrEqualTo(FEW_BYTES));
    }
}
