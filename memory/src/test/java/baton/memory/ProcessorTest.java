package baton.memory;

import static org.assertj.core.api.Assertions.assertThat;

import java.util.List;
import org.junit.jupiter.api.Test;

class ProcessorTest {
    @Test
    void instructionSetsAreThoseThatAllCoresHave() {
        Processor processor = Processor.of(
                Platform.of("Linux", "amd64"),
                List.of(
                        "processor\t: 0",
                        "model name\t: Some Processor @ 2 GHz",
                        "flags\t\t: fpu avx2 fma avx512f",
                        "processor\t: 1",
                        "model name\t: Some Processor @ 2 GHz",
                        "flags\t\t: fpu avx2 fma"));
        assertThat(processor.name()).isEqualTo("Some Processor @ 2 GHz");
        assertThat(processor.has("avx2", "fma")).isTrue();
        assertThat(processor.has("avx2", "avx512f")).isFalse();
    }

    @Test
    void anArchitectureWithoutFlagsHasNone() {
        assertThat(Processor.of(Platform.of("Linux", "aarch64"), List.of("Features\t: fp asimd"))
                        .has("avx2"))
                .isFalse();
        assertThat(Processor.of(Platform.of("Linux", "aarch64"), List.of()).name())
                .isEqualTo("unknown");
    }
}
