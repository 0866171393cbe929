package baton.cuda.model;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.cuda.driver.Gpu;
import baton.cuda.kernel.GpuKernels;
import baton.cuda.sim.SimulatedDriver;
import baton.kv.DType;
import baton.kv.DevicePeers;
import baton.kv.DevicePeers.Copy;
import baton.kv.KvFence;
import baton.kv.Ticker;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

/** Pools of two users of a simulated device. */
class CudaPeersTest {
    private static final int BYTES = 1024;

    private static byte[] read(Gpu.Buffer buffer) {
        try (Gpu.Stream stream = buffer.gpu().stream();
                Gpu.Pinned host = buffer.gpu().pinned(buffer.bytes())) {
            stream.copyToHost(host.memory(), buffer.address());
            stream.synchronize();
            return host.memory().toArray(ValueLayout.JAVA_BYTE);
        }
    }

    private static void write(Gpu.Buffer buffer, byte[] bytes) {
        try (Gpu.Stream stream = buffer.gpu().stream();
                Gpu.Pinned host = buffer.gpu().pinned(buffer.bytes())) {
            host.memory().copyFrom(MemorySegment.ofArray(bytes));
            stream.copyToDevice(buffer.address(), host.memory());
            stream.synchronize();
        }
    }

    @Test
    void copiesArriveByOneLaunchOrByCopiesOfTheDriver() throws IOException {
        SimulatedDriver driver = new SimulatedDriver();
        try (Gpu gpu = new Gpu(driver, 0);
                GpuKernels kernels = new GpuKernels(gpu, DType.F32);
                Gpu.Buffer mine = gpu.allocate(BYTES);
                Gpu.Buffer remote = gpu.allocate(BYTES);
                CudaPeers here = new CudaPeers(mine, kernels.copies(), Ticker.system());
                CudaPeers there = new CudaPeers(remote, kernels.copies(), Ticker.system())) {
            byte[] numbers = new byte[BYTES];
            for (int i = 0; i < BYTES; i++) {
                numbers[i] = (byte) (i * 31 % 251);
            }
            write(remote, numbers);
            byte[] exported = there.exported();
            assertThat(exported.length).isLessThanOrEqualTo(DevicePeers.MOST_EXPORTED_BYTES);
            // Two of the copies are one.
            List<Copy> few = List.of(new Copy(0, 32, 8), new Copy(8, 40, 8), new Copy(60, 0, 4));
            // Whole vectors, single bytes, an empty one, and both ends of the pools.
            List<Copy> many = new ArrayList<>(List.of(
                    new Copy(0, 512, 256), new Copy(333, 1, 77), new Copy(900, 300, 0), new Copy(1000, 900, 24)));
            IntStream.range(0, 20)
                    .mapToObj(i -> new Copy(16L * i, 96L + 16L * (19 - i), 16))
                    .forEach(many::add);
            check(here, mine, exported, numbers, few);
            check(here, mine, exported, numbers, many);
            List<String> unreleased = driver.unreleased();
            // The handle of a pool of another process is opened.
            byte[] ofOther = exported.clone();
            ofOther[16] = 1;
            check(here, mine, ofOther, numbers, few);
            check(here, mine, ofOther, numbers, many);
            assertThat(driver.unreleased()).as("memory of ranges is used again").isEqualTo(unreleased);
            byte[] ofOtherDevice = exported.clone();
            ofOtherDevice[0]++;
            assertThatThrownBy(() -> here.open(ofOtherDevice))
                    .isInstanceOf(IOException.class)
                    .hasMessageContaining("is on device");
            assertThatThrownBy(() -> here.open(new byte[3])).isInstanceOf(IOException.class);
        }
        assertThat(driver.unreleased()).isEmpty();
    }

    private static void check(CudaPeers here, Gpu.Buffer mine, byte[] exported, byte[] numbers, List<Copy> copies)
            throws IOException {
        byte[] expected = new byte[BYTES];
        Arrays.fill(expected, (byte) -1);
        write(mine, expected);
        DevicePeers.PeerPool pool = here.open(exported);
        KvFence fence = pool.copy(copies);
        fence.await();
        for (Copy each : copies) {
            System.arraycopy(numbers, (int) each.from(), expected, (int) each.to(), (int) each.bytes());
        }
        assertThat(read(mine)).isEqualTo(expected);
        for (Copy outside :
                List.of(new Copy(0, BYTES - 4, 8), new Copy(BYTES - 4, 0, 8), new Copy(-1, 0, 8), new Copy(0, -1, 8))) {
            assertThatThrownBy(() -> pool.copy(List.of(new Copy(16, 17, 8), outside)))
                    .hasMessageContaining("have 1024 and 1024 bytes");
        }
        pool.copy(List.of()).await();
        assertThat(read(mine))
                .as("batches that are not within the pools copy nothing")
                .isEqualTo(expected);
        pool.close();
    }
}
