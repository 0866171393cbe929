package baton.cuda.model;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.cuda.driver.Gpu;
import baton.cuda.kernel.GpuKernels;
import baton.cuda.sim.SimulatedDriver;
import baton.kv.DType;
import baton.kv.KvCopier.Runs;
import baton.kv.KvDigest;
import baton.kv.KvFence;
import java.util.List;
import org.junit.jupiter.api.Test;

class CudaCopierTest {
    private static final KvFence FAILED = new KvFence() {
        @Override
        public boolean isPassed() {
            throw new IllegalStateException("the device has failed");
        }

        @Override
        public void await() {
            throw new IllegalStateException("the device has failed");
        }
    };

    @Test
    void digestsThatFailLeaveTheirMemoryToOthers() {
        try (Gpu gpu = new Gpu(new SimulatedDriver(), 0);
                GpuKernels kernels = new GpuKernels(gpu, DType.F32);
                Gpu.Buffer pool = gpu.allocate(4096);
                CudaCopier copier = new CudaCopier(pool, kernels.copies())) {
            List<Runs> values = List.of(new Runs(0, 16, 1, 16));
            long[] digests = new long[1];
            assertFails(copier, values, digests);
            long free = gpu.freeBytes();
            assertFails(copier, values, digests);
            assertThat(gpu.freeBytes()).isEqualTo(free);
        }
    }

    private static void assertFails(CudaCopier copier, List<Runs> values, long[] digests) {
        assertThatThrownBy(() -> copier.digest(KvDigest.SUM61, values, digests, FAILED))
                .hasMessage("the device has failed");
    }
}
