package baton.engine.model;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.engine.model.KernelChoice.Kind;
import baton.kv.ConfigException;
import baton.kv.DType;
import baton.memory.Assembler.Width;
import baton.memory.Platform;
import baton.memory.Processor;
import java.io.IOException;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Kernels are chosen by the processor's features, by the caps of the libraries, and by the user. */
class KernelChoiceTest {
    private static final Processor WITH_AMX =
            processor("avx2", "fma", "f16c", "avx512f", "avx512dq", "avx512bw", "avx512_bf16", "amx_tile", "amx_bf16");
    private static final Processor WITH_AVX512 = processor("avx2", "fma", "f16c", "avx512f", "avx512dq");
    private static final Processor WITH_AVX512_BF16 =
            processor("avx2", "fma", "f16c", "avx512f", "avx512dq", "avx512_bf16");
    private static final Processor WITH_AVX2 = processor("avx2", "fma", "f16c");
    private static final Processor OTHER = new Processor(Platform.of("Mac OS X", "aarch64"), "M4", Set.of());

    private static ModelConfig model() throws IOException {
        try (Checkpoint checkpoint = Checkpoint.open(Golden.TINY_LEDGER)) {
            return checkpoint.config();
        }
    }

    private static Processor processor(String... flags) {
        return new Processor(Platform.of("Linux", "amd64"), "test", Set.of(flags));
    }

    private static KernelChoice choose(
            Processor processor, Map<String, String> environment, DType dtype, Quantization quantization)
            throws IOException {
        return choose(processor, environment, 1, dtype, quantization);
    }

    private static KernelChoice choose(
            Processor processor,
            Map<String, String> environment,
            double bf16Rate,
            DType dtype,
            Quantization quantization)
            throws IOException {
        return KernelChoice.choose(
                processor,
                environment,
                Optional.empty(),
                probes(bf16Rate, Optional.empty()),
                model(),
                dtype,
                quantization);
    }

    private static KernelChoice.Probes probes(double bf16Rate, Optional<String> whyNoTiles) {
        return new KernelChoice.Probes() {
            @Override
            public double bf16Rate() {
                return bf16Rate;
            }

            @Override
            public Optional<String> whyNoVectors(Width width) {
                return Optional.empty();
            }

            @Override
            public Optional<String> whyNoPairs() {
                return Optional.empty();
            }

            @Override
            public Optional<String> whyNoTiles() {
                return whyNoTiles;
            }

            @Override
            public Optional<String> whyNoLibTorch() {
                return Optional.empty();
            }
        };
    }

    @Test
    void bf16IsComputedOnTheMatrixUnitIfThereIsOne() throws IOException {
        assertThat(choose(WITH_AMX, Map.of(), DType.BF16, Quantization.NONE).kind())
                .isEqualTo(Kind.AMX);
        assertThat(choose(WITH_AMX, Map.of(), DType.BF16, Quantization.INT8).kind())
                .isEqualTo(Kind.AMX);
        KernelChoice fp32 = choose(WITH_AMX, Map.of(), DType.F32, Quantization.NONE);
        assertThat(fp32.kind()).isEqualTo(Kind.AVX512);
        assertThat(fp32.reasons()).contains("not amx: it computes in bfloat16, the model in float32");
    }

    @Test
    void theMatrixUnitIsNotTakenIfTheSystemDoesNotPermitIt() throws IOException {
        KernelChoice choice = KernelChoice.choose(
                WITH_AMX,
                Map.of(),
                Optional.empty(),
                probes(1, Optional.of("the system does not permit AMX: arch_prctl failed, errno=22")),
                model(),
                DType.BF16,
                Quantization.NONE);
        assertThat(choice.kind()).isEqualTo(Kind.AVX512_BF16);
        assertThat(choice.reasons()).contains("not amx: the system does not permit AMX: arch_prctl failed, errno=22");
    }

    @Test
    void theWidestVectorsAreTakenElsewhere() throws IOException {
        KernelChoice avx512 = choose(WITH_AVX512, Map.of(), DType.BF16, Quantization.NONE);
        assertThat(avx512.kind()).isEqualTo(Kind.AVX512);
        assertThat(avx512.reasons())
                .containsExactly(
                        "avx512: machine code, bfloat16 weights, computed in float32",
                        "not amx: the processor has no AMX",
                        "not avx512_bf16: the processor has no AVX512_BF16");
        assertThat(choose(WITH_AVX2, Map.of(), DType.BF16, Quantization.INT8).kind())
                .isEqualTo(Kind.AVX2);
        assertThat(choose(OTHER, Map.of(), DType.F32, Quantization.NONE).kind()).isEqualTo(Kind.LIBTORCH);
    }

