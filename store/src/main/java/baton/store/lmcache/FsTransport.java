package baton.store.lmcache;

import baton.kv.Bursts;
import baton.kv.ConfigException;
import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.kv.connector.Measurement;
import baton.store.FileOperations;
import baton.store.IoTasks;
import baton.store.IoThreads;
import baton.store.StoreTask;
import baton.store.prompt.SharedStorage;
import baton.store.remote.Failure;
import baton.store.remote.StoreCounters;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.math.BigInteger;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.InvalidPathException;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReferenceArray;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Objects in files, as LMCache's {@code fs://} keeps them: {@code <directory>/<key>.data} with {@code -SEP-} for each slash in the key; metadata,
 * bytes. Of several directories a file is in that of the number that is the chunk hash's absolute value modulo their number. A file appears
 * complete: it is written beside its place, and renamed. An {@link ObjectCheck} follows the bytes, where LMCache does not read.
 */
public final class FsTransport implements ObjectTransport {
    private static final Logger log = LoggerFactory.getLogger(FsTransport.class);
    private static final int THREADS = 8;
    private static final int QUEUED = 1 << 14;
    private static final int HASH_FIELD = 3;
    private static final Duration CLOSE_TIMEOUT = Duration.ofSeconds(10);

    private final List<Path> directories;
    private final boolean hasMetadata;
    private final FileOperations files;
    private final IoTasks tasks;
    private final StoreCounters counters = new StoreCounters("fs");
    private final Bursts bursts;
    private final Ticker ticker;
    private volatile boolean closed;

    /** @param hasMetadata whether files begin with metadata: LMCache's {@code save_chunk_meta} */
    public FsTransport(
            List<Path> directories, boolean hasMetadata, FileOperations files, IoThreads threads, Ticker ticker) {
        this.directories = List.copyOf(directories);
        this.hasMetadata = hasMetadata;
        this.files = files;
        this.tasks = new IoTasks(threads, THREADS, QUEUED);
        this.bursts = new Bursts(1, Duration.ofSeconds(30), ticker);
        this.ticker = ticker;
    }

    /**
     * The directories that {@code fs://host:port/directory[,directory]} names; host and port mean nothing.
     *
     * @param field the setting, for errors
     * @throws ConfigException if it names none
     */
    public static List<Path> directories(String field, String url) {
        String path;
        try {
            path = Optional.ofNullable(new URI(url).getPath()).orElse("");
        } catch (URISyntaxException e) {
            throw new ConfigException(field, "is '" + url + "', which is not a URL: " + e.getReason(), e);
        }
        List<Path> directories = new ArrayList<>();
        for (String each : path.split(",", -1)) {
            if (!each.strip().startsWith("/")) {
                throw new ConfigException(field, "is '" + url + "', must be fs://host:port/directory");
            }
            directories.add(SharedStorage.root(field, each.strip()));
        }
        return List.copyOf(directories);
    }

    @Override
    public String name() {
        return "fs";
    }

    private Path file(String key) throws IOException {
        try {
            Path directory = directories.getFirst();
            if (directories.size() > 1) {
                BigInteger hash = new BigInteger(key.split("@", -1)[HASH_FIELD], 16);
                directory = directories.get(
                        hash.abs().mod(BigInteger.valueOf(directories.size())).intValueExact());
            }
            return directory.resolve(key.replace("/", "-SEP-") + ".data");
        } catch (InvalidPathException e) {
            throw new IOException(e);
        }
    }

    private interface Work {
        void run(int i) throws IOException;
    }

