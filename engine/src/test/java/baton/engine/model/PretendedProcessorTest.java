package baton.engine.model;

import static org.assertj.core.api.Assertions.assertThat;

import baton.memory.Platform;
import baton.memory.Processor;
import java.util.Map;
import java.util.Set;
import org.junit.jupiter.api.Test;

class PretendedProcessorTest {
    private static final Map<String, String> SKYLAKE =
            Map.of("ATEN_CPU_CAPABILITY", "avx512", "OPENBLAS_CORETYPE", "SKYLAKEX");
    private static final Map<String, String> COOPER_LAKE =
            Map.of("ATEN_CPU_CAPABILITY", "avx512", "OPENBLAS_CORETYPE", "COOPERLAKE");

    private static Processor processor(String... flags) {
        return new Processor(new Platform("linux", "x86_64"), "a processor", Set.of(flags));
    }

    @Test
    void avx512IsMissingOnAProcessorWithAvx2() {
        assertThat(PretendedProcessor.missing(SKYLAKE, processor("avx2", "fma")))
                .containsExactly("avx512bw", "avx512dq", "avx512f", "avx512vl");
    }

    @Test
    void bf16IsMissingOnAProcessorWithAvx512() {
        Processor avx512 = processor("avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl");
        assertThat(PretendedProcessor.missing(COOPER_LAKE, avx512)).containsExactly("avx512_bf16");
        assertThat(PretendedProcessor.missing(SKYLAKE, avx512)).isEmpty();
    }

    @Test
    void avx2IsNoCapOnAProcessorWithoutAvx512() {
        Map<String, String> haswell = Map.of("ATEN_CPU_CAPABILITY", "avx2");
        assertThat(PretendedProcessor.isItself(haswell, processor("avx2", "fma")))
                .isTrue();
        assertThat(PretendedProcessor.isItself(haswell, processor("avx2", "fma", "avx512f")))
                .isFalse();
        assertThat(PretendedProcessor.isItself(haswell, processor("avx2", "fma", "avx_vnni")))
                .isFalse();
        assertThat(PretendedProcessor.isItself(Map.of(), processor("avx2", "fma")))
                .isFalse();
    }

    @Test
    void nothingIsMissingWithoutVariables() {
        assertThat(PretendedProcessor.missing(Map.of("PATH", "/bin"), processor()))
                .isEmpty();
    }
}
