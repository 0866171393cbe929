package baton.engine.kernel;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.memory.Processor;
import org.junit.jupiter.api.Test;

/** No processor does products of bf16 far more often than those of fp32, and none a tenth as often. */
class Bf16RateTest {
    @Test
    void theRateIsThatOfAProcessor() {
        assumeTrue(Processor.current().has("avx512f", "avx512_bf16"), "the processor lacks avx512_bf16");
        assertThat(Bf16Rate.here()).isBetween(0.1, 1.5);
    }
}
