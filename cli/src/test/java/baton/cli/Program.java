package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cluster.JavaCommand;
import baton.kv.ConfigException;
import java.io.File;
import java.io.IOException;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.io.UncheckedIOException;
import java.nio.channels.FileChannel;
import java.nio.channels.FileLock;
import java.nio.file.FileSystem;
import java.nio.file.FileSystems;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import picocli.CommandLine;

/**
 * The program in processes of their own, started as the launcher starts it: from jars, with an AOT cache, without which starting a process
 * takes more time than its test. Both are made when the first test asks and kept until a class changes.
 */
final class Program {
    static final Path ROOT = Path.of(System.getProperty("baton.root"));

    private static final Duration DEADLINE = Duration.ofMinutes(3);

    private Program() {}

    /** A command that runs {@code baton} with these arguments. */
    static List<String> baton(List<String> arguments) {
        return command().with(arguments);
    }

    static JavaCommand command() {
        return new JavaCommand(java("-Dbaton.home=" + ROOT), Baton.class.getName());
    }

    /** A process that has ended. */
    record Ended(int status, String out, String err) {}

    /** Runs {@code baton} with these arguments to its end. */
    static Ended run(List<String> arguments) throws IOException, InterruptedException {
        return run(List.of(), arguments);
    }

    /** The same with more options of the JVM. */
    static Ended run(List<String> jvmOptions, List<String> arguments) throws IOException, InterruptedException {
        Path out = Files.createTempFile("baton-", ".out");
        Path err = Files.createTempFile("baton-", ".err");
        Process process = new ProcessBuilder(command().withOptions(jvmOptions).with(arguments))
                .redirectOutput(out.toFile())
                .redirectError(err.toFile())
                .start();
        try {
            assertThat(process.waitFor(Instances.DEADLINE))
                    .as("ended within %s", Instances.DEADLINE)
                    .isTrue();
            return new Ended(process.exitValue(), Files.readString(out), Files.readString(err));
        } finally {
            process.destroyForcibly();
            Files.delete(out);
            Files.delete(err);
        }
    }

    /** Runs {@code baton} within this process, for commands that end by themselves and leave no threads. */
    static Ended inThisProcess(String... arguments) {
        StringWriter out = new StringWriter();
        StringWriter err = new StringWriter();
        ServeCommand serve = new ServeCommand();
        CommandLine program =
                Baton.commandLine(serve).setOut(new PrintWriter(out, true)).setErr(new PrintWriter(err, true));
        int status;
        try {
            status = program.execute(Baton.withoutConfigs(serve, arguments));
        } catch (ConfigException e) {
            err.append("baton: ").append(e.getMessage());
            status = program.getCommandSpec().exitCodeOnInvalidInput();
        }
        return new Ended(status, out.toString(), err.toString());
    }

    /** A command that runs a JVM with the program's class path. */
    static List<String> java(String... more) {
        List<String> command = new ArrayList<>(Made.JVM);
        command.addAll(List.of(more));
        return command;
    }

    private static final class Made {
        static final List<String> JVM = make(ROOT.resolve("cli", "target", "program"));
    }

    private static List<String> make(Path directory) {
        Path cache = directory.resolve("baton.aot");
        Path made = directory.resolve("made-of");
        try {
            Files.createDirectories(directory);
            // Tests run in several processes.
            try (FileChannel file = FileChannel.open(
                            directory.resolve("lock"), StandardOpenOption.CREATE, StandardOpenOption.WRITE);
                    FileLock _ = file.lock()) {
                List<Path> parts = Stream.of(
                                System.getProperty("java.class.path").split(File.pathSeparator))
                        .map(Path::of)
                        .filter(part -> !part.endsWith("test-classes"))
                        .toList();
                String now = describe(parts);
                List<Path> jars = new ArrayList<>();
                for (Path part : parts) {
                    jars.add(Files.isDirectory(part) ? directory.resolve(jars.size() + ".jar") : part);
                }
                List<String> jvm = jvm(jars);
                if (!Files.exists(made) || !Files.readString(made).equals(now)) {
                    Files.deleteIfExists(made);
                    for (int i = 0; i < parts.size(); i++) {
                        if (Files.isDirectory(parts.get(i))) {
                            pack(parts.get(i), jars.get(i));
                        }
                    }
                    trainAotCache(jvm, cache, directory.resolve("aot-training.log"));
                    Files.writeString(made, now);
                }
                return Stream.concat(jvm.stream(), Stream.of("-XX:AOTCache=" + cache))
                        .toList();
            }
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException(e);
        }
    }

    private static List<String> jvm(List<Path> jars) {
        return List.of(
                ProcessHandle.current().info().command().orElseThrow(),
                "--enable-native-access=ALL-UNNAMED",
                "--sun-misc-unsafe-memory-access=allow",
                "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1",
                "-Xlog:aot*=off",
                "-cp",
                jars.stream().map(Path::toString).collect(Collectors.joining(File.pathSeparator)));
    }

    private static void trainAotCache(List<String> jvm, Path cache, Path log) throws IOException, InterruptedException {
        List<String> command = new ArrayList<>(jvm);
        // A name of its own: the training run of a killed test process may still be writing.
        Path fresh = cache.resolveSibling("baton-" + ProcessHandle.current().pid() + ".aot");
        command.addAll(List.of(
                "-XX:AOTCacheOutput=" + fresh,
                "-Dbaton.home=" + ROOT,
                Baton.class.getName(),
                "aot-training",
                "--brief"));
        Process process = new ProcessBuilder(command)
                .redirectErrorStream(true)
                .redirectOutput(log.toFile())
                .start();
        try {
            assertThat(process.waitFor(DEADLINE)).as("ended in time").isTrue();
            assertThat(process.exitValue()).as(Files.readString(log)).isZero();
            assertThat(fresh).as(Files.readString(log)).exists();
            Files.move(fresh, cache, StandardCopyOption.REPLACE_EXISTING);
        } finally {
            process.descendants().forEach(ProcessHandle::destroyForcibly);
            process.destroyForcibly();
        }
    }

    /** A JVM caches only classes that come from jars. */
    private static void pack(Path classes, Path jar) throws IOException {
        Files.deleteIfExists(jar);
        try (FileSystem packed = FileSystems.newFileSystem(jar, Map.of("create", "true"));
                Stream<Path> files = Files.walk(classes)) {
            for (Path file : files.toList()) {
                Path copy = packed.getPath("/").resolve(classes.relativize(file).toString());
                if (Files.isDirectory(file)) {
                    Files.createDirectories(copy);
                } else {
                    Files.copy(file, copy);
                }
            }
        }
    }

    private static String describe(List<Path> parts) throws IOException {
        StringBuilder all = new StringBuilder();
        for (Path part : parts) {
            try (Stream<Path> files = Files.walk(part)) {
                for (Path file : files.filter(Files::isRegularFile).sorted().toList()) {
                    all.append(file)
                            .append(' ')
                            .append(Files.size(file))
                            .append(' ')
                            .append(Files.getLastModifiedTime(file).toMillis())
                            .append('\n');
                }
            }
        }
        return all.toString();
    }
}
