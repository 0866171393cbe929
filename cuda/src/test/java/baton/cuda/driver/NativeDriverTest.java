package baton.cuda.driver;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.cuda.driver.Driver.DeviceInfo;
import baton.cuda.driver.Driver.LaunchShape;
import baton.cuda.driver.NativeDriver.Search;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.file.Path;
import java.util.Map;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The driver's functions get the arguments that cuda.h says, in a library that plays the driver. */
class NativeDriverTest {
    @TempDir
    private Path directory;

    @TempDir
    private Path ofLibrary;

    private static Search search(FakeCuda library) {
        return NativeDriver.find(Map.of(NativeDriver.VARIABLE, library.file().toString()));
    }

    private FakeCuda library;

    @BeforeEach
    void buildLibrary() throws Exception {
        library = FakeCuda.build(ofLibrary);
    }

    private Gpu gpu() {
        if (!(search(library) instanceof Search.Found(Driver driver))) {
            throw new AssertionError("the driver was not found in " + library.file());
        }
        return new Gpu(driver, 0);
    }

    @Test
    void devicesAndContexts() throws Exception {
        Gpu gpu = gpu();
        assertThat(gpu.driver().version()).isEqualTo(12_040);
        assertThat(gpu.driver().deviceCount()).isEqualTo(1);
        assertThat(gpu.info())
                .isEqualTo(new DeviceInfo("Fake 7", 90, 80L << 30, 132, 232_448, "707172737475767778797a7b7c7d7e7f"));
        assertThat(gpu.freeBytes()).isEqualTo(5L << 32);
        gpu.close();
        assertThat(library.log()).containsExactly("retain 7", "release 7");
    }

    @Test
    void bytesGoThereAndBack() throws Exception {
        try (Gpu gpu = gpu();
                Gpu.Stream stream = gpu.stream();
                Gpu.Buffer from = gpu.allocate(64);
                Gpu.Buffer to = gpu.allocate(64);
                Gpu.Pinned host = gpu.pinned(64)) {
            for (int i = 0; i < 64; i++) {
                host.memory().set(ValueLayout.JAVA_BYTE, i, (byte) (i * 3));
            }
            MemorySegment bytes = host.memory();
            stream.copyToDevice(from.address(), bytes);
            stream.fill(from.address() + 8, 0xfe, 4);
            stream.copy(to.address(), from.address(), 64);
            bytes.fill((byte) 0);
            stream.copyToHost(bytes.asSlice(1, 63), to.address());
            stream.synchronize();
            for (int i = 0; i < 63; i++) {
                byte expected = (byte) (i >= 8 && i < 12 ? 0xfe : i * 3);
                assertThat(bytes.get(ValueLayout.JAVA_BYTE, i + 1))
                        .as("byte %d", i)
                        .isEqualTo(expected);
            }
        }
        assertThat(library.log())
                .containsExactly(
                        "retain 7",
                        "stream 1",
                        "host 64 1",
                        "synchronize 1000000051",
                        "free host",
                        "destroy stream 1000000051",
                        "release 7");
    }

    @Test
    void rowsAreCopiedByOneCall() throws Exception {
        try (Gpu gpu = gpu();
                Gpu.Stream stream = gpu.stream();
                Gpu.Buffer buffer = gpu.allocate(64);
                Gpu.Pinned host = gpu.pinned(64)) {
            MemorySegment bytes = host.memory();
            for (int i = 0; i < 64; i++) {
                bytes.set(ValueLayout.JAVA_BYTE, i, (byte) i);
            }
            stream.fill(buffer.address(), 0, 64);
            Driver.Rows rows = new Driver.Rows(3, 4, 10, 6);
            stream.copyToDevice(buffer.address() + 1, bytes.asSlice(8, 16), rows);
            bytes.fill((byte) 0);
            stream.copyToHost(bytes.asSlice(40, 16), buffer.address() + 1, rows);
            for (int i = 0; i < 64; i++) {
                boolean ofRow = i >= 40 && i < 56 && (i - 40) % 6 < 4;
                assertThat(bytes.get(ValueLayout.JAVA_BYTE, i)).as("byte %d", i).isEqualTo((byte) (ofRow ? i - 32 : 0));
            }
        }
        assertThat(library.log())
                .contains("rows 3 4 from 1 6 to 2 10 stream 1000000051", "rows 3 4 from 2 10 to 1 6 stream 1000000051");
    }

