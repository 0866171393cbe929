package baton.dist;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/**
 * {@code examples/library} as a project of its own: Baton is installed by Maven into a local repository (links to the files of the user's,
 * which stays as it is), and the project, copied to another folder, is compiled and run against it.
 */
class LibraryTest {
    private static final Path ROOT = Path.of(System.getProperty("baton.root"));
    private static final Duration DEADLINE = Duration.ofMinutes(8);

    @TempDir
    private Path directory;

    private String run(Path where, List<String> command) throws IOException, InterruptedException {
        Path said = Files.createTempFile(directory, "said", "");
        ProcessBuilder builder = new ProcessBuilder(command)
                .directory(where.toFile())
                .redirectErrorStream(true)
                .redirectOutput(said.toFile());
        builder.environment().put("JAVA_HOME", System.getProperty("java.home"));
        Process process = builder.start();
        try {
            assertThat(process.waitFor(DEADLINE)).as("ended in time").isTrue();
            assertThat(process.exitValue()).as(Files.readString(said)).isZero();
            return Files.readString(said);
        } finally {
            process.descendants().forEach(ProcessHandle::destroyForcibly);
            process.destroyForcibly();
        }
    }

    private String maven(Path where, Path repository, String... arguments) throws IOException, InterruptedException {
        List<String> command = new ArrayList<>(List.of("mvn", "-B", "-q", "-Dmaven.repo.local=" + repository));
        command.addAll(List.of(arguments));
        return run(where, command);
    }

    @Test
    void aSeparateProjectUsesTheInstalledLibrary() throws Exception {
        assumeTrue(
                Stream.of(System.getenv("PATH").split(File.pathSeparator))
                        .anyMatch(place -> Files.isExecutable(Path.of(place, "mvn"))),
                "there is no mvn on the PATH");
        // Beside the build's own output, where links are possible.
        Path repository = Files.createDirectories(Path.of("target", "library"))
                .toAbsolutePath()
                .resolve("repository");
        run(directory, List.of("rm", "-rf", repository.toString()));
        run(directory, List.of("cp", "-al", System.getProperty("local.repository"), repository.toString()));
        try {
            run(directory, List.of("rm", "-rf", repository.resolve("baton").toString()));
            maven(
                    ROOT,
                    repository,
                    "-DskipTests",
                    "-Dspotless.check.skip=true",
                    // Jars of another repository are no reason to compile this build's classes again.
                    "-Dmaven.compiler.useIncrementalCompilation=false",
                    "-pl",
                    "engine,connectors",
                    "-am",
                    "install");
            Path project = directory.resolve("project");
            run(directory, List.of("cp", "-r", ROOT.resolve("examples/library").toString(), project.toString()));
            String said =
                    maven(project, repository, "compile", "exec:exec", "-Dmodel=" + ROOT.resolve("models/tiny-ledger"));
            assertThat(said).contains(" Eastvale.");
        } finally {
            run(directory, List.of("rm", "-rf", repository.toString()));
        }
    }

    @Test
    void theDocumentShowsTheProjectsCode() throws IOException {
        String code = Files.readString(ROOT.resolve("examples/library/src/main/java/example/Continue.java"));
        assertThat(Files.readString(ROOT.resolve("docs/offline.md"))).contains(code);
        assertThat(code.lines().count()).isLessThanOrEqualTo(15);
    }
}
