package baton.pipe.nccl;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.kv.KvCopier;
import baton.kv.KvDevice;
import baton.kv.KvFence;
import baton.kv.KvMemory;
import baton.pipe.TensorBytes;
import baton.pipe.Wire;
import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
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

    /** The memory of the library's devices is the host's. */
    private static TensorBytes onDevice(MemorySegment memory) {
        KvCopier none = new KvCopier() {
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
