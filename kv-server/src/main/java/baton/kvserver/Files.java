package baton.kvserver;

import baton.kv.ConfigException;
import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.store.FileOperations;
import baton.store.IoTasks;
import baton.store.SystemIoThreads;
import baton.store.lm.LmClient;
import baton.store.lm.LmMetadata;
import baton.store.prompt.StorageException;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.channels.FileLock;
import java.nio.channels.OverlappingFileLockException;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Consumer;
import java.util.function.LongConsumer;
import java.util.zip.CRC32C;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Values in files of a directory, {@code <last two digits>/<number>.kv}, each written under a temporary name and renamed when it is complete.
 * All numbers in them are little-endian:
 *
 * <pre>
 *   0   4  magic {@code BTLM}
 *   4   4  version, 1
 *   8  24  format, dtype, shape 0 to 3
 *  32   4  bytes of the value
 *  36   4  bytes of the key
 *  40 150  the key
 * 248   4  CRC32C of the value
 * 252   4  CRC32C of the header's bytes before this field
 * 256      the value
 * </pre>
 *
 * <p>Calls of the operating system, which may hang, run on threads of their own. Which values are kept belongs to the {@link Cache}: the
 * methods that change it are called under its monitor.
 */
final class Files implements AutoCloseable {
    private static final Logger log = LoggerFactory.getLogger(Files.class);

    private static final int MAGIC = 0x4d4c5442;
    private static final int VERSION = 1;
    private static final int HEADER_BYTES = 256;
    private static final int KEY_AT = 40;
    private static final int VALUE_CHECKSUM_AT = 248;
    private static final int CHECKSUM_AT = 252;
    private static final String END = ".kv";
    private static final String TEMPORARY_END = ".tmp";
    private static final int DIRECTORIES = 256;
    private static final int THREADS = 4;
    private static final int MOST_WAITING = 4096;
    private static final Duration CLOSED_WITHIN = Duration.ofSeconds(5);

    private final Path directory;
    private final long mostBytes;
    private final Counters counters;
    private final FileOperations operations;
    private final FileChannel lockFile;
    private final AtomicLong lastNumber = new AtomicLong();
    private final IoTasks reads = new IoTasks(new SystemIoThreads(), THREADS, MOST_WAITING);
    private final IoTasks writes = new IoTasks(new SystemIoThreads(), THREADS, MOST_WAITING);

    /** The files by number, least recently used first. */
    @GuardedBy("this")
    private final Map<Long, Entry> kept = new LinkedHashMap<>();

    @GuardedBy("this")
    private long bytes;

    private volatile boolean closed;

    /** A value that was there at the start. */
    record Found(long number, byte[] key, LmMetadata metadata, int length) {}

    /** @throws ConfigException if the directory cannot be used, or another server uses it */
    Files(KvServerSettings.Disk settings, FileOperations operations, Counters counters) {
        this.directory = settings.directory();
        this.mostBytes = settings.bytes();
        this.operations = operations;
        this.counters = counters;
        try {
            for (int i = 0; i < DIRECTORIES; i++) {
                operations.createDirectories(directory.resolve(HexFormat.of().toHexDigits((byte) i)));
            }
            lockFile = FileChannel.open(directory.resolve("lock"), StandardOpenOption.CREATE, StandardOpenOption.WRITE);
        } catch (IOException e) {
            throw new ConfigException(
                    "disk", "is %s, which cannot be written: %s".formatted(directory, StorageException.describe(e)), e);
        }
        if (!isOurs()) {
            throw new ConfigException("disk", "is %s, which another server uses".formatted(directory));
        }
    }

    private boolean isOurs() {
        try {
            FileLock lock = lockFile.tryLock();
            return lock != null && lock.isValid();
        } catch (IOException | OverlappingFileLockException e) {
            log.debug("{} is locked", directory, e);
            return false;
        }
    }

    /** The complete files, the oldest first. Incomplete ones are deleted. */
    List<Found> found() {
        List<Found> found = new ArrayList<>();
        for (int i = 0; i < DIRECTORIES; i++) {
            Path sub = directory.resolve(HexFormat.of().toHexDigits((byte) i));
            try {
                for (Path file : operations.list(sub, "")) {
                    Optional<Found> value = read(file);
                    value.ifPresentOrElse(found::add, () -> delete(file));
                }
            } catch (IOException e) {
                log.warn("{} cannot be read: {}", sub, StorageException.describe(e));
            }
        }
        found.sort(Comparator.comparingLong(Found::number));
        if (!found.isEmpty()) {
            lastNumber.set(found.getLast().number());
        }
        return found;
    }

