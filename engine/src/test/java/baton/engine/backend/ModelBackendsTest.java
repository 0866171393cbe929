package baton.engine.backend;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.engine.model.Device;
import baton.kv.ConfigException;
import org.junit.jupiter.api.Test;

class ModelBackendsTest {
    @Test
    void theProcessorIsTheBackendInTheBox() {
        assertThat(ModelBackends.on(Device.AUTO)).isInstanceOf(CpuBackend.class);
        assertThat(ModelBackends.on(Device.CPU)).isInstanceOf(CpuBackend.class);
    }

    @Test
    void aDeviceThatNoBackendComputesOnIsRefusedWithTheReason() {
        assertThatThrownBy(() -> ModelBackends.on(Device.CUDA))
                .isInstanceOf(ConfigException.class)
                .hasMessageStartingWith("device: is 'cuda', but ")
                .hasMessageContaining("computes on no GPU")
                .hasMessageEndingWith("allowed: auto, cpu");
    }
}
