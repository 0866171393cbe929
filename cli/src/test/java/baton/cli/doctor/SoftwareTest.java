package baton.cli.doctor;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cuda.driver.NativeDriver;
import org.junit.jupiter.api.Test;

class SoftwareTest {
    private static final NativeDriver.Search ABSENT = new NativeDriver.Search.Absent("NVIDIA's driver is too old");

    @Test
    void aDriverIsAskedForWhereThereIsAGpuOnly() {
        assertThat(Software.gpu(ABSENT, true))
                .isEqualTo(Finding.advice("CUDA", "NVIDIA's driver is too old", NativeDriver.REMEDY));
        assertThat(Software.gpu(ABSENT, false)).isEqualTo(Finding.ok("CUDA", "none: NVIDIA's driver is too old"));
    }
}
