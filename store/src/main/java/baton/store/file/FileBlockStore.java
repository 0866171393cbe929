package baton.store.file;

import baton.kv.BlockHash;
import baton.kv.Bursts;
import baton.kv.ConfigException;
import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.kv.connector.Measurement;
import baton.store.BatchRanges;
import baton.store.BlockStore;
import baton.store.FileOperations;
import baton.store.IoTasks;
import baton.store.IoThreads;
import baton.store.StoreEvent;
import baton.store.StoreFormat;
import baton.store.StoreTask;
import baton.store.SystemIoThreads;
import baton.store.ValueRanges;
import baton.store.file.FileStoreStats.Operation;
import baton.store.prompt.StorageException;
import java.io.IOException;
import java.nio.file.NoSuchFileException;
import java.time.Duration;
import java.util.BitSet;
import java.util.List;
import java.util.Optional;
import java.util.function.BooleanSupplier;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Values as files in a directory that several processes may share: {@link FsPathLayout} defines their names, {@link FileHeader} their form. A
 * file appears complete under its name or not at all, and one that is not intact is a miss and deleted.
 *
 * <p>All work on files runs on threads beside the caller's, as many as the settings allow, for a mount may not answer. Threads that hang keep
 * the batches that they work on from becoming quiet; when all of one kind hang, further batches of that kind are rejected. When the device is
 * full, or must not be written to, nothing is written for {@link #PAUSE}.
 *
 * <p>Counts, all since the last call of {@link #takeMeasurements}: {@code baton:kv_file_failures} by {@code operation} ({@code get},
 * {@code put}, {@code contains}, {@code collect}) and {@code cause} ({@link FileFault}), {@code baton:kv_file_read_bytes},
 * {@code baton:kv_file_written_bytes}, {@code baton:kv_file_collected}.
 */
public final class FileBlockStore implements BlockStore {
    private static final Logger log = LoggerFactory.getLogger(FileBlockStore.class);

    /** How long nothing is written after the device was full. */
    static final Duration PAUSE = Duration.ofSeconds(30);

    /** How long the start waits for the directory. */
    static final Duration OPEN_TIMEOUT = Duration.ofSeconds(10);

    private static final Duration CLOSE_TIMEOUT = Duration.ofSeconds(5);
    private static final int LOOKUP_THREADS = 4;
    private static final int LOG_LINES = 3;
    private static final Duration LOG_PERIOD = Duration.ofMinutes(1);

    private final FileStoreSettings settings;
    private final StoreFormat format;
    private final Ticker ticker;
    private final FileOperations files;
    private final FsPathLayout layout;
    private final ValueFiles values;
    private final FileStoreStats stats = new FileStoreStats();
    private final FileIndex index;
    private final BatchQueue reads;
    private final BatchQueue writes;
    private final BatchQueue lookups;

    /** The start, indexing and collection: one after the other. */
    private final IoTasks background;

    private final Optional<BackgroundCollector> collector;
    private final Bursts bursts;
    private volatile Opening opening = new Opening.Pending();
    private volatile Optional<Deadline> paused = Optional.empty();
    private volatile boolean closed;

    private sealed interface Opening {
        record Pending() implements Opening {}

        record Ready() implements Opening {}

        record Refused(ConfigException reason) implements Opening {}
    }

    private FileBlockStore(
            FileStoreSettings settings, StoreFormat format, Ticker ticker, IoThreads threads, FileOperations files) {
        this.settings = settings;
        this.format = format;
        this.ticker = ticker;
        this.files = files;
        this.layout = FsPathLayout.of(format);
        this.values = new ValueFiles(settings.root(), layout, format.valueBytes(), files, settings.fsync());
        this.index = new FileIndex(settings.root(), layout, ticker, files);
        this.reads = new BatchQueue(threads, settings.readThreads(), settings.queued());
        this.writes = new BatchQueue(threads, settings.writeThreads(), settings.queued());
        this.lookups = new BatchQueue(threads, LOOKUP_THREADS, settings.queued());
        this.background = new IoTasks(threads, 1, 2);
        this.collector = settings.limits().areSet()
                ? Optional.of(
                        new BackgroundCollector(settings, ticker, files, background, this::removed, this::collected))
                : Optional.empty();
        this.bursts = new Bursts(LOG_LINES, LOG_PERIOD, ticker);
    }

    /** One of the system's threads and files. */
    public static FileBlockStore open(FileStoreSettings settings, StoreFormat format, Ticker ticker) {
        return open(settings, format, ticker, new SystemIoThreads(), FileOperations.SYSTEM);
    }

    /**
     * A store in a directory, which is made if it does not exist. If it does not answer, the store opens nevertheless, and rejects operations
     * until it does.
     *
     * @param threads for all work on files
     * @throws ConfigException if the root cannot be one, naming the settings' field
     */
    public static FileBlockStore open(
            FileStoreSettings settings, StoreFormat format, Ticker ticker, IoThreads threads, FileOperations files) {
        FileBlockStore store = new FileBlockStore(settings, format, ticker, threads, files);
        store.startAndWait();
        if (store.opening instanceof Opening.Refused(ConfigException reason)) {
            store.close();
            throw reason;
        }
        return store;
    }

    private void startAndWait() {
        background.submit(new Background(this::prepare));
        Deadline deadline = Deadline.after(ticker, OPEN_TIMEOUT);
        try {
            while (opening instanceof Opening.Pending && !background.isIdle() && !deadline.isOver()) {
                background.awaitChange();
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        if (opening instanceof Opening.Pending) {
            log.warn("{} has not answered within {}; it is not used until it does", settings.root(), OPEN_TIMEOUT);
        }
    }

    private boolean isReady() {
        return !closed && opening instanceof Opening.Ready;
    }

    /** Work that no caller waits for. */
    record Background(Runnable action) implements IoTasks.Task {
        @Override
        public void run() {
            try {
                action.run();
            } catch (RuntimeException | Error e) {
                log.error("background work failed unexpectedly", e);
            }
        }

        @Override
        public boolean isOverdue() {
            return false;
        }
    }

    private void prepare() {
        try {
            boolean writable = new StoreDirectory(settings, layout, files).prepare();
            if (settings.io() == FileStoreSettings.IoMode.DIRECT && (!writable || !values.tryDirect())) {
                log.warn(
                        "{} cannot be used with direct I/O; files are read and written through the cache",
                        settings.root());
            }
            opening = new Opening.Ready();
            index.build();
            collector.ifPresent(BackgroundCollector::poll);
        } catch (ConfigException e) {
            log.error("{}", e.getMessage());
            opening = new Opening.Refused(e);
        }
    }

    @Override
    public String name() {
        return "fs";
    }

    @Override
    public StoreFormat format() {
        return format;
    }

    /** A key that was seen in the last seconds needs no look at the directory. */
    @Override
    public StoreTask contains(List<BlockHash> keys, Deadline deadline) {
        StoreTask task = new StoreTask(keys.size(), deadline);
        int[] unknown = unknown(keys, task);
        submit(lookups, Operation.CONTAINS, task, unknown.length, i -> {
            int key = unknown[i];
            if (values.exists(keys.get(key))) {
                index.add(keys.get(key));
                task.succeed(key);
            } else {
                forget(keys.get(key));
            }
        });
        return task;
    }

    @Override
    public StoreTask get(List<BlockHash> keys, List<ValueRanges> to, Deadline deadline) {
        StoreTask task = new StoreTask(keys.size(), deadline);
        BatchRanges ranges = new BatchRanges(to, keys.size(), format.valueBytes());
        submit(reads, Operation.GET, task, keys.size(), i -> {
            BlockHash key = keys.get(i);
            try {
                values.read(key, ranges, i, stop(task));
            } catch (IOException e) {
                if (isGone(FileFault.of(e))) {
                    forget(key);
                }
                throw e;
            }
            task.succeed(i);
            stats.read(format.valueBytes());
            index.add(key);
            touch(key);
        });
        return task;
    }

    private static BooleanSupplier stop(StoreTask task) {
        return task::isDone;
    }

    private static boolean isGone(FileFault fault) {
        return switch (fault) {
            case ABSENT, TRUNCATED, CORRUPT, OTHER_KEY, OTHER_FORMAT, FOREIGN -> true;
            case NO_SPACE, DENIED, IO, TIMEOUT, REJECTED, PAUSED, INTERNAL -> false;
        };
    }

    /** @throws IllegalArgumentException if the ranges of a key are not a value */
    @Override
    public StoreTask put(List<BlockHash> keys, List<ValueRanges> from, Deadline deadline) {
        StoreTask task = new StoreTask(keys.size(), deadline);
        BatchRanges ranges = BatchRanges.ofValues(from, keys.size(), format.valueBytes());
        int[] unknown = unknown(keys, task);
        if (unknown.length > 0 && !paused.map(Deadline::isOver).orElse(true)) {
            stats.failed(Operation.PUT, FileFault.PAUSED, unknown.length);
            task.end();
            return task;
        }
        submit(writes, Operation.PUT, task, unknown.length, i -> {
            BlockHash key = keys.get(unknown[i]);
            boolean written;
            try {
                written = values.write(key, ranges, unknown[i], stop(task));
            } catch (IOException e) {
                FileFault fault = FileFault.of(e);
                if (fault == FileFault.NO_SPACE || fault == FileFault.DENIED) {
                    paused = Optional.of(Deadline.after(ticker, PAUSE));
                }
                throw e;
            }
            index.add(key);
            if (written) {
                index.touched(key);
                stats.stored(key, format.valueBytes());
                collector.ifPresent(each -> each.added(FileHeader.fileBytes(format.valueBytes())));
            } else {
                touch(key);
            }
            task.succeed(unknown[i]);
        });
        return task;
    }

    /** The task has succeeded for keys that are surely there; the other ones are left. */
    private int[] unknown(List<BlockHash> keys, StoreTask task) {
        BitSet left = new BitSet(keys.size());
        for (int key = 0; key < keys.size(); key++) {
            if (isReady() && index.isFresh(keys.get(key))) {
                task.succeed(key);
            } else {
                left.set(key);
            }
        }
        return left.stream().toArray();
    }

    private interface KeyWork {
        void run(int i) throws IOException;
    }

    private void submit(BatchQueue queue, Operation operation, StoreTask task, int keys, KeyWork work) {
        if (keys == 0) {
            task.end();
            return;
        }
        collector.ifPresent(BackgroundCollector::poll);
        boolean accepted = isReady()
                && queue.submit(new BatchQueue.Batch(task, keys, i -> run(operation, work, i), left -> {
                    if (task.deadline().isOver()) {
                        failed(operation, FileFault.TIMEOUT, left, "an operation was not done in time");
                    }
                }));
        if (!accepted) {
            task.end();
            failed(
                    operation,
                    FileFault.REJECTED,
                    keys,
                    queue.isStuck() || opening instanceof Opening.Pending
                            ? "the directory does not answer"
                            : "too many operations wait");
        }
    }

    private void run(Operation operation, KeyWork work, int i) {
        try {
            work.run(i);
        } catch (IOException e) {
            FileFault fault = FileFault.of(e);
            // A deadline that is over counts when the task notices it.
            if (fault != FileFault.TIMEOUT) {
                failed(operation, fault, 1, StorageException.describe(e));
            }
        } catch (RuntimeException | Error e) {
            log.error("a file operation failed unexpectedly", e);
            stats.failed(operation, FileFault.INTERNAL, 1);
        }
    }

    private void failed(Operation operation, FileFault fault, long keys, String text) {
        stats.failed(operation, fault, keys);
        if (fault != FileFault.ABSENT) {
            bursts.event(more -> log.warn(
                    "{}: {} failed for {} keys, {}: {}{}",
                    settings.root(),
                    operation,
                    keys,
                    fault.label(),
                    text,
                    more));
        }
    }

    private void forget(BlockHash key) {
        if (index.remove(key)) {
            stats.removed(key);
        }
    }

    /** Sets the file's time, so that collectors, in any process, see its last use. */
    private void touch(BlockHash key) {
        if (index.touched(key)) {
            try {
                files.setModified(values.file(key), files.now());
            } catch (NoSuchFileException e) {
                forget(key);
            } catch (IOException e) {
                log.debug("cannot set the time of a file: {}", e.toString());
            }
        }
    }

    private void collected(KvFiles.Collected result) {
        stats.collected(result.removed());
        stats.failed(Operation.COLLECT, FileFault.IO, result.failed());
    }

    private void removed(KvFiles.KvFile file) {
        KvFiles.key(file, layout).ifPresent(this::forget);
    }

    @Override
    public List<StoreEvent> takeEvents() {
        return stats.takeEvents();
    }

    @Override
    public List<Measurement> takeMeasurements() {
        collector.ifPresent(BackgroundCollector::poll);
        return stats.takeMeasurements();
    }

    @Override
    public void close() {
        closed = true;
        List<BatchQueue> queues = List.of(reads, writes, lookups);
        queues.forEach(BatchQueue::close);
        index.close();
        collector.ifPresent(BackgroundCollector::close);
        Deadline deadline = Deadline.after(ticker, CLOSE_TIMEOUT);
        boolean idle = background.awaitIdle(deadline);
        for (BatchQueue queue : queues) {
            idle &= queue.awaitIdle(deadline);
        }
        if (idle) {
            values.close();
        } else {
            log.warn("{} does not answer; threads that use it are left", settings.root());
        }
    }

    /** Files that are known, for tests. */
    int indexed() {
        return index.size();
    }
}
