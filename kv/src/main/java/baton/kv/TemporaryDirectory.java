package baton.kv;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.stream.Stream;

/** A directory that is removed with all its files when it is closed. */
public final class TemporaryDirectory implements AutoCloseable {
    private static final Path MEMORY = Path.of("/dev/shm");

    private final Path path;

    private TemporaryDirectory(Path path) {
        this.path = path;
    }

    /** Makes a new one, readable by this user only. */
    public static TemporaryDirectory create(String prefix) throws IOException {
        return new TemporaryDirectory(Files.createTempDirectory(prefix));
    }

    /** The same in memory, where the system has a place for that. */
    public static TemporaryDirectory inMemory(String prefix) throws IOException {
        return Files.isWritable(MEMORY)
                ? new TemporaryDirectory(Files.createTempDirectory(MEMORY, prefix))
                : create(prefix);
    }

    public Path path() {
        return path;
    }

    /**
     * Removes all files that the system lets it remove; a failure is printed to standard error. Does nothing the second time, which may be
     * on another thread: a process that ends closes the directory in a hook while its main thread goes on.
     */
    @Override
    public synchronized void close() {
        if (!Files.exists(path)) {
            return;
        }
        try (Stream<Path> files = Files.walk(path)) {
            for (Path file : files.sorted(Comparator.reverseOrder()).toList()) {
                Files.delete(file);
            }
        } catch (IOException | UncheckedIOException e) {
            System.err.println("baton: could not remove " + path + ": " + e.getMessage());
        }
    }
}
