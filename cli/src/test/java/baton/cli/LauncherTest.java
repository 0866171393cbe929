package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.cluster.JavaCommand;
import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** The launcher, with stubs of Maven and the JDK that print how they were called, and only the tools that it needs. */
class LauncherTest {
    private static final List<String> TOOLS =
            List.of("dirname", "find", "grep", "head", "ln", "mkdir", "ps", "readlink", "rm", "sed", "sleep", "touch");
    private static final Duration DEADLINE = Duration.ofMinutes(1);

    @TempDir
    private Path home;

    @BeforeEach
    void prepare() throws IOException {
        Files.copy(Program.ROOT.resolve("baton"), home.resolve("baton"));
        Files.createDirectory(home.resolve("bin"));
        for (String tool : TOOLS) {
            provide(tool);
        }
        script("bin/java", "echo started \"$@\"");
        script("bin/javac", "exit 1");
        Files.writeString(home.resolve("release"), "JAVA_VERSION=\"25.0.1\"\nJAVA_RUNTIME_VERSION=\"25.0.1+9\"\n");
        // Long enough for builds that are not kept apart to meet.
        script("bin/mvn", "echo begin >>%1$s/builds\nsleep 1\necho end >>%1$s/builds".formatted(home));
    }

    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void oneBuildsAndTheOthersUseIt(boolean flock) throws Exception {
        if (flock) {
            provide("flock");
        }
        List<Process> all = new ArrayList<>();
        try {
            for (int i = 0; i < 3; i++) {
                all.add(launch(i));
            }
            for (Process each : all) {
                assertThat(each.waitFor(DEADLINE)).as("ended in time").isTrue();
            }
        } finally {
            all.forEach(Process::destroyForcibly);
        }
        assertThat(Files.readAllLines(home.resolve("builds"))).containsExactly("begin", "end");
        for (int i = 0; i < 3; i++) {
            assertThat(Files.readString(home.resolve("said" + i))).containsPattern("started .* baton.cli.Baton --help");
        }
        assertThat(Files.exists(home.resolve("cli/target/.building"), LinkOption.NOFOLLOW_LINKS))
                .isFalse();
    }

    @Test
    void theLockOfAKilledBuildIsNamed() throws Exception {
        Process gone = new ProcessBuilder("true").start();
        assertThat(gone.waitFor(DEADLINE)).isTrue();
        Path mark = Files.createDirectories(home.resolve("cli/target")).resolve(".building");
        Files.createSymbolicLink(mark, Path.of(Long.toString(gone.pid())));
        Process process = launch(0);
        assertThat(process.waitFor(DEADLINE)).as("ended in time").isTrue();
        assertThat(process.exitValue()).isEqualTo(1);
        assertThat(Files.readString(home.resolve("said0"))).contains("has left").contains(mark.toString());
        assertThat(home.resolve("builds")).doesNotExist();
    }

    /** An archive's launcher builds nothing but the AOT cache, once, and where it may. */
    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void anUnpackedArchiveTrainsTheAotCacheOnce(boolean named) throws Exception {
        provide("flock");
        script("bin/java", """
                for each; do
                  case $each in -XX:AOTCacheOutput=*) echo trained >"${each#*=}"; echo training >>%1$s/trainings; exit ;; esac
                done
                echo started "$@\"""".formatted(home));
        Path unpacked = Files.createDirectories(home.resolve("unpacked"));
        Path lib = Files.createDirectory(unpacked.resolve("lib"));
        Files.writeString(unpacked.resolve("VERSION"), "7.8.9\n");
        Path launcher = Files.copy(
                home.resolve("baton"),
                Files.createDirectory(unpacked.resolve("bin")).resolve("baton"));
        for (int i = 0; i < 2; i++) {
            Process process = launch(
                    i,
                    launcher,
                    named ? Map.of("BATON_CACHE", home.resolve("cache").toString()) : Map.of());
            assertThat(process.waitFor(DEADLINE)).as("ended in time").isTrue();
            Path aot = (named ? home.resolve("cache") : lib).resolve("baton-7.8.9-25.0.1+9.aot");
            assertThat(Files.readString(home.resolve("said" + i)))
                    .containsPattern(
                            "started .*-XX:AOTCache=" + Pattern.quote(aot.toString()) + " .* baton.cli.Baton --help")
                    .contains("-Dbaton.home=" + unpacked);
        }
        assertThat(Files.readAllLines(home.resolve("trainings"))).containsExactly("training");
        assertThat(home.resolve("builds")).doesNotExist();
    }

