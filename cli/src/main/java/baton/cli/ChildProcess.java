package baton.cli;

import java.io.BufferedReader;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** A command of Baton that serves, in a process of its own. It ends with this one, however this one ends. */
final class ChildProcess {
    private static final int LOG_LINES = 15;

    private final String name;
    private final Process process;
    private final Path log;
    private final CompletableFuture<URI> ready = new CompletableFuture<>();
    /** Comes before it is ready, if it does. */
    private final CompletableFuture<URI> registrations = new CompletableFuture<>();

    private ChildProcess(String name, Process process, Path log) {
        this.name = name;
        this.process = process;
        this.log = log;
        // A virtual thread that reads a pipe holds the processor that it runs on.
        Thread.ofPlatform().daemon().name(name + "-output").start(this::readOutput);
    }

    /**
     * Starts it; does not wait for it.
     *
     * @param name what messages call it
     * @param arguments the command and its options
     * @param log where it writes its log
     */
    static ChildProcess start(String name, List<String> arguments, Path log) throws IOException {
        List<String> command =
                new ArrayList<>(List.of(ProcessHandle.current().info().command().orElse("java")));
        // This process's own JVM options, its AOT cache among them.
        command.addAll(ManagementFactory.getRuntimeMXBean().getInputArguments());
        command.addAll(List.of("-cp", System.getProperty("java.class.path"), Baton.class.getName()));
        command.addAll(arguments);
        command.add("--exit-with-parent");
        return new ChildProcess(
                name, new ProcessBuilder(command).redirectError(log.toFile()).start(), log);
    }

    private void readOutput() {
        try (BufferedReader output = process.inputReader(StandardCharsets.UTF_8)) {
            for (String line = output.readLine(); line != null; line = output.readLine()) {
                if (line.startsWith(RouteCommand.REGISTRATIONS)) {
                    registrations.complete(URI.create("tcp://" + line.substring(RouteCommand.REGISTRATIONS.length())));
                }
                if (line.startsWith(Service.READY)) {
                    ready.complete(URI.create(line.substring(Service.READY.length())));
                }
            }
            ready.completeExceptionally(new IOException("its output ended"));
        } catch (IOException | IllegalArgumentException e) {
            ready.completeExceptionally(e);
        }
    }

    /**
     * Where it listens; waits until it does.
     *
     * @throws CommandFailedException with the end of its log if it does not within the deadline
     */
    URI awaitReady(Duration deadline) throws InterruptedException {
        try {
            return ready.get(deadline.toNanos(), TimeUnit.NANOSECONDS);
        } catch (TimeoutException e) {
            throw new CommandFailedException("the " + name + " process was not ready within " + deadline.toSeconds()
                    + " s; its log ends:\n" + logTail());
        } catch (ExecutionException e) {
            throw new CommandFailedException(describeExit());
        }
    }

    /** Where instances register, once it is known. */
    CompletableFuture<URI> registrations() {
        return registrations;
    }

    /** Completes with a description when the process ends. */
    CompletableFuture<String> onExit() {
        return process.onExit().thenApply(ended -> describeExit());
    }

    boolean isAlive() {
        return process.isAlive();
    }

    String describeExit() {
        return "the " + name + " process ended; its log ends:\n" + logTail();
    }

    private String logTail() {
        try {
            List<String> lines = Files.readAllLines(log);
            return "  " + String.join("\n  ", lines.subList(Math.max(0, lines.size() - LOG_LINES), lines.size()));
        } catch (IOException e) {
            return "  (" + log + " cannot be read: " + e.getMessage() + ")";
        }
    }

    /** Tells it to stop, by the end of its standard input. */
    void askToStop() {
        try {
            process.getOutputStream().close();
        } catch (IOException e) {
            process.destroy();
        }
    }

    /** Waits for its end, and ends it if that takes too long. */
    void awaitEnd(Duration deadline) {
        try {
            if (!process.waitFor(deadline)) {
                process.destroyForcibly();
            }
        } catch (InterruptedException e) {
            process.destroyForcibly();
            Thread.currentThread().interrupt();
        }
    }
}
