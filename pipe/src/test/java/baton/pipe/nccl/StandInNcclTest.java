package baton.pipe.nccl;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.kv.KvCopier;
import baton.kv.KvDevice;
import baton.kv.KvFence;
import baton.kv.KvMemory;
import baton.messages.PeerAccess;
import baton.pipe.PipeException;
import baton.pipe.TensorBytes;
import baton.pipe.TestWires;
import baton.pipe.Wire;
import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.SymbolLookup;
import java.lang.foreign.ValueLayout;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Wires over a library that plays NCCL and two GPUs on the host's memory, compiled of fakenccl.c. */
class StandInNcclTest extends NcclWireContract {
    private static final Map<String, String> LIBRARY = library();

    StandInNcclTest() {
        super(there(LIBRARY));
    }

    /** Each end may have its bytes in the host's memory, through which pieces go, or in the GPU's. */
    @ParameterizedTest
    @CsvSource({"true, true", "true, false", "false, true"})
    void bytesInMemoryOfAGpuGoFromAndToWhereTheyAre(boolean fromDevice, boolean toDevice) throws Exception {
        Wire[] ends = meet();
        try (Arena arena = Arena.ofShared()) {
            for (int size : new int[] {0, 10, 9 << 20}) {
                MemorySegment sent = arena.allocate(Math.max(1, size)).asSlice(0, size);
                for (int at = 0; at < size; at++) {
                    sent.set(ValueLayout.JAVA_BYTE, at, (byte) (at % 251));
                }
                MemorySegment into = arena.allocate(Math.max(1, size)).asSlice(0, size);
                FutureTask<Boolean> receiving = background(() -> {
                    ends[1].receive(toDevice ? onDevice(into) : new TensorBytes.Host(into), LONG);
                    return true;
                });
                ends[0].send(fromDevice ? onDevice(sent) : new TensorBytes.Host(sent), LONG);
                assertThat(result(receiving)).isTrue();
                assertThat(into.mismatch(sent)).isEqualTo(-1);
            }
        }
    }

    /** Bytes that the GPU writes to the tensor's memory after the receive would be another tensor's. */
    @Test
    void aGpuThatGoesOnAfterAFailedReceiveFails() throws Exception {
        AtomicLong skipped = new AtomicLong();
        List<String> failures = new CopyOnWriteArrayList<>();
        try (Arena arena = Arena.ofShared();
                NcclTransport transport = NcclTransport.load(
                        LIBRARY, 0, PeerAccess.everyone(), () -> System.nanoTime() + skipped.get())) {
            Wire[] ends = TestWires.offered(transport);
            int _ = stallTransfers(1);
            FutureTask<Boolean> sending = background(() -> {
                ends[0].send(arena.allocate(10), LONG);
                return true;
            });
            FutureTask<Boolean> receiving = background(() -> {
                ends[1].receive(onDevice(arena.allocate(10), failures), LONG);
                return true;
            });
            while (!receiving.isDone()) {
                skipped.addAndGet(stallTransfers(-1) > 1 ? LONG.toNanos() : 0);
                LockSupport.parkNanos(1_000_000);
            }
            assertThatThrownBy(() -> result(receiving)).isInstanceOf(PipeException.class);
            assertThatThrownBy(() -> result(sending)).isInstanceOf(PipeException.class);
            assertThat(failures).singleElement().asString().contains("NCCL goes on with a tensor that has failed");
        } finally {
            int _ = stallTransfers(0);
        }
    }

    private static int stallTransfers(int set) {
        MemorySegment function = SymbolLookup.libraryLookup(Path.of(LIBRARY.get(NcclApi.NCCL_VARIABLE)), Arena.global())
                .findOrThrow("stallTransfers");
        try {
            return (int) Linker.nativeLinker()
                    .downcallHandle(function, FunctionDescriptor.of(ValueLayout.JAVA_INT, ValueLayout.JAVA_INT))
                    .invokeExact(set);
        } catch (Throwable e) {
            throw new AssertionError(e);
        }
    }

    private static TensorBytes onDevice(MemorySegment memory) {
        return onDevice(memory, new ArrayList<>());
    }

    /** The memory of the library's devices is the host's. */
    private static TensorBytes onDevice(MemorySegment memory, List<String> failures) {
        KvCopier none = new KvCopier() {
            @Override
            public void fail(String why) {
                failures.add(why);
            }

            @Override
            public KvFence toHost(List<Range> ranges, MemorySegment host, KvFence after) {
                throw new AssertionError("wires have copies of their own");
            }

            @Override
            public KvFence toDevice(List<Range> ranges, MemorySegment host, KvFence after) {
                throw new AssertionError("wires have copies of their own");
            }
        };
        KvMemory.Device pool = new KvMemory.Device(memory.address() - 4096, 64, new KvDevice("cuda", 0), none);
        return new TensorBytes.Device(pool, 4096, memory.byteSize());
    }

    private static Map<String, String> there(Map<String, String> library) {
        assumeTrue(!library.isEmpty(), "there is no C compiler (cc) on the PATH");
        return library;
    }

    private static Map<String, String> library() {
        boolean compiles = Stream.of(System.getenv().getOrDefault("PATH", "").split(File.pathSeparator))
                .anyMatch(each -> Files.isExecutable(Path.of(each, "cc")));
        if (!compiles) {
            return Map.of();
        }
        try (InputStream in = StandInNcclTest.class.getResourceAsStream("fakenccl.c")) {
            Path directory = Files.createTempDirectory("baton-nccl");
            Path source = directory.resolve("fakenccl.c");
            Files.copy(in, source);
            Path file = directory.resolve("libnccl.so.2");
            List<String> command =
                    List.of("cc", "-shared", "-fPIC", "-w", "-pthread", "-o", file.toString(), source.toString());
            Process process = new ProcessBuilder(command).inheritIO().start();
            if (!process.waitFor(1, TimeUnit.MINUTES) || process.exitValue() != 0) {
                process.destroyForcibly();
                throw new AssertionError("fakenccl.c could not be compiled by " + command);
            }
            directory.toFile().deleteOnExit();
            source.toFile().deleteOnExit();
            file.toFile().deleteOnExit();
            return Map.of(NcclApi.NCCL_VARIABLE, file.toString(), NcclApi.CUDA_VARIABLE, file.toString());
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        } catch (InterruptedException e) {
            throw new AssertionError(e);
        }
    }
}