    @Test
    void memoryThatIsPinnedLater() throws Exception {
        try (Gpu gpu = gpu();
                Arena arena = Arena.ofConfined()) {
            MemorySegment memory = arena.allocate(100);
            memory.set(ValueLayout.JAVA_BYTE, 0, (byte) 42);
            gpu.driver().registerHost(gpu.context(), memory);
            gpu.driver().unregisterHost(gpu.context(), memory);
        }
        assertThat(library.log()).containsExactly("retain 7", "register 100 1 42", "unregister 42", "release 7");
    }

    @Test
    void eventsArePassedAfterAWhile() throws Exception {
        try (Gpu gpu = gpu();
                Gpu.Stream stream = gpu.stream();
                Gpu.Event event = gpu.event()) {
            event.record(stream);
            stream.waitFor(event);
            assertThat(event.isPassed()).isFalse();
            assertThat(event.isPassed()).isTrue();
            assertThat(gpu.driver().elapsedMillis(gpu.context(), event.handle(), event.handle()))
                    .isEqualTo(2.5f);
            assertThatThrownBy(() -> gpu.driver().isPassed(gpu.context(), 0))
                    .isInstanceOf(CudaException.class)
                    .hasMessage("cuEventQuery failed with CUDA_ERROR_INVALID_VALUE (1): an unknown error");
        }
        assertThat(library.log())
                .containsExactly(
                        "retain 7",
                        "stream 1",
                        "event 0",
                        "record 1000000077 1000000051",
                        "wait 1000000051 1000000077 0",
                        "elapsed 1000000077 1000000077",
                        "destroy event 1000000077",
                        "destroy stream 1000000051",
                        "release 7");
    }

    @Test
    void launchesGetTheirArgumentsInOrder() throws Exception {
        try (Gpu gpu = gpu();
                Gpu.Stream stream = gpu.stream();
                Gpu.Module module = gpu.load("of four\n")) {
            Gpu.Function function = module.function("kernel4");
            gpu.driver().allowSharedBytes(gpu.context(), function.handle(), 100_000);
            library.log();
            stream.launch(function, new LaunchShape(2, 3, 4, 128, 512), 0x1234_5678_9abcL, -1, 7, 1L << 63);
            stream.launch(module.function("kernel0"), new LaunchShape(65_536, 32));
            assertThat(library.log())
                    .containsExactly(
                            "launch 4 grid 2 3 4 block 128 1 1 shared 512 stream 1000000051 extra (nil):"
                                    + " 123456789abc ffffffffffffffff 7 8000000000000000",
                            "launch 0 grid 65536 1 1 block 32 1 1 shared 0 stream 1000000051 extra (nil):");
        }
        assertThat(library.log()).containsExactly("unload 300", "destroy stream 1000000051", "release 7");
    }

    @Test
    void theLogOfTheCompilerIsInTheError() throws Exception {
        try (Gpu gpu = gpu()) {
            assertThatThrownBy(() -> gpu.load("broken"))
                    .isInstanceOfSatisfying(
                            CudaException.class, e -> assertThat(e.code()).isEqualTo(218))
                    .hasMessage(
                            "cuModuleLoadDataEx failed with CUDA_ERROR_INVALID_PTX (218): ptxas fatal: line 3, broken");
        }
    }

