package baton.cuda.model;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.cuda.driver.Gpu;
import baton.cuda.driver.StreamFences;
import baton.cuda.kernel.GpuKernels;
import baton.cuda.sim.SimulatedDriver;
import baton.kv.DType;
import baton.kv.KvCopier;
import baton.kv.KvCopier.Range;
import baton.kv.KvCopier.Rows;
import baton.kv.KvCopier.Runs;
import baton.kv.KvDigest;
import baton.kv.KvFence;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.IntStream;
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

    /** Blocks with consecutive numbers are one call of the driver, as many as they are, and others one each or two. */
    @Test
    void rangesAtEqualDistancesAreOneCopy() {
        int block = 48;
        int[] blocks = {2, 3, 4, 5, 9, 7, 20, 22, 24, 40};
        List<Range> layer = Arrays.stream(blocks)
                .mapToObj(number -> new Range((long) number * block + 16, (long) number * block + 8, 16))
                .toList();
        List<Range> packed = IntStream.range(0, blocks.length)
                .mapToObj(i -> new Range((long) blocks[i] * block, 17L * i, 17))
                .toList();
        List<Range> whole = List.of(new Range(0, 0, 1000), new Range(1000, 1000, 1048));
        try (Gpu gpu = new Gpu(new SimulatedDriver(), 0);
                GpuKernels kernels = new GpuKernels(gpu, DType.F32);
                Gpu.Buffer pool = gpu.allocate(2048);
                Gpu.Pinned host = gpu.pinned(2048);
                CudaCopier copier = new CudaCopier(pool, kernels.copies())) {
            for (List<Range> ranges : List.of(layer, packed, whole)) {
                byte[] numbers = new byte[2048];
                new Random(4).nextBytes(numbers);
                host.memory().copyFrom(MemorySegment.ofArray(numbers));
                copier.toDevice(whole, host.memory(), KvFence.PASSED).await();
                host.memory().fill((byte) 0);
                copier.toHost(ranges, host.memory(), KvFence.PASSED).await();
                byte[] expected = new byte[2048];
                for (Range each : ranges) {
                    System.arraycopy(numbers, (int) each.device(), expected, (int) each.host(), (int) each.bytes());
                }
                assertThat(host.memory().toArray(ValueLayout.JAVA_BYTE)).isEqualTo(expected);
                copier.toDevice(List.of(new Range(0, 0, 2048)), host.memory().fill((byte) 1), KvFence.PASSED)
                        .await();
                host.memory().copyFrom(MemorySegment.ofArray(numbers));
                copier.toDevice(ranges, host.memory(), KvFence.PASSED).await();
                copier.toHost(whole, host.memory(), KvFence.PASSED).await();
                byte[] written = new byte[2048];
                Arrays.fill(written, (byte) 1);
                for (Range each : ranges) {
                    System.arraycopy(numbers, (int) each.host(), written, (int) each.device(), (int) each.bytes());
                }
                assertThat(host.memory().toArray(ValueLayout.JAVA_BYTE)).isEqualTo(written);
            }
        }
        assertThat(CudaCopier.rows(layer))
                .extracting(each -> each.rows().count())
                .containsExactly(4, 1, 2, 2, 1);
        assertThat(CudaCopier.rows(packed))
                .extracting(each -> each.rows().count())
                .containsExactly(4, 1, 2, 2, 1);
    }

    /** Runs go from the pool to memory beside it and back; digests and copies to the host are of both. */
    @Test
    void memoryBesideThePoolHasOffsetsFromIt() {
        SimulatedDriver driver = new SimulatedDriver();
        try (Gpu gpu = new Gpu(driver, 0);
                GpuKernels kernels = new GpuKernels(gpu, DType.F32);
                Gpu.Buffer pool = gpu.allocate(1024);
                Gpu.Pinned host = gpu.pinned(1024);
                CudaCopier copier = new CudaCopier(pool, kernels.copies());
                KvCopier.Beside beside = copier.allocate(512).orElseThrow()) {
            byte[] numbers = new byte[1024];
            new Random(5).nextBytes(numbers);
            host.memory().copyFrom(MemorySegment.ofArray(numbers));
            KvFence filled = copier.toDevice(List.of(new Range(0, 0, 1024)), host.memory(), KvFence.PASSED);
            KvFence gathered = copier.copy(List.of(new Rows(64, 32, beside.offset(), 16, 8, 16)), filled);
            long[] digests = new long[1];
            copier.digest(KvDigest.SUM61, List.of(new Runs(beside.offset(), 0, 1, 128)), digests, gathered)
                    .await();
            MemorySegment runs = host.memory().asSlice(0, 128);
            copier.toHost(List.of(new Range(beside.offset(), 0, 128)), runs, gathered)
                    .await();
            for (int run = 0; run < 8; run++) {
                assertThat(runs.asSlice(16L * run, 16).toArray(ValueLayout.JAVA_BYTE))
                        .isEqualTo(Arrays.copyOfRange(numbers, 64 + 32 * run, 80 + 32 * run));
            }
            KvDigest.Running digest = KvDigest.SUM61.begin();
            digest.add(runs.asByteBuffer());
            assertThat(digests).containsExactly(digest.value());
            KvFence back = copier.copy(List.of(new Rows(beside.offset(), 16, 0, 16, 8, 16)), gathered);
            copier.toHost(List.of(new Range(0, 128, 128)), host.memory(), back).await();
            assertThat(runs.mismatch(host.memory().asSlice(128, 128))).isEqualTo(-1);
            assertThat(copier.allocate(gpu.freeBytes() + 1))
                    .as("more than is free")
                    .isEmpty();
        }
        assertThat(driver.unreleased()).isEmpty();
    }

    /** Memory of work that a device goes on with may be written at any time, so it computes and copies nothing more. */
    @Test
    void aDeviceThatDoesNotEndItsWorkFailsForAll() {
        SimulatedDriver driver = new SimulatedDriver();
        try (Gpu gpu = new Gpu(driver, 0);
                GpuKernels kernels = new GpuKernels(gpu, DType.F32);
                Gpu.Buffer pool = gpu.allocate(64);
                Gpu.Pinned host = gpu.pinned(64);
                Gpu.Stream model = gpu.stream()) {
            AtomicLong now = new AtomicLong();
            StreamFences steps = new StreamFences(
                    model, () -> now.addAndGet(Duration.ofHours(1).toNanos()));
            CudaCopier copier = new CudaCopier(pool, kernels.copies());
            List<Range> all = List.of(new Range(0, 0, 64));
            KvFence before = copier.toHost(all, host.memory(), KvFence.PASSED);
            assertThatThrownBy(steps.record()::await).hasMessageContaining("has not passed a point of its work within");
            assertThatThrownBy(before::await).hasMessageContaining("has not passed a point of its work within");
            copier.fail("another failure");
            assertThatThrownBy(() -> copier.toHost(all, host.memory(), KvFence.PASSED))
                    .isInstanceOf(IllegalStateException.class)
                    .hasMessageContaining("has not passed a point of its work within");
            steps.close();
            assertThatThrownBy(copier::close).hasMessageContaining("has failed");
        }
        assertThat(driver.unreleased()).isEmpty();
    }

    private static void assertFails(CudaCopier copier, List<Runs> values, long[] digests) {
        assertThatThrownBy(() -> copier.digest(KvDigest.SUM61, values, digests, FAILED))
                .hasMessage("the device has failed");
    }
}
