package baton.cuda.kernel;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cuda.Ptxas;
import baton.cuda.Ptxas.Report;
import baton.cuda.ptx.PtxKernel;
import baton.engine.kernel.Activation;
import baton.engine.model.Recipe.Experts;
import baton.engine.model.Recipe.Routing;
import baton.kv.DType;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;

/** NVIDIA's assembler takes all kernels, for each target, and their registers suffice. Reports are in {@code target/ptxas}. */
class AssembledKernelsTest {
    /** Bytes of registers that a kernel may store in memory. One that is kept to fewer registers, so that more threads have some, stores a few. */
    private static final int FEW_BYTES = 24;

    private static void assemble(String name, List<PtxKernel> kernels) throws IOException {
        List<Report> reports = Ptxas.assumed().assemble(PtxKernel.module(kernels));
        assertThat(reports.stream().map(Report::kernel).distinct())
                .containsExactlyInAnyOrderElementsOf(
                        kernels.stream().map(PtxKernel::name).toList());
        Path directory = Files.createDirectories(Path.of("target", "ptxas"));
        Files.write(
                directory.resolve(name + ".txt"),
                reports.stream().map(Report::toString).toList());
        assertThat(reports.stream().filter(report -> report.spilled() > FEW_BYTES))
                .isEmpty();
    }

    @ParameterizedTest
    @EnumSource(names = {"BF16", "F16", "F32"})
    void ofATypeOfComputation(DType computed) throws IOException {
        assemble(computed.name(), GpuKernels.kernels(computed));
    }

    @ParameterizedTest
    @CsvSource({
        "BF16, BF16, 64, 16, 4, false",
        "BF16, BF16, 128, 16, 8, true",
        "F16, F8_E4M3, 128, 48, 4, true",
        "BF16, BF16, 256, 16, 2, true",
        "F32, F32, 80, 16, 7, true"
    })
    void ofAttention(DType computed, DType cache, int headDim, int blockSize, int sharing, boolean capped)
            throws IOException {
        AttentionShape shape =
                new AttentionShape(computed, computed, cache, headDim, blockSize, sharing, capped, true, false);
        assemble("attention_%s_%s_%d_%d".formatted(computed, cache, headDim, sharing), AttentionOps.kernels(shape));
    }

    @ParameterizedTest
    @CsvSource({"BF16, BF16", "F32, F32", "BF16, F8_E4M3"})
    void ofLatentAttention(DType computed, DType cache) throws IOException {
        AttentionShape shape = new AttentionShape(computed, computed, cache, 576, 16, 128, false, false, true);
        assemble("latent_attention_%s_%s".formatted(computed, cache), AttentionOps.kernels(shape));
    }

    @ParameterizedTest
    @CsvSource({"128, 8, false, 1, 1, 1", "256, 8, true, 8, 4, 2"})
    void ofRouting(int experts, int chosen, boolean independent, int groups, int chosenGroups, int summed)
            throws IOException {
        Routing routing = new Routing(independent, groups, chosenGroups, summed, 2.5);
        Experts kind = new Experts(experts, chosen, true, 8, 8, Activation.SILU, routing);
        assemble(
                "routing_%d".formatted(experts),
                ExpertRouting.kernels(new ExpertRouting.Kind(kind, true, true, experts + 1)));
    }
}
