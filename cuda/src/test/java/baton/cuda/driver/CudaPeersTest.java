package baton.cuda.driver;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.cuda.driver.NativeDriver.Search;
import baton.kv.DevicePeers;
import baton.kv.DevicePeers.Copy;
import baton.kv.KvFence;
import baton.kv.Ticker;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Pools of two users of a device, in a library that plays the driver on the host's memory. */
class CudaPeersTest {
    @TempDir
    private Path directory;

    @Test
    void copiesAreMergedAndArrive() throws Exception {
        FakeCuda library = FakeCuda.build(directory);
        Driver driver = ((Search.Found) NativeDriver.find(
                        Map.of(NativeDriver.VARIABLE, library.file().toString())))
                .driver();
        try (Gpu gpu = new Gpu(driver, 0);
                Gpu.Buffer mine = gpu.allocate(64);
                Gpu.Buffer theirs = gpu.allocate(64);
                CudaPeers here = new CudaPeers(mine, Ticker.system());
                CudaPeers there = new CudaPeers(theirs, Ticker.system())) {
            for (int i = 0; i < 64; i++) {
                bytes(theirs).set(ValueLayout.JAVA_BYTE, i, (byte) i);
            }
            bytes(mine).fill((byte) -1);
            byte[] exported = there.exported();
            assertThat(exported.length).isLessThanOrEqualTo(DevicePeers.MOST_EXPORTED_BYTES);
            check(library, here, mine, exported, List.of());
            // The handle of a pool of another process is opened.
            exported[16] = 1;
            bytes(mine).fill((byte) -1);
            check(library, here, mine, exported, List.of("open 1", "close"));
            exported[0]++;
            assertThatThrownBy(() -> here.open(exported))
                    .isInstanceOf(IOException.class)
                    .hasMessageContaining("is on device 717172");
            assertThatThrownBy(() -> here.open(new byte[3])).isInstanceOf(IOException.class);
        }
    }

    private static void check(
            FakeCuda library, CudaPeers here, Gpu.Buffer mine, byte[] exported, List<String> openedAndClosed)
            throws IOException {
        library.log();
        DevicePeers.PeerPool pool = here.open(exported);
        KvFence fence = pool.copy(List.of(new Copy(0, 32, 8), new Copy(8, 40, 8), new Copy(60, 0, 4)));
        assertThat(fence.isPassed()).isFalse();
        fence.await();
        for (int i = 0; i < 64; i++) {
            int expected = i < 4 ? 60 + i : i >= 32 && i < 48 ? i - 32 : -1;
            assertThat(bytes(mine).get(ValueLayout.JAVA_BYTE, i))
                    .as("byte %d", i)
                    .isEqualTo((byte) expected);
        }
        List<String> calls = new ArrayList<>(library.log());
        for (Copy outside : List.of(new Copy(0, 60, 8), new Copy(60, 0, 8), new Copy(-1, 0, 8), new Copy(0, -1, 8))) {
            assertThatThrownBy(() -> pool.copy(List.of(new Copy(16, 16, 8), outside)))
                    .hasMessageContaining("have 64 and 64 bytes");
        }
        pool.copy(List.of()).await();
        assertThat(bytes(mine).get(ValueLayout.JAVA_BYTE, 16))
                .as("a byte of batches that are not within the pools")
                .isEqualTo((byte) -1);
        pool.close();
        calls.addAll(library.log());
        assertThat(calls.stream().filter(line -> line.startsWith("open") || line.startsWith("close")))
                .containsExactlyElementsOf(openedAndClosed);
    }

    private static MemorySegment bytes(Gpu.Buffer buffer) {
        return MemorySegment.ofAddress(buffer.address()).reinterpret(buffer.bytes());
    }
}
