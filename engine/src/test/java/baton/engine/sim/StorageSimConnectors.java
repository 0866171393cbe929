package baton.engine.sim;

import baton.connectors.sharedstorage.SharedStorageConnector;
import baton.kv.TemporaryDirectory;
import baton.kv.connector.KvConnector;
import baton.store.FileOperations;
import baton.store.IoThreads;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.OpenOption;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.BasicFileAttributes;
import java.time.Duration;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;

/**
 * SharedStorageConnector over one directory of all instances. Operations on files fail; work on files is late, or hangs until after the
 * deadlines; entries are damaged, cut, made incomplete and deleted at any time.
 */
final class StorageSimConnectors extends FaultyConnectors {
    private static final double TIMEOUT_SECONDS = 0.15;

    private final TemporaryDirectory directory;
    private final int storedBlockSize;
    private final Map<String, SimIoThreads> threads = new HashMap<>();

    StorageSimConnectors(SimCluster.Site site) {
        super(site);
        faults.inSome(0.05, "file operation fails");
        faults.inSome(0.3, "file work late");
        faults.inSome(0.1, "file work hangs");
        faults.inSome(0.1, "entry damaged");
        this.storedBlockSize = site.blockSize() * (random.nextInt(4) == 0 ? 2 : 1);
        try {
            directory = TemporaryDirectory.inMemory("baton-");
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    @Override
    public KvConnector connect(SimNode node) {
        SimIoThreads own = new SimIoThreads();
        threads.put(node.name(), own);
        return new SharedStorageConnector(own, new FailingFiles());
    }

    @Override
    public boolean isSymmetric() {
        return true;
    }

    @Override
    public Map<String, Object> settings(String instance) {
        return Map.of(
                "shared_storage_path",
                directory.path(),
                "shared_storage_timeout_seconds",
                TIMEOUT_SECONDS,
                "shared_storage_foreign_block_size",
                storedBlockSize);
    }

    @Override
    public void poll(SimNode node) {
        if (faults.happens("entry damaged")) {
            try {
                damageAnEntry();
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        }
        SimIoThreads own = threads.get(node.name());
        if (own != null) {
            own.tasks.runDue();
        }
    }

    @Override
    public void close() {
        directory.close();
    }

    /** Deletes all entries, damaged ones among them. */
    void clear() {
        try {
            for (Path entry : sorted(directory.path())) {
                for (Path file : sorted(entry)) {
                    Files.delete(file);
                }
                Files.delete(entry);
            }
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private static List<Path> sorted(Path directory) throws IOException {
        try (Stream<Path> list = Files.list(directory)) {
            return list.sorted(Comparator.comparing(Path::toString)).toList();
        }
    }

    private void damageAnEntry() throws IOException {
        List<Path> entries = sorted(directory.path()).stream()
                .filter(path -> !path.getFileName().toString().startsWith("."))
                .toList();
        if (entries.isEmpty()) {
            return;
        }
        Path entry = entries.get(random.nextInt(entries.size()));
        List<Path> files = sorted(entry);
        if (files.isEmpty()) {
            return;
        }
        Path file = files.get(random.nextInt(files.size()));
        byte[] bytes = Files.readAllBytes(file);
        switch (random.nextInt(4)) {
            case 0 -> Files.delete(file);
            case 1 -> Files.write(file, new byte[0], StandardOpenOption.TRUNCATE_EXISTING);
            case 2 -> {
                // In the data, which ends the file.
                if (bytes.length > 0) {
                    bytes[bytes.length - 1 - random.nextInt(Math.min(bytes.length, 8))] ^= 1;
                    Files.write(file, bytes);
                }
            }
            default -> {
                for (Path each : files) {
                    Files.delete(each);
                }
                Files.delete(entry);
            }
        }
    }

    /** Tasks that run when they are due: before a step of their instance, or while one of its steps waits. */
    private final class SimIoThreads implements IoThreads {
        private final DueTasks tasks = new DueTasks(site.ticker());

        @Override
        public void start(Runnable task) {
            tasks.after(duration("file work late", "file work hangs", 3000), task);
        }

        @Override
        public void awaitChange(Object monitor) {
            site.ticker().advance(Duration.ofNanos(Math.clamp(tasks.untilNext(), 0, 10 * MILLI)));
            tasks.runDue();
        }
    }

    private final class FailingFiles implements FileOperations {
        private Path orFail(Path path) throws IOException {
            if (faults.happens("file operation fails")) {
                if (random.nextBoolean()) {
                    throw new NoSuchFileException(path.toString());
                }
                throw new IOException(path + ": simulated");
            }
            return path;
        }

        @Override
        public BasicFileAttributes attributes(Path path) throws IOException {
            return FileOperations.super.attributes(orFail(path));
        }

        @Override
        public FileChannel openToRead(Path file, OpenOption... more) throws IOException {
            return FileOperations.super.openToRead(orFail(file), more);
        }

        @Override
        public FileChannel create(Path file, OpenOption... more) throws IOException {
            return FileOperations.super.create(orFail(file), more);
        }

        @Override
        public void createDirectory(Path path) throws IOException {
            FileOperations.super.createDirectory(orFail(path));
        }

        @Override
        public void move(Path from, Path to) throws IOException {
            FileOperations.super.move(orFail(from), to);
        }

        @Override
        public void delete(Path path) throws IOException {
            FileOperations.super.delete(orFail(path));
        }
    }
}