    private StoreTask submit(StoreTask task, int count, Work work) {
        AtomicInteger open = new AtomicInteger(count + 1);
        for (int i = 0; i < count; i++) {
            int index = i;
            boolean accepted = !closed
                    && tasks.submit(new IoTasks.Task() {
                        @Override
                        public void run() {
                            try {
                                if (!task.isDone()) {
                                    work.run(index);
                                }
                            } catch (NoSuchFileException _) {
                                counters.count(StoreCounters.Result.MISS, 1);
                            } catch (IOException | RuntimeException e) {
                                counters.failed(Failure.ERROR, 1);
                                bursts.event(more -> log.warn("{}: a file cannot be used: {}{}", directories, e, more));
                            } finally {
                                end();
                            }
                        }

                        private void end() {
                            if (open.decrementAndGet() == 0) {
                                task.end();
                            }
                        }

                        @Override
                        public boolean isOverdue() {
                            return task.deadline().isOver();
                        }
                    });
            if (!accepted) {
                counters.failed(tasks.isStuck() ? Failure.UNAVAILABLE : Failure.QUEUE_FULL, 1);
                open.decrementAndGet();
            }
        }
        if (open.decrementAndGet() == 0) {
            task.end();
        }
        return task;
    }

    @Override
    public StoreTask contains(List<String> keys, Deadline deadline) {
        StoreTask task = new StoreTask(keys.size(), deadline);
        return submit(task, 1, _ -> {
            for (int i = 0; i < keys.size() && !task.isDone(); i++) {
                try {
                    if (files.attributes(file(keys.get(i))).isRegularFile()) {
                        task.succeed(i);
                    }
                } catch (NoSuchFileException _) {
                    // It is not there.
                }
            }
        });
    }

    @Override
    public Reads get(List<Entry> entries, Deadline deadline) {
        AtomicReferenceArray<Found> found = new AtomicReferenceArray<>(entries.size());
        StoreTask task = new StoreTask(entries.size(), deadline);
        submit(task, entries.size(), i -> {
            found.set(i, read(entries.get(i)));
            counters.read(entries.get(i).bytes().byteSize());
            task.succeed(i);
        });
        return new Reads(task, found::get);
    }

    private Found read(Entry entry) throws IOException {
        try (FileChannel channel = files.openToRead(file(entry.key()))) {
            int metadata = hasMetadata ? (int) read(channel, entry.metadata()) : 0;
            long bytes = read(channel, entry.bytes());
            int check = (int) read(channel, entry.check());
            return new Found(hasMetadata ? Math.max(1, metadata) : 0, bytes, check);
        }
    }

    /** Reads the file's bytes, at most the size of the place. */
    private static long read(FileChannel channel, MemorySegment to) throws IOException {
        ByteBuffer buffer = to.asByteBuffer();
        while (buffer.hasRemaining() && channel.read(buffer) >= 0) {
            // Until it is full, or the file ends.
        }
        return buffer.position();
    }

    @Override
    public StoreTask put(List<Entry> entries, Deadline deadline) {
        StoreTask task = new StoreTask(entries.size(), deadline);
        return submit(task, entries.size(), i -> {
            write(entries.get(i));
            counters.stored(entries.get(i).bytes().byteSize());
            task.succeed(i);
        });
    }

    private void write(Entry entry) throws IOException {
        Path file = file(entry.key());
        Path directory = file.getParent();
        if (directory == null) {
            throw new IOException("no directory of " + file);
        }
        files.createDirectories(directory);
        Path temporary = directory.resolve(
                "." + HexFormat.of().toHexDigits(ThreadLocalRandom.current().nextLong()) + ".tmp");
        try {
            try (FileChannel channel = files.create(temporary)) {
                List<MemorySegment> parts = new ArrayList<>();
                if (hasMetadata) {
                    parts.add(entry.metadata());
                }
                parts.add(entry.bytes());
                parts.add(entry.check());
                for (MemorySegment part : parts) {
                    ByteBuffer buffer = part.asByteBuffer();
                    while (buffer.hasRemaining()) {
                        channel.write(buffer);
                    }
                }
            }
            files.move(temporary, file);
        } catch (IOException e) {
            try {
                files.delete(temporary);
            } catch (IOException suppressed) {
                e.addSuppressed(suppressed);
            }
            throw e;
        }
    }

    @Override
    public List<Measurement> takeMeasurements() {
        return counters.takeCounts();
    }

    @Override
    public void close() {
        closed = true;
        if (!tasks.awaitIdle(Deadline.after(ticker, CLOSE_TIMEOUT))) {
            log.warn("{} does not answer; threads that use it are left", directories);
        }
    }
}
