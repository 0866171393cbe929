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
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;

/** A library in place of NVIDIA's driver, compiled of fakecuda.c. */
public final class FakeCuda {
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
    public static FakeCuda build(Path directory, String... definitions) throws IOException, InterruptedException {
        return new FakeCuda(compile(directory, "fakecuda.c", "libcuda.so.1", definitions));
    }

    /** Makes a library of a C file beside this class. */
    public static Path compile(Path directory, String name, String library, String... definitions)
            throws IOException, InterruptedException {
        Optional<Path> compiler = Stream.of(
                        System.getenv().getOrDefault("PATH", "").split(File.pathSeparator))
                .map(each -> Path.of(each, "cc"))
                .filter(Files::isExecutable)
                .findFirst();
        assumeTrue(compiler.isPresent(), "there is no C compiler (cc) on the PATH");
        Path source = directory.resolve(name);
        try (InputStream in = FakeCuda.class.getResourceAsStream(name)) {
            Files.copy(in, source, StandardCopyOption.REPLACE_EXISTING);
        }
        Path file = directory.resolve(library);
        List<String> command = new ArrayList<>(List.of(compiler.get().toString(), "-shared", "-fPIC", "-w"));
        command.addAll(List.of(definitions));
        command.addAll(List.of("-o", file.toString(), source.toString()));
        Process process = new ProcessBuilder(command).inheritIO().start();
        if (!process.waitFor(1, TimeUnit.MINUTES) || process.exitValue() != 0) {
            process.destroyForcibly();
            throw new AssertionError(name + " could not be compiled by " + command);
        }
        return file;
    }

    public Path file() {
        return file;
    }

    public Driver driver() {
        Map<String, String> environment = Map.of(NativeDriver.VARIABLE, file.toString());
        return ((NativeDriver.Search.Found) NativeDriver.find(environment)).driver();
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