    private Optional<Found> read(Path file) {
        String name = String.valueOf(file.getFileName());
        if (!name.endsWith(END)) {
            return Optional.empty();
        }
        ByteBuffer header = ByteBuffer.allocate(HEADER_BYTES).order(ByteOrder.LITTLE_ENDIAN);
        try (FileChannel channel = operations.openToRead(file)) {
            fill(channel, header, 0);
            long number = Long.parseUnsignedLong(name.substring(0, name.length() - END.length()), 16);
            return header(header, number).filter(found -> isWhole(channel, found));
        } catch (IOException | NumberFormatException e) {
            log.warn("{} is not a value: {}", file, e.toString());
            return Optional.empty();
        }
    }

    private static boolean isWhole(FileChannel channel, Found found) {
        try {
            return channel.size() == HEADER_BYTES + (long) found.length();
        } catch (IOException e) {
            log.debug("no size", e);
            return false;
        }
    }

    private static Optional<Found> header(ByteBuffer header, long number) {
        int keyBytes = header.getInt(36);
        if (header.getInt(0) != MAGIC
                || header.getInt(4) != VERSION
                || keyBytes < 1
                || keyBytes > LmClient.MOST_KEY_BYTES
                || header.getInt(32) < 0
                || header.getInt(CHECKSUM_AT) != checksum(header)) {
            return Optional.empty();
        }
        byte[] key = new byte[keyBytes];
        header.get(KEY_AT, key);
        LmMetadata metadata = new LmMetadata(
                header.getInt(8),
                header.getInt(12),
                header.getInt(16),
                header.getInt(20),
                header.getInt(24),
                header.getInt(28));
        return Optional.of(new Found(number, key, metadata, header.getInt(32)));
    }

    private static int checksum(ByteBuffer header) {
        CRC32C crc = new CRC32C();
        crc.update(header.duplicate().position(0).limit(CHECKSUM_AT));
        return (int) crc.getValue();
    }

    private static void fill(FileChannel channel, ByteBuffer to, long from) throws IOException {
        long at = from;
        while (to.hasRemaining()) {
            int read = channel.read(to, at);
            if (read < 0) {
                throw new IOException("it ends at " + at);
            }
            at += read;
        }
    }

    private Path file(long number) {
        return directory
                .resolve(HexFormat.of().toHexDigits((byte) number))
                .resolve(HexFormat.of().toHexDigits(number) + END);
    }

    private void delete(Path file) {
        try {
            operations.delete(file);
        } catch (IOException e) {
            log.warn("{} cannot be deleted: {}", file, StorageException.describe(e));
        }
    }

    /** A value has a file, or is used again. */
    synchronized void keep(Entry entry) {
        if (kept.remove(entry.file) == null) {
            bytes += HEADER_BYTES + (long) entry.length;
        }
        kept.put(entry.file, entry);
    }

    /** A value's file is not wanted any more. */
    synchronized void discard(Entry entry) {
        long number = entry.file;
        entry.file = 0;
        if (kept.remove(number) != null) {
            bytes -= HEADER_BYTES + (long) entry.length;
            submit(writes, () -> delete(file(number)));
        }
    }

    /** Values to {@link #discard}, so that there is enough room. */
    synchronized List<Entry> overflowing() {
        List<Entry> last = new ArrayList<>();
        long left = bytes;
        for (Entry entry : kept.values()) {
            if (left <= mostBytes) {
                break;
            }
            last.add(entry);
            left -= HEADER_BYTES + (long) entry.length;
        }
        return last;
    }

    /** Bytes in files. */
    synchronized long bytes() {
        return bytes;
    }

    long mostBytes() {
        return mostBytes;
    }

    private boolean submit(IoTasks tasks, Runnable action) {
        return !closed
                && tasks.submit(new IoTasks.Task() {
                    @Override
                    public void run() {
                        action.run();
                    }

                    @Override
                    public boolean isOverdue() {
                        return closed;
                    }
                });
    }

    /**
     * Writes a value.
     *
     * @param then receives the number of its file, 0 if there is none
     * @return false if it is not even tried
     */
    boolean write(Entry entry, List<MemorySegment> value, LongConsumer then) {
        return submit(writes, () -> {
            long number = lastNumber.incrementAndGet();
            boolean written = write(entry, value, number);
            counters.add(written ? Counters.Kind.FILES_WRITTEN : Counters.Kind.FILES_NOT_WRITTEN);
            then.accept(written ? number : 0);
        });
    }

