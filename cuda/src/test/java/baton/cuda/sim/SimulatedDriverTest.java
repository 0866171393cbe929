package baton.cuda.sim;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.cuda.driver.CudaException;
import baton.cuda.driver.Driver.LaunchShape;
import baton.cuda.driver.Gpu;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import org.junit.jupiter.api.Test;

/** Memory, streams, events and graphs of the simulated device. */
class SimulatedDriverTest {
    private static final String INCREMENT = Bench.kernel("""
            mad.wide.u32 %q3, %r1, 4, %q0;
            ld.global.u32 %r2, [%q3];
            add.u32 %r2, %r2, %r0;
            st.global.u32 [%q3], %r2;
            """);
    private static final LaunchShape ONE = new LaunchShape(1, 1);

    private static int first(MemorySegment segment) {
        return segment.get(ValueLayout.JAVA_INT, 0);
    }

    @Test
    void workIsDoneWhenItIsAwaited() {
        try (Bench bench = new Bench();
                Gpu.Buffer buffer = bench.buffer(1);
                Gpu.Pinned pinned = bench.gpu.pinned(4);
                Gpu.Module module = bench.gpu.load(INCREMENT)) {
            bench.stream.launch(module.function("k"), ONE, buffer.address(), 0, 0, 5);
            bench.stream.copyToHost(pinned.memory(), buffer.address());
            assertThat(first(pinned.memory())).isZero();
            bench.stream.synchronize();
            assertThat(first(pinned.memory())).isEqualTo(6);
        }
    }

    @Test
    void pinnedMemoryIsReadWhenTheCopyIsDone() {
        try (Bench bench = new Bench();
                Gpu.Buffer buffer = bench.gpu.allocate(4);
                Gpu.Pinned pinned = bench.gpu.pinned(4)) {
            bench.stream.copyToDevice(buffer.address(), pinned.memory());
            pinned.memory().set(ValueLayout.JAVA_INT, 0, 9);
            assertThat(bench.read(buffer)).containsExactly(9);
        }
    }

    @Test
    void copiesOfOtherMemoryAreDoneAtOnce() {
        try (Bench bench = new Bench();
                Arena arena = Arena.ofConfined();
                Gpu.Buffer buffer = bench.gpu.allocate(4)) {
            MemorySegment host = arena.allocateFrom(ValueLayout.JAVA_INT, 4);
            bench.stream.copyToDevice(buffer.address(), host);
            host.set(ValueLayout.JAVA_INT, 0, 9);
            assertThat(bench.read(buffer)).containsExactly(4);
            bench.gpu.driver().registerHost(bench.gpu.context(), host);
            bench.stream.copyToHost(host, buffer.address());
            assertThat(first(host)).isEqualTo(9);
            bench.stream.synchronize();
            assertThat(first(host)).isEqualTo(4);
            bench.gpu.driver().unregisterHost(bench.gpu.context(), host);
            assertThatThrownBy(() -> bench.stream.copyToDevice(buffer.address(), MemorySegment.ofArray(new int[1])))
                    .isInstanceOf(IllegalArgumentException.class);
        }
    }

    @Test
    void streamsWaitForEventsOnly() {
        try (Bench bench = new Bench();
                Gpu.Stream other = bench.gpu.stream();
                Gpu.Event event = bench.gpu.event();
                Gpu.Buffer buffer = bench.buffer(1);
                Gpu.Pinned pinned = bench.gpu.pinned(4)) {
            bench.stream.fill(buffer.address(), 7, 4);
            event.record(bench.stream);
            other.copyToHost(pinned.memory(), buffer.address());
            other.synchronize();
            assertThat(first(pinned.memory())).isEqualTo(1);
            other.waitFor(event);
            other.copyToHost(pinned.memory(), buffer.address());
            other.synchronize();
            assertThat(first(pinned.memory())).isEqualTo(0x07070707);
            assertThat(event.isPassed()).isTrue();
        }
    }

