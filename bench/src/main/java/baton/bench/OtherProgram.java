package baton.bench;

import baton.cluster.ChildProcess;
import baton.kv.FreePorts;
import baton.kv.TemporaryDirectory;
import java.io.File;
import java.io.IOException;
import java.net.InetAddress;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.stream.Stream;

/** A program that is not Baton's, in a process that is killed when this is closed or when this process ends. */
public final class OtherProgram implements AutoCloseable {
    private static final Duration DEADLINE = Duration.ofMinutes(2);

    private final TemporaryDirectory directory;
    private final ChildProcess process;
    private final int port;
    private final Thread onSignal = Thread.ofPlatform().unstarted(this::end);

    private OtherProgram(TemporaryDirectory directory, ChildProcess process, int port) {
        this.directory = directory;
        this.process = process;
        this.port = port;
    }

    /** A program on the {@code PATH}, or in one of the other directories. */
    public static Optional<Path> find(String name, String... directories) {
        return Stream.concat(
                        Stream.of(System.getenv().getOrDefault("PATH", "").split(File.pathSeparator)),
                        Stream.of(directories))
                .filter(directory -> !directory.isBlank())
                .map(directory -> Path.of(directory, name))
                .filter(Files::isExecutable)
                .findFirst();
    }

    /** The command that starts a program. */
    interface Command {
        /**
         * @param port to listen on, at 127.0.0.1
         * @param directory for files, removed at the end
         */
        List<String> at(int port, Path directory) throws IOException;
    }

    /** Starts a server and waits until it listens. */
    static OtherProgram start(String name, Command command) throws IOException, InterruptedException {
        TemporaryDirectory directory = TemporaryDirectory.inMemory("baton-");
        OtherProgram program;
        try {
            int port = FreePorts.inARow(1);
            program = new OtherProgram(
                    directory,
                    ChildProcess.start(
                            name,
                            command.at(port, directory.path()),
                            directory.path().resolve("log"),
                            new ChildProcess.Output() {
                                @Override
                                public void line(String line) {}

                                @Override
                                public void end() {}
                            }),
                    port);
        } catch (IOException | RuntimeException e) {
            directory.close();
            throw e;
        }
        try {
            Runtime.getRuntime().addShutdownHook(program.onSignal);
            program.awaitListening();
            return program;
        } catch (IOException | InterruptedException | RuntimeException e) {
            program.close();
            throw e;
        }
    }

    /** Starts a {@code redis-server} that keeps nothing on disk. */
    static OtherProgram redis(Path program, String... options) throws IOException, InterruptedException {
        return start("redis-server", (port, directory) -> {
            List<String> command = new ArrayList<>(List.of(program.toString(), "--port", Integer.toString(port)));
            command.addAll(List.of("--bind", "127.0.0.1", "--save", "", "--appendonly", "no"));
            command.addAll(List.of("--dir", directory.toString()));
            command.addAll(List.of(options));
            return command;
        });
    }

    private void awaitListening() throws IOException, InterruptedException {
        long begun = System.nanoTime();
        while (true) {
            try (Socket _ = new Socket(InetAddress.getLoopbackAddress(), port)) {
                return;
            } catch (IOException e) {
                if (!process.isAlive() || System.nanoTime() - begun >= DEADLINE.toNanos()) {
                    throw new IOException(process.describeExit(), e);
                }
                var _ = process.awaitExit(Duration.ofMillis(20));
            }
        }
    }

    int port() {
        return port;
    }

    long pid() {
        return process.pid();
    }

    @Override
    public void close() {
        try {
            Runtime.getRuntime().removeShutdownHook(onSignal);
        } catch (IllegalStateException e) {
            // This process is ending: the hook runs too.
        }
        end();
    }

    private void end() {
        process.kill();
        process.awaitEnd(Duration.ofSeconds(5));
        directory.close();
    }
}
