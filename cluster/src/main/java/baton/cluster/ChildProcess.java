package baton.cluster;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.OptionalInt;
import java.util.concurrent.CompletableFuture;

/**
 * A process started by this one. Its standard input is a pipe that ends with this process, however this process ends; a child of Baton
 * exits at that end. Its standard output goes to an {@link Output} line by line, its standard error to a file. The file's last lines are
 * part of error messages.
 */
public final class ChildProcess {
    private static final int LOG_LINES = 15;

    private final String name;
    private final Process process;
    private final Path log;

    /** Receives standard output, on a thread of the child's. */
    public interface Output {
        void line(String line);

        /** No more lines come: the process has ended or closed its output. */
        void end();
    }

    private ChildProcess(String name, Process process, Path log) {
        this.name = name;
        this.process = process;
        this.log = log;
    }

    /**
     * Starts a process; does not wait for it.
     *
     * @param name names it in messages
     * @param log file that its standard error is appended to
     */
    public static ChildProcess start(String name, List<String> command, Path log, Output output) throws IOException {
        Process process = new ProcessBuilder(command)
                .redirectError(ProcessBuilder.Redirect.appendTo(log.toFile()))
                .start();
        // A virtual thread that reads a pipe holds its carrier thread.
        Thread.ofPlatform().daemon().name(name + "-output").start(() -> read(process, output));
        return new ChildProcess(name, process, log);
    }

    private static void read(Process process, Output output) {
        try (BufferedReader lines = process.inputReader(StandardCharsets.UTF_8)) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                output.line(line);
            }
        } catch (IOException e) {
            // The pipe is broken, which is its end.
        } finally {
            output.end();
        }
    }

    /** Its name in messages. */
    public String name() {
        return name;
    }

    public long pid() {
        return process.pid();
    }

    public boolean isAlive() {
        return process.isAlive();
    }

    /** The process's standard input. */
    public OutputStream input() {
        return process.getOutputStream();
    }

    /** Completes with {@link #describeExit} when the process ends. */
    public CompletableFuture<String> onExit() {
        return process.onExit().thenApply(ended -> describeExit());
    }

    /** A message for users: that the process ended, and the end of its log. */
    public String describeExit() {
        return "the " + name + " process ended; its log ends:\n" + logTail();
    }

    /** The last lines of its standard error, indented. */
    public String logTail() {
        try {
            List<String> lines = Files.readAllLines(log);
            return "  " + String.join("\n  ", lines.subList(Math.max(0, lines.size() - LOG_LINES), lines.size()));
        } catch (IOException e) {
            return "  (" + log + " cannot be read: " + e.getMessage() + ")";
        }
    }

    /** Closes its standard input, at which a child process of Baton stops. */
    public void askToStop() {
        try {
            process.getOutputStream().close();
        } catch (IOException e) {
            process.destroy();
        }
    }

    /** Kills the process, as {@code kill -9} does. */
    public void kill() {
        process.destroyForcibly();
    }

    /** The exit status; empty if the process does not end within the deadline. */
    public OptionalInt awaitExit(Duration deadline) throws InterruptedException {
        return process.waitFor(deadline) ? OptionalInt.of(process.exitValue()) : OptionalInt.empty();
    }

    /** Waits for the process's end and kills it if that takes longer than the deadline. */
    public void awaitEnd(Duration deadline) {
        try {
            if (!process.waitFor(deadline)) {
                kill();
            }
        } catch (InterruptedException e) {
            kill();
            Thread.currentThread().interrupt();
        }
    }
}
