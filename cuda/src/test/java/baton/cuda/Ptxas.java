package baton.cuda;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.File;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;

/** NVIDIA's assembler of PTX, which {@code BATON_PTXAS} names, or which is on the path. */
public final class Ptxas {
    private static final List<String> TARGETS = List.of("sm_80", "sm_90", "sm_100");
    private static final long MAX_SECONDS = 120;
    private static final Pattern KERNEL = Pattern.compile("Compiling entry function '(\\w+)'");
    private static final Pattern SPILLS = Pattern.compile("(\\d+) bytes spill stores");
    private static final Pattern REGISTERS = Pattern.compile("Used (\\d+) registers");

    private final Path program;

    private Ptxas(Path program) {
        this.program = program;
    }

    /**
     * A kernel, assembled.
     *
     * @param spilled bytes of registers that a thread stores in memory for want of others
     */
    public record Report(String kernel, String target, int registers, int spilled) {}

    /** The assembler; without it the test is skipped. */
    public static Ptxas assumed() {
        Optional<Path> found = Stream.concat(
                        Optional.ofNullable(System.getenv("BATON_PTXAS")).map(Path::of).stream(),
                        Stream.of(System.getenv().getOrDefault("PATH", "").split(File.pathSeparator))
                                .map(directory -> Path.of(directory, "ptxas")))
                .filter(Files::isExecutable)
                .findFirst();
        assumeTrue(found.isPresent(), "needs ptxas of the CUDA toolkit on the PATH or in BATON_PTXAS");
        return new Ptxas(found.orElseThrow());
    }

    /** Assembles a module for each target. */
    public List<Report> assemble(String ptx) {
        List<Report> reports = new ArrayList<>();
        TARGETS.forEach(target -> reports.addAll(assemble(ptx, target)));
        return reports;
    }

    /** Fails with the assembler's log if the module has errors. */
    public List<Report> assemble(String ptx, String target) {
        try {
            Path directory = Files.createTempDirectory("ptxas");
            Path source = Files.writeString(directory.resolve("kernels.ptx"), ptx);
            Path log = directory.resolve("log");
            Path output = directory.resolve("kernels.cubin");
            Process process = new ProcessBuilder(
                            program.toString(), "-v", "-arch=" + target, source.toString(), "-o", output.toString())
                    .redirectErrorStream(true)
                    .redirectOutput(log.toFile())
                    .start();
            if (!process.waitFor(MAX_SECONDS, TimeUnit.SECONDS)) {
                process.destroyForcibly();
                throw new AssertionError("ptxas did not end within %d s".formatted(MAX_SECONDS));
            }
            List<String> lines = Files.readAllLines(log);
            for (Path file : List.of(source, log, output, directory)) {
                Files.deleteIfExists(file);
            }
            assertThat(process.exitValue())
                    .as(() -> "ptxas -arch=%s: %s".formatted(target, String.join("\n", lines)))
                    .isZero();
            return reports(lines, target);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException("interrupted while ptxas ran", e);
        }
    }

    private static List<Report> reports(List<String> lines, String target) {
        List<Report> reports = new ArrayList<>();
        String kernel = "";
        int spilled = 0;
        for (String line : lines) {
            Matcher named = KERNEL.matcher(line);
            Matcher spills = SPILLS.matcher(line);
            Matcher registers = REGISTERS.matcher(line);
            if (named.find()) {
                kernel = named.group(1);
            } else if (spills.find()) {
                spilled = Integer.parseInt(spills.group(1));
            } else if (registers.find()) {
                reports.add(new Report(kernel, target, Integer.parseInt(registers.group(1)), spilled));
            }
        }
        return reports;
    }
}