    @Test
    void anEventIsPassedOnceItWasAskedForOften() {
        try (Bench bench = new Bench();
                Gpu.Event before = bench.gpu.event();
                Gpu.Event event = bench.gpu.event();
                Gpu.Buffer buffer = bench.buffer(1)) {
            before.record(bench.stream);
            bench.stream.fill(buffer.address(), 7, 4);
            event.record(bench.stream);
            assertThat(event.isPassed()).isFalse();
            assertThatThrownBy(() -> bench.driver.elapsedMillis(bench.gpu.context(), before.handle(), event.handle()))
                    .hasMessageContaining("CUDA_ERROR_NOT_READY");
            assertThat(event.isPassed()).isFalse();
            assertThat(event.isPassed()).isTrue();
            assertThat(bench.driver.elapsedMillis(bench.gpu.context(), before.handle(), event.handle()))
                    .isPositive();
        }
    }

    @Test
    void graphsAreExecutedEachTimeTheyAreLaunched() {
        try (Bench bench = new Bench();
                Gpu.Stream other = bench.gpu.stream();
                Gpu.Event fork = bench.gpu.event();
                Gpu.Event join = bench.gpu.event();
                Gpu.Buffer buffer = bench.buffer(1);
                Gpu.Module module = bench.gpu.load(INCREMENT)) {
            long context = bench.gpu.context();
            bench.driver.beginCapture(context, bench.stream.handle());
            bench.stream.launch(module.function("k"), ONE, buffer.address(), 0, 0, 10);
            fork.record(bench.stream);
            other.waitFor(fork);
            other.launch(module.function("k"), ONE, buffer.address(), 0, 0, 100);
            join.record(other);
            bench.stream.waitFor(join);
            assertThatThrownBy(bench.stream::synchronize).hasMessageContaining("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED");
            assertThatThrownBy(() -> bench.read(buffer)).hasMessageContaining("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED");
            long graph = bench.driver.endCapture(context, bench.stream.handle());
            assertThat(bench.read(buffer)).containsExactly(1);
            bench.driver.launchGraph(context, graph, bench.stream.handle());
            bench.driver.launchGraph(context, graph, bench.stream.handle());
            assertThat(bench.read(buffer)).containsExactly(221);
            bench.driver.destroyGraph(context, graph);
        }
    }

    @Test
    void capturesAreJoinedAndIsolated() {
        try (Bench bench = new Bench();
                Gpu.Stream other = bench.gpu.stream();
                Gpu.Event outside = bench.gpu.event();
                Gpu.Event fork = bench.gpu.event();
                Gpu.Buffer buffer = bench.buffer(1)) {
            long context = bench.gpu.context();
            outside.record(other);
            bench.driver.beginCapture(context, bench.stream.handle());
            assertThatThrownBy(() -> bench.stream.waitFor(outside)).hasMessageContaining("STREAM_CAPTURE_ISOLATION");
            fork.record(bench.stream);
            other.waitFor(fork);
            other.fill(buffer.address(), 7, 4);
            assertThatThrownBy(() -> bench.driver.endCapture(context, bench.stream.handle()))
                    .hasMessageContaining("CUDA_ERROR_STREAM_CAPTURE_UNJOINED");
            assertThatThrownBy(fork::isPassed).hasMessageContaining("CUDA_ERROR_CAPTURED_EVENT");
            assertThatThrownBy(() -> other.waitFor(fork)).hasMessageContaining("CUDA_ERROR_CAPTURED_EVENT");
            assertThat(bench.read(buffer)).containsExactly(1);
        }
    }

    @Test
    void copiesOnTheDeviceKeepWhichBytesAreWritten() {
        try (Bench bench = new Bench();
                Gpu.Buffer from = bench.gpu.allocate(8);
                Gpu.Buffer to = bench.buffer(1, 2);
                Gpu.Module module = bench.gpu.load(INCREMENT)) {
            bench.stream.fill(from.address(), 1, 4);
            bench.stream.copy(to.address(), from.address(), 8);
            bench.stream.launch(module.function("k"), ONE, to.address(), 0, 0, 1);
            assertThat(bench.read(to)[0]).isEqualTo(0x01010102);
            bench.stream.launch(module.function("k"), ONE, to.address() + 4, 0, 0, 1);
            assertThatThrownBy(bench.stream::synchronize).hasMessageContaining("that nothing has written");
        }
    }