    /** The router has the collector that a cluster's router has, unless the user chooses one; other commands have the JVM's. */
    @Test
    void theRouterHasACollectorOfItsOwn() throws Exception {
        provide("flock");
        List<String> own =
                new ArrayList<>(new JavaCommand(List.of(), "Main").forRouter().jvm());
        assertThat(own).isNotEmpty();
        String launched = said(0, Map.of(), "route", "--port", "0");
        assertThat(launched).contains(String.join(" ", own)).contains("baton.cli.Baton route --port 0");
        assertThat(said(1, Map.of(), "serve", "route"))
                .contains("baton.cli.Baton serve route")
                .doesNotContain(own);
        assertThat(said(2, Map.of("BATON_JAVA_OPTS", "-Xmx1g -XX:+UseZGC"), "route"))
                .contains("-XX:+UseZGC")
                .doesNotContain(own);
        assertThat(new JavaCommand(List.of("java", "-XX:+UseZGC"), "Main")
                        .forRouter()
                        .jvm())
                .containsExactly("java", "-XX:+UseZGC");
        assertThat(said(3, Map.of(), "bench", "router", "--rounds", "1")).contains(String.join(" ", own));
        assertThat(new JavaCommand(own, "Main")
                        .withOptions(List.of("-XX:+UseZGC"))
                        .forRouter()
                        .jvm())
                .contains("-XX:+UseZGC")
                .doesNotContain("-XX:+UseSerialGC");
    }

    /** Another JDK than the one that was asked for would be a surprise. */
    @Test
    void aJdkThatIsNotThereIsNamed() throws Exception {
        Path gone = home.resolve("gone");
        for (String command : List.of("--help", "jdk")) {
            assertThat(said(0, Map.of("BATON_JAVA_HOME", gone.toString(), "JAVA_HOME", home.toString()), command))
                    .isEqualTo("baton: BATON_JAVA_HOME is '" + gone
                            + "', which is no directory of a JDK 25 or later: set it to one, or unset it.\n");
        }
    }

    @Test
    void tooFewOpenFilesAreNamed() throws Exception {
        Path limited = home.resolve("limited");
        script("limited", "ulimit -n 64\nexec " + home.resolve("baton") + " \"$@\"");
        Process process = launch(0, limited, Map.of(), "--help");
        assertThat(process.waitFor(DEADLINE)).as("ended in time").isTrue();
        assertThat(process.exitValue()).isEqualTo(1);
        assertThat(Files.readString(home.resolve("said0")))
                .isEqualTo("baton: ulimit -n allows 64 open files, must allow at least 256,"
                        + " and two more for each connection.\n");
    }

    private String said(int index, Map<String, String> environment, String... arguments) throws Exception {
        Process process = launch(index, home.resolve("baton"), environment, arguments);
        assertThat(process.waitFor(DEADLINE)).as("ended in time").isTrue();
        return Files.readString(home.resolve("said" + index));
    }

    private Process launch(int index) throws IOException {
        return launch(index, home.resolve("baton"), Map.of());
    }

    private Process launch(int index, Path launcher, Map<String, String> environment) throws IOException {
        return launch(index, launcher, environment, "--help");
    }

    private Process launch(int index, Path launcher, Map<String, String> environment, String... arguments)
            throws IOException {
        List<String> command = new ArrayList<>(List.of(launcher.toString()));
        command.addAll(List.of(arguments));
        ProcessBuilder builder = new ProcessBuilder(command)
                .redirectErrorStream(true)
                .redirectOutput(home.resolve("said" + index).toFile());
        builder.environment().clear();
        builder.environment().put("PATH", home.resolve("bin").toString());
        builder.environment().put("BATON_JAVA_HOME", home.toString());
        builder.environment().putAll(environment);
        return builder.start();
    }

    private void provide(String tool) throws IOException {
        Optional<Path> found = Stream.of(System.getenv("PATH").split(File.pathSeparator))
                .map(directory -> Path.of(directory, tool))
                .filter(Files::isExecutable)
                .findFirst();
        assumeTrue(found.isPresent(), "there is no " + tool + " on the PATH");
        script("bin/" + tool, "exec " + found.orElseThrow() + " \"$@\"");
    }

    private void script(String file, String text) throws IOException {
        Path script = Files.writeString(home.resolve(file), "#!/bin/sh\n" + text + "\n");
        Files.setPosixFilePermissions(script, PosixFilePermissions.fromString("rwxr-xr-x"));
    }
}
