package baton.store.file;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.store.FileOperations;
import baton.store.prompt.StorageException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The root, and the file that describes the files of a format. */
record StoreDirectory(FileStoreSettings settings, FsPathLayout layout, FileOperations files) {
    private static final Logger log = LoggerFactory.getLogger(StoreDirectory.class);

    private static final int MOST_CONFIG_BYTES = 1 << 20;

    /**
     * Makes the directories and files that are missing.
     *
     * @return whether it can be written to
     * @throws ConfigException if the root is not a directory, or its files are not of this format
     */
    boolean prepare() {
        Path root = settings.root();
        if (Files.exists(root) && !Files.isDirectory(root)) {
            throw new ConfigException(settings.field(), "is " + root + ", which is not a directory");
        }
        try {
            files.createDirectories(root);
        } catch (IOException e) {
            throw new ConfigException(
                    settings.field(),
                    "is %s, which cannot be made: %s".formatted(root, StorageException.describe(e)),
                    e);
        }
        Path directory = root.resolve(layout.directory());
        Path config = directory.resolve(FsPathLayout.CONFIG);
        try {
            requireNoLink(directory);
            requireNoLink(root.resolve(layout.values(0)));
            if (isThere(config)) {
                return true;
            }
            files.createDirectories(directory);
            write(config);
            return true;
        } catch (IOException e) {
            log.warn("{} cannot be written: {}; KV cache values are only read", config, StorageException.describe(e));
            return false;
        }
    }

    private void requireNoLink(Path directory) throws IOException {
        try {
            if (!files.attributes(directory).isDirectory()) {
                throw new ConfigException(
                        settings.field(),
                        "is %s, in which %s is not a directory".formatted(settings.root(), directory.getFileName()));
            }
        } catch (NoSuchFileException e) {
            log.debug("{} is made when it is needed", directory);
        }
    }

    /** False if there is none, or only a part that a crash has left. */
    private boolean isThere(Path config) throws IOException {
        String found;
        try {
            found = read(config, files);
        } catch (NoSuchFileException e) {
            return false;
        }
        JsonFields fields;
        try {
            fields = JsonFields.parse(config.toString(), found);
        } catch (ConfigException e) {
            log.warn("{} is replaced: {}", config, e.getMessage());
            return false;
        }
        if (!fields.equals(JsonFields.parse("", layout.json()))) {
            throw new ConfigException(
                    settings.field(),
                    "is %s, in which %s is of other settings than its directory's name: %s"
                            .formatted(settings.root(), config, fields));
        }
        return true;
    }

    /** A file's text. */
    static String read(Path file, FileOperations files) throws IOException {
        if (!files.attributes(file).isRegularFile()) {
            throw new IOException(file + " is not a file");
        }
        try (FileChannel channel = files.openToRead(file)) {
            ByteBuffer bytes = ByteBuffer.allocate(Math.toIntExact(Math.min(channel.size(), MOST_CONFIG_BYTES)));
            while (bytes.hasRemaining() && channel.read(bytes) >= 0) {
                // Reads until it is full or the file ends.
            }
            return new String(bytes.array(), 0, bytes.position(), StandardCharsets.UTF_8);
        }
    }

    private void write(Path config) throws IOException {
        Path temporary = config.resolveSibling(ValueFiles.temporary(FsPathLayout.CONFIG));
        try {
            try (FileChannel channel = files.create(temporary)) {
                ByteBuffer bytes = ByteBuffer.wrap(layout.prettyJson().getBytes(StandardCharsets.UTF_8));
                while (bytes.hasRemaining()) {
                    channel.write(bytes);
                }
            }
            files.move(temporary, config);
        } finally {
            files.delete(temporary);
        }
    }
}
