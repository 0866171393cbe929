package baton.store.prompt;

import baton.kv.safetensors.SafetensorsException;
import baton.kv.safetensors.SafetensorsHeader;
import baton.store.FileOperations;
import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.attribute.BasicFileAttributes;
import java.nio.file.attribute.FileTime;
import java.time.Instant;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.UUID;
import java.util.regex.Pattern;

/**
 * A directory that {@link SharedStorage} or vLLM's ExampleConnector has made, as a collector sees it: of any model, complete or not.
 *
 * @param temporary whether it is one that an entry is written in, or removed
 * @param files in it
 * @param used when one of them was last read or changed
 * @param changed when one of them was last changed, or one was added
 */
public record PromptEntry(boolean temporary, List<Path> files, long bytes, Instant used, Instant changed) {
    /** An MD5. */
    private static final Pattern NAME = Pattern.compile("[0-9a-f]{32}");

    public PromptEntry {
        files = List.copyOf(files);
    }

    /** Empty if the directory is none of these: by its name, or because there is something else than safetensors files in it. */
    public static Optional<PromptEntry> of(Path directory, FileOperations operations) throws IOException {
        String name = directory.getFileName().toString();
        boolean temporary = name.startsWith(SharedStorage.TEMPORARY_PREFIX);
        if (!temporary && !NAME.matcher(name).matches()) {
            return Optional.empty();
        }
        try {
            BasicFileAttributes attributes = operations.attributes(directory);
            if (!attributes.isDirectory()) {
                return Optional.empty();
            }
            List<Path> files = operations.list(directory, "");
            Instant changed = attributes.lastModifiedTime().toInstant();
            Instant used = changed;
            long bytes = 0;
            for (Path file : files) {
                BasicFileAttributes of = operations.attributes(file);
                if (!of.isRegularFile() || !file.getFileName().toString().endsWith(SharedStorage.SUFFIX)) {
                    return Optional.empty();
                }
                changed = later(changed, of.lastModifiedTime().toInstant());
                used = later(later(used, changed), of.lastAccessTime().toInstant());
                bytes += of.size();
            }
            return files.isEmpty() && !temporary
                    ? Optional.empty()
                    : Optional.of(new PromptEntry(temporary, files, bytes, used, changed));
        } catch (NoSuchFileException e) {
            // It is being removed or renamed.
            return Optional.empty();
        }
    }

    private static Instant later(Instant one, Instant other) {
        return one.isAfter(other) ? one : other;
    }

    /** Whether each of its files has the tensor that such files have, and no other one. This is no use of them. */
    public boolean isKvCache(FileOperations operations) throws IOException {
        for (Path file : files) {
            FileTime read = operations.attributes(file).lastAccessTime();
            boolean isKv = hasTensorOnly(file, operations);
            operations.setAccessed(file, read);
            if (!isKv) {
                return false;
            }
        }
        return true;
    }

    private static boolean hasTensorOnly(Path file, FileOperations operations) throws IOException {
        try (FileChannel channel = operations.openToRead(file)) {
            return SafetensorsHeader.read(channel, file.toString())
                    .tensors()
                    .keySet()
                    .equals(Set.of(LayerFiles.TENSOR));
        } catch (SafetensorsException e) {
            return false;
        }
    }

    /** Removes an entry's directory, at once for those that look for it. */
    public static void remove(Path directory, FileOperations operations) throws IOException {
        Path aside = directory.resolveSibling(SharedStorage.TEMPORARY_PREFIX + UUID.randomUUID());
        operations.move(directory, aside);
        operations.deleteTree(aside);
    }
}
