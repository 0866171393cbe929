package baton.cuda.driver;

import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.SymbolLookup;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;

/** A library in place of NVIDIA's driver, compiled of fakecuda.c. */
final class FakeCuda {
    private final Path file;
    private final MethodHandle log;

    private FakeCuda(Path file) {
        this.file = file;
        this.log = Linker.nativeLinker()
                .downcallHandle(
                        SymbolLookup.libraryLookup(file, Arena.global()).findOrThrow("fake_log"),
                        FunctionDescriptor.of(ValueLayout.ADDRESS));
    }

    /** @param definitions as of a C compiler: {@code -DDEVICES=0} */
    static FakeCuda build(Path directory, String... definitions) throws IOException, InterruptedException {
        Optional<Path> compiler = Stream.of(
                        System.getenv().getOrDefault("PATH", "").split(File.pathSeparator))
                .map(each -> Path.of(each, "cc"))
                .filter(Files::isExecutable)
                .findFirst();
        assumeTrue(compiler.isPresent(), "there is no C compiler (cc) on the PATH");
        Path source = directory.resolve("fakecuda.c");
        try (InputStream in = FakeCuda.class.getResourceAsStream("fakecuda.c")) {
            Files.copy(in, source);
        }
        Path file = directory.resolve("libcuda.so.1");
        List<String> command = new ArrayList<>(List.of(compiler.get().toString(), "-shared", "-fPIC", "-w"));
        command.addAll(List.of(definitions));
        command.addAll(List.of("-o", file.toString(), source.toString()));
        Process process = new ProcessBuilder(command).inheritIO().start();
        if (!process.waitFor(1, TimeUnit.MINUTES) || process.exitValue() != 0) {
            process.destroyForcibly();
            throw new AssertionError("fakecuda.c could not be compiled by " + command);
        }
        return new FakeCuda(file);
    }

    Path file() {
        return file;
    }

    /** The calls since the last time, one a line. */
    List<String> log() {
        try {
            MemorySegment text = (MemorySegment) log.invokeExact();
            return text.reinterpret(Integer.MAX_VALUE).getString(0).lines().toList();
        } catch (Throwable e) {
            throw new AssertionError(e);
        }
    }
}