    @Test
    void productsOfBf16AreTakenWhereTheyAreFast() throws IOException {
        assertThat(choose(WITH_AVX512_BF16, Map.of(), 1, DType.BF16, Quantization.NONE)
                        .kind())
                .isEqualTo(Kind.AVX512_BF16);
        KernelChoice slow = choose(WITH_AVX512_BF16, Map.of(), 0.5, DType.BF16, Quantization.NONE);
        assertThat(slow.kind()).isEqualTo(Kind.AVX512);
        assertThat(slow.reasons())
                .contains(
                        "not avx512_bf16: the processor does 0.50 products of bfloat16 in the time of one of float32, from"
                                + " 0.75 on it pays");
        assertThat(choose(WITH_AVX512_BF16, Map.of("BATON_KERNELS", "avx512_bf16"), 0.5, DType.BF16, Quantization.NONE)
                        .kind())
                .isEqualTo(Kind.AVX512_BF16);
        assertThat(choose(WITH_AVX512_BF16, Map.of(), 1, DType.F32, Quantization.NONE)
                        .kind())
                .isEqualTo(Kind.AVX512);
        assertThat(choose(WITH_AVX512_BF16, Map.of(), 1, DType.BF16, Quantization.INT8)
                        .kind())
                .isEqualTo(Kind.AVX512_BF16);
        assertThat(choose(WITH_AVX512_BF16, Map.of(), 1, DType.F32, Quantization.INT8)
                        .kind())
                .isEqualTo(Kind.AVX512);
        assertThat(choose(
                                WITH_AVX512_BF16,
                                Map.of("ONEDNN_MAX_CPU_ISA", "AVX512_CORE"),
                                1,
                                DType.BF16,
                                Quantization.NONE)
                        .kind())
                .isEqualTo(Kind.AVX512);
    }

    @ParameterizedTest(name = "{0}={1}")
    @CsvSource({
        "ONEDNN_MAX_CPU_ISA, AVX512_CORE_BF16, AVX512_BF16",
        "ONEDNN_MAX_CPU_ISA, avx512_core, AVX512",
        "ONEDNN_MAX_CPU_ISA, AVX512_CORE_AMX, AMX",
        "ONEDNN_MAX_CPU_ISA, DEFAULT, AMX",
        "ONEDNN_MAX_CPU_ISA, AVX2_VNNI, AVX2",
        "ONEDNN_MAX_CPU_ISA, SSE41, LIBTORCH",
        "BATON_KERNELS, avx2, AVX2",
        "BATON_KERNELS, LibTorch, LIBTORCH",
        "BATON_KERNELS, auto, AMX"
    })
    void aCapOrAChoiceOfTheUsersIsKept(String variable, String value, Kind expected) throws IOException {
        assertThat(choose(WITH_AMX, Map.of(variable, value), DType.BF16, Quantization.NONE)
                        .kind())
                .isEqualTo(expected);
    }

    @Test
    void atensCapIsKeptToo() throws IOException {
        assertThat(choose(WITH_AVX512, Map.of("ATEN_CPU_CAPABILITY", "avx2"), DType.BF16, Quantization.NONE)
                        .kind())
                .isEqualTo(Kind.AVX2);
    }

    @Test
    void missingFeaturesOfTheProcessorCannotBeForced() {
        assertThatThrownBy(() -> choose(WITH_AVX2, Map.of("BATON_KERNELS", "avx512"), DType.BF16, Quantization.NONE))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("BATON_KERNELS")
                .hasMessageContaining("is 'avx512', but the processor has no AVX-512");
        assertThatThrownBy(() -> KernelChoice.choose(
                        WITH_AVX2,
                        Map.of(),
                        Optional.of("fast"),
                        probes(1, Optional.empty()),
                        model(),
                        DType.BF16,
                        Quantization.NONE))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("baton.kernels")
                .hasMessageContaining("auto, amx, avx512_bf16, avx512, avx2, libtorch");
    }

    @Test
    void eightBitWeightsAreRefusedWhereNothingComputesThemFast() {
        assertThatThrownBy(() -> choose(OTHER, Map.of(), DType.BF16, Quantization.INT8))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("quantization")
                .hasMessageContaining("not avx2: the processor has no AVX2 with FMA and F16C");
    }
}
