package baton.store;

import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.file.DirectoryIteratorException;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.OpenOption;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.BasicFileAttributeView;
import java.nio.file.attribute.BasicFileAttributes;
import java.nio.file.attribute.FileTime;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * The operations on files that stores in directories need; as they stand, those of the operating system. Each may take arbitrarily
 * long on a network file system. Implementations are thread-safe.
 */
public interface FileOperations {
    /** The operating system's. */
    FileOperations SYSTEM = new FileOperations() {};

    /** The time, on the clock that gives files their times. */
    default Instant now() {
        return Instant.now();
    }

    /** Attributes of a file, a directory or a link, which is not followed. */
    default BasicFileAttributes attributes(Path path) throws IOException {
        return Files.readAttributes(path, BasicFileAttributes.class, LinkOption.NOFOLLOW_LINKS);
    }

    /** Opens a file that exists and is no symbolic link. */
    default FileChannel openToRead(Path file, OpenOption... more) throws IOException {
        return FileChannel.open(file, options(more, StandardOpenOption.READ, LinkOption.NOFOLLOW_LINKS));
    }

    /** Makes a file that does not exist. */
    default FileChannel create(Path file, OpenOption... more) throws IOException {
        return FileChannel.open(file, options(more, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE));
    }

    private static Set<OpenOption> options(OpenOption[] more, OpenOption... always) {
        return Stream.concat(Arrays.stream(always), Arrays.stream(more)).collect(Collectors.toUnmodifiableSet());
    }

    /** Sets the time when a file was last modified. */
    default void setModified(Path file, Instant time) throws IOException {
        Files.setLastModifiedTime(file, FileTime.from(time));
    }

    /** Sets the time when a file was last read. */
    default void setAccessed(Path file, FileTime time) throws IOException {
        Files.getFileAttributeView(file, BasicFileAttributeView.class, LinkOption.NOFOLLOW_LINKS)
                .setTimes(null, time, null);
    }

    /** Makes a directory with its parents, unless they exist. */
    default void createDirectories(Path directory) throws IOException {
        Files.createDirectories(directory);
    }

    /** Makes a directory that does not exist. */
    default void createDirectory(Path directory) throws IOException {
        Files.createDirectory(directory);
    }

    /** Renames within a file system, atomically. */
    default void move(Path from, Path to) throws IOException {
        Files.move(from, to, StandardCopyOption.ATOMIC_MOVE);
    }

    /** Deletes a file, a link or an empty directory, unless it does not exist. */
    default void delete(Path path) throws IOException {
        Files.deleteIfExists(path);
    }

    /** Deletes a file or a link, or a directory with all that is in it. */
    default void deleteTree(Path path) throws IOException {
        if (attributes(path).isDirectory()) {
            for (Path child : list(path, "")) {
                deleteTree(child);
            }
        }
        delete(path);
    }

    /** The files in a directory that have names with this prefix. */
    default List<Path> list(Path directory, String prefix) throws IOException {
        List<Path> paths = new ArrayList<>();
        try (DirectoryStream<Path> stream = Files.newDirectoryStream(
                directory, path -> path.getFileName().toString().startsWith(prefix))) {
            stream.forEach(paths::add);
        } catch (DirectoryIteratorException e) {
            throw e.getCause();
        }
        return paths;
    }
}