    /** Whether a value is not too large. */
    boolean fits(Entry entry) {
        return HEADER_BYTES + (long) entry.length <= mostBytes;
    }

    private boolean write(Entry entry, List<MemorySegment> value, long number) {
        Path file = file(number);
        Path temporary = file.resolveSibling(file.getFileName() + TEMPORARY_END);
        try {
            try (FileChannel channel = operations.create(temporary)) {
                CRC32C crc = new CRC32C();
                long at = HEADER_BYTES;
                for (MemorySegment piece : value) {
                    crc.update(piece.asByteBuffer());
                    ByteBuffer bytesOfPiece = piece.asByteBuffer();
                    while (bytesOfPiece.hasRemaining()) {
                        at += channel.write(bytesOfPiece, at);
                    }
                }
                ByteBuffer header = encode(entry, (int) crc.getValue());
                while (header.hasRemaining()) {
                    channel.write(header, header.position());
                }
            }
            operations.move(temporary, file);
            return true;
        } catch (IOException e) {
            log.warn("{} cannot be written: {}", file, StorageException.describe(e));
            delete(temporary);
            return false;
        }
    }

    private static ByteBuffer encode(Entry entry, int checksum) {
        ByteBuffer header = ByteBuffer.allocate(HEADER_BYTES).order(ByteOrder.LITTLE_ENDIAN);
        LmMetadata metadata = entry.metadata;
        header.putInt(MAGIC).putInt(VERSION).putInt(metadata.format()).putInt(metadata.dtype());
        header.putInt(metadata.shape0()).putInt(metadata.shape1());
        header.putInt(metadata.shape2()).putInt(metadata.shape3());
        byte[] key = entry.key();
        header.putInt(entry.length).putInt(key.length).put(key);
        header.putInt(VALUE_CHECKSUM_AT, checksum);
        header.putInt(CHECKSUM_AT, checksum(header));
        return header.clear();
    }

    /**
     * Reads a value.
     *
     * @param then receives whether it is in its place, complete and right
     * @return false if it is not even tried
     */
    boolean read(Entry entry, List<MemorySegment> to, Consumer<Boolean> then) {
        Path file = file(entry.file);
        return submit(reads, () -> then.accept(read(file, entry, to)));
    }

    private boolean read(Path file, Entry entry, List<MemorySegment> to) {
        try (FileChannel channel = operations.openToRead(file)) {
            ByteBuffer header = ByteBuffer.allocate(HEADER_BYTES).order(ByteOrder.LITTLE_ENDIAN);
            fill(channel, header, 0);
            boolean same = header(header, 0)
                    .filter(found -> Arrays.equals(found.key, entry.key())
                            && found.length == entry.length
                            && found.metadata.equals(entry.metadata))
                    .isPresent();
            CRC32C crc = new CRC32C();
            long at = HEADER_BYTES;
            for (MemorySegment piece : to) {
                fill(channel, piece.asByteBuffer(), at);
                crc.update(piece.asByteBuffer());
                at += piece.byteSize();
            }
            boolean good = same && (int) crc.getValue() == header.getInt(VALUE_CHECKSUM_AT);
            counters.add(good ? Counters.Kind.FILES_READ : Counters.Kind.FILES_CORRUPT);
            if (!good) {
                log.warn("{} differs from the value written there; it is deleted", file);
            }
            return good;
        } catch (IOException e) {
            log.warn("{} cannot be read: {}", file, StorageException.describe(e));
            counters.add(Counters.Kind.FILES_NOT_READ);
            return false;
        }
    }

    /** Whether no thread uses memory or a file any more. */
    boolean isQuiet() {
        return reads.isIdle() && writes.isIdle();
    }

    /** Begins nothing more, and waits for the work under way, with a deadline. */
    @Override
    public void close() {
        closed = true;
        Deadline deadline = Deadline.after(Ticker.system(), CLOSED_WITHIN);
        try {
            while (!isQuiet() && !deadline.isOver()) {
                reads.awaitChange();
                writes.awaitChange();
            }
        } catch (InterruptedException _) {
            Thread.currentThread().interrupt();
        }
        try {
            lockFile.close();
        } catch (IOException e) {
            log.debug("the lock's file cannot be closed", e);
        }
    }
}
