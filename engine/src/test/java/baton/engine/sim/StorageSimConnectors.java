package baton.engine.sim;

import baton.connectors.sharedstorage.SharedStorageConnector;
import baton.kv.connector.KvConnector;
import baton.store.FileOperations;
import baton.store.IoThreads;
import baton.store.prompt.ScratchDirectory;
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
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.random.RandomGenerator;
import java.util.stream.Stream;

/**
 * SharedStorageConnector over one directory of all instances. Operations on files fail; work on files is late, or hangs until after the
 * deadlines; entries are damaged, cut, made incomplete and deleted at any time.
 */
final class StorageSimConnectors implements SimNode.SimConnectors {
    private static final double TIMEOUT_SECONDS = 0.15;
    private static final long MILLI = 1_000_000;

    private final SimCluster.Site site;
    private final RandomGenerator random;
    private final ScratchDirectory directory;
    private final int storedBlockSize;
    private final Map<String, SimIoThreads> threads = new HashMap<>();
    private final Map<String, Long> injected = new TreeMap<>();
    private double failures;
    private double late;
    private double hangs;
    private double damage;

    StorageSimConnectors(SimCluster.Site site) {
        this.site = site;
        this.random = site.random();
        this.failures = odds(0.05);
        this.late = odds(0.3);
        this.hangs = odds(0.1);
        this.damage = odds(0.1);
        this.storedBlockSize = site.blockSize() * (random.nextInt(4) == 0 ? 2 : 1);
        try {
            directory = ScratchDirectory.create();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private double odds(double most) {
        return random.nextInt(3) == 0 ? random.nextDouble() * most : 0;
    }

    @Override
    public KvConnector connect(SimNode node) {
        SimIoThreads own = new SimIoThreads();
        threads.put(node.name(), own);
        return new SharedStorageConnector(own, new FailingFiles());
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
        if (happens("entry damaged", damage)) {
            try {
                damageAnEntry();
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        }
        SimIoThreads own = threads.get(node.name());
        if (own != null) {
            own.runDue();
        }
    }

    @Override
    public Set<SimNode.Pair> calm() {
        failures = 0;
        late = 0;
        hangs = 0;
        damage = 0;
        return Set.of();
    }

    @Override
    public Map<String, Long> injected() {
        return Map.copyOf(injected);
    }

    @Override
    public Duration longestTransfer() {
        return Duration.ofSeconds(2);
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

    private boolean happens(String fault, double probability) {
        boolean now = probability > 0 && random.nextDouble() < probability;
        if (now) {
            injected.merge(fault, 1L, Long::sum);
        }
        return now;
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
        private final List<Task> tasks = new ArrayList<>();

        private record Task(long due, Runnable action) {}

        @Override
        public void start(Runnable task) {
            long delay = random.nextLong(MILLI);
            if (happens("file work hangs", hangs)) {
                delay = random.nextLong(200 * MILLI, 3000 * MILLI);
            } else if (happens("file work late", late)) {
                delay = random.nextLong(100 * MILLI);
            }
            tasks.add(new Task(site.ticker().nanos() + delay, task));
        }

        @Override
        public void awaitChange(Object monitor) {
            long now = site.ticker().nanos();
            long next = tasks.stream().mapToLong(Task::due).min().orElse(Long.MAX_VALUE);
            site.ticker().advance(Duration.ofNanos(Math.clamp(next - now, 0, 10 * MILLI)));
            runDue();
        }

        private void runDue() {
            List<Task> due = tasks.stream()
                    .filter(task -> task.due - site.ticker().nanos() <= 0)
                    .toList();
            tasks.removeAll(due);
            due.forEach(task -> task.action.run());
        }
    }

    private final class FailingFiles implements FileOperations {
        private Path orFail(Path path) throws IOException {
            if (happens("file operation fails", failures)) {
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
