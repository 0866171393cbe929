package baton.pipe.nccl;

import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;

/** Wires over a library that plays NCCL and two GPUs on the host's memory, compiled of fakenccl.c. */
class StandInNcclTest extends NcclWireContract {
    private static final Map<String, String> LIBRARY = library();

    StandInNcclTest() {
        super(there(LIBRARY));
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
