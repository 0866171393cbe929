package baton.testkit;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.HttpURLConnection;
import java.net.InetAddress;
import java.net.Socket;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Stream;

/**
 * An installed program that Baton did not write, in a process of its own. Its standard output and error are written to a file. It gets
 * SIGTERM when it is closed, or when this process ends in any way.
 */
public final class InstalledProgram implements AutoCloseable {
    /** The environment variable with the directory that {@code deploy/fleets/install} has made. */
    public static final String FLEETS = "BATON_FLEETS";

    private static final Duration START = Duration.ofMinutes(2);
    private static final Duration END = Duration.ofSeconds(30);
    private static final long POLL_NANOS = 5_000_000;
    private static final int PROBE_MILLIS = 2_000;
    private static final int TAIL_LINES = 40;

    /** The watcher of standard input has the process number of the program, which takes the place of the shell. */
    private static final List<String> UNTIL_INPUT_ENDS =
            List.of("sh", "-c", "exec 3<&0; (cat <&3; kill $$) > /dev/null 2>&1 & exec \"$@\" < /dev/null 3<&-", "sh");

    private final Process process;
    private final Path log;

    private InstalledProgram(Process process, Path log) {
        this.process = process;
        this.log = log;
    }

    /**
     * The file {@code bin/NAME} of the directory that an environment variable names; skips the test, with the reason, where the variable is not
     * set or the file cannot be executed.
     */
    public static Path assumeInstalled(String variable, String name) {
        String directory = System.getenv(variable);
        assumeTrue(directory != null, variable + " is not set: a directory with bin/" + name);
        Path program = Path.of(directory, "bin", name);
        assumeTrue(Files.isExecutable(program), () -> directory + " (" + variable + ") has no bin/" + name);
        return program;
    }

    /** {@code bin/python} of such a directory; skips the test where it lacks one of the modules. */
    public static Path assumePython(String variable, String... modules) throws IOException, InterruptedException {
        Path python = assumeInstalled(variable, "python");
        assumeModules(python, modules);
        return python;
    }

    /** Skips the test where a Python lacks one of the modules. */
    public static void assumeModules(Path python, String... modules) throws IOException, InterruptedException {
        List<String> command = new ArrayList<>(List.of(
                python.toString(),
                "-c",
                "import importlib.util as u, sys; print(*[m for m in sys.argv[1:] if u.find_spec(m) is None])"));
        command.addAll(Arrays.asList(modules));
        Process process = new ProcessBuilder(command)
                .redirectError(ProcessBuilder.Redirect.DISCARD)
                .start();
        try (var out = process.inputReader()) {
            String missing = String.join(" ", out.lines().toList()).strip();
            assumeTrue(process.waitFor(START) && process.exitValue() == 0, () -> python + " does not run");
            assumeTrue(missing.isEmpty(), () -> python + " lacks the modules " + missing);
        } finally {
            process.destroyForcibly();
        }
    }

    /** Starts a program in the directory of its log; does not wait for it. */
    public static InstalledProgram start(Path log, List<String> command) throws IOException {
        return start(log, Objects.requireNonNull(log.toAbsolutePath().getParent()), Map.of(), command);
    }

    /**
     * Starts a program; does not wait for it.
     *
     * @param log its output, appended to the file
     * @param environment variables beside those of this process
     */
    public static InstalledProgram start(
            Path log, Path directory, Map<String, String> environment, List<String> command) throws IOException {
        List<String> all = new ArrayList<>(UNTIL_INPUT_ENDS);
        all.addAll(command);
        ProcessBuilder builder = new ProcessBuilder(all)
                .directory(directory.toFile())
                .redirectErrorStream(true)
                .redirectOutput(ProcessBuilder.Redirect.appendTo(log.toFile()));
        builder.environment().putAll(environment);
        return new InstalledProgram(builder.start(), log);
    }

    /** A condition that a program brings about. */
    public interface Condition {
        boolean holds() throws IOException;
    }

    /** Waits until a connection to a port of 127.0.0.1 is accepted. */
    public InstalledProgram awaitListening(int port) throws IOException {
        return await(() -> {
            try (Socket _ = new Socket(InetAddress.getLoopbackAddress(), port)) {
                return true;
            } catch (IOException _) {
                return false;
            }
        });
    }

    /** Waits until a GET of that URL is answered with 200. */
    public InstalledProgram awaitHealthy(URI url) throws IOException {
        return await(START, () -> answers(url));
    }

    /** Whether a GET of that URL is answered with 200. */
    public static boolean answers(URI url) throws IOException {
        HttpURLConnection connection = (HttpURLConnection) url.toURL().openConnection();
        connection.setConnectTimeout(PROBE_MILLIS);
        connection.setReadTimeout(PROBE_MILLIS);
        try {
            return connection.getResponseCode() == 200;
        } catch (IOException _) {
            return false;
        } finally {
            connection.disconnect();
        }
    }

    /**
     * Waits until a condition holds.
     *
     * @throws IOException with the end of the output, if the program ends before, or two minutes are over: then it is killed
     */
    public InstalledProgram await(Condition condition) throws IOException {
        return await(START, condition);
    }

    /** The same with a deadline. */
    public InstalledProgram await(Duration deadline, Condition condition) throws IOException {
        long end = System.nanoTime() + deadline.toNanos();
        while (!condition.holds()) {
            boolean alive = isAlive();
            if (!alive || System.nanoTime() - end > 0) {
                process.destroyForcibly();
                throw new IOException((alive ? "not ready within " + deadline : "ended") + "\n" + tail());
            }
            LockSupport.parkNanos(POLL_NANOS);
        }
        return this;
    }

    public long pid() {
        return process.pid();
    }

    public boolean isAlive() {
        return process.isAlive();
    }

    /** The processes that it has started, and those that these have started. */
    public Stream<ProcessHandle> descendants() {
        return process.descendants();
    }

    /** @param name as {@code kill} takes it, such as {@code -STOP} */
    public void signal(String name) throws IOException, InterruptedException {
        Process kill = new ProcessBuilder("kill", name, Long.toString(pid())).start();
        assertThat(kill.waitFor(END)).isTrue();
        assertThat(kill.exitValue()).isZero();
    }

    /** Kills it and its descendants, as {@code kill -9} does, and waits for its end. */
    public void kill() throws InterruptedException {
        List<ProcessHandle> all = process.descendants().toList();
        process.destroyForcibly();
        all.forEach(ProcessHandle::destroyForcibly);
        assertThat(process.waitFor(END)).as(() -> "does not end\n" + tail()).isTrue();
    }

    /** The output so far. */
    public String log() throws IOException {
        return Files.readString(log);
    }

    /** The last lines of that. */
    public String tail() {
        try {
            List<String> lines = Files.readAllLines(log);
            return String.join("\n", lines.subList(Math.max(0, lines.size() - TAIL_LINES), lines.size()));
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /** Sends SIGTERM, and kills the processes that have not ended 30 s later, descendants included. */
    @Override
    public void close() throws IOException, InterruptedException {
        process.getOutputStream().close();
        if (process.waitFor(END)) {
            return;
        }
        kill();
    }
}
