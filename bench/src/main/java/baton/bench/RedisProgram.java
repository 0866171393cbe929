package baton.bench;

import baton.kv.FreePorts;
import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.stream.Stream;

/** The program {@code redis-server}. */
public record RedisProgram(Path file) {
    /** @param path directories to look for it in, as of the environment variable {@code PATH} */
    public static Optional<RedisProgram> find(String path) {
        return program(path, "redis-server").map(RedisProgram::new);
    }

    static Optional<Path> program(String path, String name) {
        return Stream.of(path.split(File.pathSeparator))
                .filter(directory -> !directory.isBlank())
                .map(directory -> Path.of(directory, name))
                .filter(Files::isExecutable)
                .findFirst();
    }

    /** Starts one on 127.0.0.1 that keeps nothing on disk. It need not accept connections yet. */
    Running start(String... options) throws IOException {
        Path directory = Files.createTempDirectory("baton-redis");
        int port = FreePorts.inARow(1);
        List<String> command = new ArrayList<>(List.of(
                file.toString(),
                "--port",
                Integer.toString(port),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "no",
                "--dir",
                directory.toString()));
        command.addAll(List.of(options));
        Process process = new ProcessBuilder(command)
                .redirectErrorStream(true)
                .redirectOutput(ProcessBuilder.Redirect.DISCARD)
                .start();
        return new Running(process, port, directory);
    }

    /** One that runs until it is closed. */
    record Running(Process process, int port, Path directory) implements AutoCloseable {
        @Override
        public void close() throws IOException {
            process.destroyForcibly();
            Files.deleteIfExists(directory);
        }
    }
}