    @Test
    void memoryIsLimited() {
        SimulatedDriver driver = new SimulatedDriver(2, 1000);
        try (Gpu gpu = new Gpu(driver, 1);
                Gpu.Buffer _ = gpu.allocate(600)) {
            assertThat(gpu.freeBytes()).isEqualTo(400);
            assertThatThrownBy(() -> gpu.allocate(401))
                    .isInstanceOfSatisfying(
                            CudaException.class, e -> assertThat(e.code()).isEqualTo(2))
                    .hasMessageContaining("CUDA_ERROR_OUT_OF_MEMORY (2): bytes=401; 400 of 1000 bytes are free");
        }
        try (Gpu gpu = new Gpu(driver, 1)) {
            assertThat(gpu.freeBytes()).isEqualTo(1000);
        }
    }

    @Test
    void anAllocationIsOpenedByItsHandle() {
        try (Bench bench = new Bench();
                Gpu.Buffer buffer = bench.buffer(3)) {
            long context = bench.gpu.context();
            long opened = bench.driver.openMemory(context, bench.driver.exportMemory(context, buffer.address()));
            bench.stream.fill(opened, 1, 4);
            assertThat(opened).isNotEqualTo(buffer.address());
            assertThat(bench.read(buffer)).containsExactly(0x01010101);
            bench.driver.closeMemory(context, opened);
            assertThatThrownBy(() -> bench.stream.fill(opened, 1, 4)).hasMessageContaining("is freed");
            assertThatThrownBy(() -> bench.driver.openMemory(context, new byte[64]))
                    .hasMessageContaining("handle");
        }
    }

    @Test
    void launchesAreChecked() {
        try (Bench bench = new Bench();
                Gpu.Module module = bench.gpu.load(INCREMENT)) {
            Gpu.Function function = module.function("k");
            assertThatThrownBy(() -> bench.stream.launch(function, ONE, 1, 2)).hasMessageContaining("2 arguments");
            assertThatThrownBy(() -> bench.stream.launch(function, new LaunchShape(1, 1025), 1, 2, 3, 4))
                    .hasMessageContaining("threads=1025, at most 1024");
            assertThatThrownBy(() -> bench.stream.launch(function, new LaunchShape(0, 1), 1, 2, 3, 4))
                    .hasMessageContaining("gridX=0");
            LaunchShape large = new LaunchShape(1, 1, 1, 1, 50_000);
            assertThatThrownBy(() -> bench.stream.launch(function, large, 1, 2, 3, 4))
                    .hasMessageContaining("50256 bytes of shared memory, at most 49152 are allowed");
            bench.driver.allowSharedBytes(bench.gpu.context(), function.handle(), 50_000);
            bench.stream.launch(function, large, bench.buffer(1).address(), 2, 3, 4);
            assertThatThrownBy(() -> bench.driver.allowSharedBytes(bench.gpu.context(), function.handle(), 1 << 20))
                    .hasMessageContaining("a block has at most 232448");
            assertThatThrownBy(() -> module.function("z")).hasMessageContaining("the module has no kernel z");
        }
    }

    @Test
    void namesObjectsThatAreNotReleased() {
        SimulatedDriver driver;
        try (Bench bench = new Bench();
                Gpu.Buffer buffer = bench.buffer(1, 2);
                Gpu.Pinned _ = bench.gpu.pinned(12);
                Gpu.Event _ = bench.gpu.event();
                Gpu.Module _ = bench.gpu.load(INCREMENT)) {
            driver = bench.driver;
            assertThat(driver.unreleased())
                    .containsExactlyInAnyOrder(
                            "8 bytes at 0x%x".formatted(buffer.address()),
                            "12 bytes of pinned host memory",
                            "a stream",
                            "an event",
                            "a module");
        }
        assertThat(driver.unreleased()).isEmpty();
    }
}