    @Test
    void aGraphHasTheCapturedWork() throws Exception {
        try (Gpu gpu = gpu();
                Gpu.Stream stream = gpu.stream()) {
            library.log();
            gpu.driver().beginCapture(gpu.context(), stream.handle());
            long graph = gpu.driver().endCapture(gpu.context(), stream.handle());
            gpu.driver().launchGraph(gpu.context(), graph, stream.handle());
            gpu.driver().destroyGraph(gpu.context(), graph);
            assertThat(library.log())
                    .containsExactly(
                            "capture 1000000051 2",
                            "captured 1000000051",
                            "instantiate 900 0",
                            "destroy graph 900",
                            "replay 901 1000000051",
                            "destroy exec 901");
        }
    }

    @Test
    void memoryIsOpenedByItsHandle() throws Exception {
        try (Gpu gpu = gpu();
                Gpu.Buffer buffer = gpu.allocate(16)) {
            byte[] handle = gpu.driver().exportMemory(gpu.context(), buffer.address());
            assertThat(handle).hasSize(64);
            assertThat(gpu.driver().openMemory(gpu.context(), handle)).isEqualTo(buffer.address());
            gpu.driver().closeMemory(gpu.context(), buffer.address());
            assertThatThrownBy(() -> gpu.driver().openMemory(gpu.context(), new byte[64]))
                    .hasMessageContaining("cuIpcOpenMemHandle_v2 failed with CUDA_ERROR_INVALID_VALUE (1)");
            assertThatThrownBy(() -> gpu.driver().openMemory(gpu.context(), new byte[10]))
                    .hasMessage("handle has 10 bytes, must have 64");
        }
        assertThat(library.log()).containsExactly("retain 7", "open 1", "close", "release 7");
    }

    @Test
    void errorsHaveTheDriversNameAndText() throws Exception {
        try (Gpu gpu = gpu()) {
            assertThatThrownBy(() -> gpu.allocate(1L << 40))
                    .isInstanceOf(CudaException.class)
                    .hasMessage("cuMemAlloc_v2 failed with CUDA_ERROR_OUT_OF_MEMORY (2): out of memory");
            assertThatThrownBy(() -> gpu.driver().allocate(1, 16)).hasMessageContaining("CUDA_ERROR_INVALID_CONTEXT");
        }
    }

    @Test
    void reasonsWhyThereIsNone() throws Exception {
        Path none = directory.resolve("none.so");
        assertThat(NativeDriver.find(Map.of(NativeDriver.VARIABLE, none.toString())))
                .isEqualTo(new Search.Absent("NVIDIA's driver is not available (cannot load %s)".formatted(none)));
        assertThat(NativeDriver.find(Map.of(NativeDriver.VARIABLE, directory.toString())))
                .isEqualTo(new Search.Absent("NVIDIA's driver is not available (cannot load %s, %s)"
                        .formatted(directory.resolve("libcuda.so.1"), "/usr/local/nvidia/lib64/libcuda.so.1")));
    }

    @Test
    void aDriverThatIsTooOld() throws Exception {
        assertThat(search(FakeCuda.build(directory, "-DVERSION=11080")))
                .isEqualTo(new Search.Absent("NVIDIA's driver is for CUDA 11.8; PTX 8.0 needs CUDA 12.0"));
    }

    @Test
    void aDriverThatFindsNoDevice() throws Exception {
        assertThat(search(FakeCuda.build(directory, "-DDEVICES=-1")))
                .isEqualTo(
                        new Search.Absent(
                                "NVIDIA's driver is not available (cuInit failed with CUDA_ERROR_NO_DEVICE (100): no CUDA-capable device is detected)"));
    }

    @Test
    void devicesThatTheEnvironmentHides() throws Exception {
        FakeCuda library = FakeCuda.build(directory, "-DDEVICES=0");
        assertThat(NativeDriver.find(
                        Map.of(NativeDriver.VARIABLE, library.file().toString(), "CUDA_VISIBLE_DEVICES", "-1")))
                .isEqualTo(new Search.Absent("NVIDIA's driver has no device; CUDA_VISIBLE_DEVICES is -1"));
    }
}
