package baton.store.prompt;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.stream.Stream;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A private temporary directory for short-lived entries, in memory where the system has a place for that.
 *
 * @param path of the directory
 */
public record ScratchDirectory(Path path) implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(ScratchDirectory.class);
    private static final Path IN_MEMORY = Path.of("/dev/shm");

    /** @throws IOException if none can be made */
    public static ScratchDirectory create() throws IOException {
        return new ScratchDirectory(
                Files.isWritable(IN_MEMORY)
                        ? Files.createTempDirectory(IN_MEMORY, "baton-")
                        : Files.createTempDirectory("baton-"));
    }

    /** Removes it with all that is in it. */
    @Override
    public void close() {
        try (Stream<Path> files = Files.walk(path)) {
            for (Path file : files.sorted(Comparator.reverseOrder()).toList()) {
                Files.delete(file);
            }
        } catch (IOException | UncheckedIOException e) {
            LOG.warn("{} could not be removed: {}", path, e.toString());
        }
    }
}
