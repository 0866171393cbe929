package baton.store.file;

import baton.kv.BlockHash;
import baton.store.BatchRanges;
import baton.store.FileOperations;
import baton.store.file.FileFault.BadFileException;
import baton.store.prompt.StorageException;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.NoSuchFileException;
import java.nio.file.OpenOption;
import java.nio.file.Path;
import java.nio.file.attribute.BasicFileAttributes;
import java.util.Arrays;
import java.util.BitSet;
import java.util.HexFormat;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.ThreadLocalRandom;
import java.util.function.BooleanSupplier;
import java.util.zip.CRC32C;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Reads and writes files of one format, each a {@link FileHeader} and a value. A file is written under a temporary name, its header last,
 * and renamed. All methods may take arbitrarily long. Thread-safe.
 */
final class ValueFiles {
    private static final Logger log = LoggerFactory.getLogger(ValueFiles.class);

    /** The part after a value's name in the name of a file that is being written, before a number and {@link #TEMPORARY_END}; as in vLLM. */
    static final String TEMPORARY_MARK = "_";

    static final String TEMPORARY_END = ".tmp";

    /** Small enough to stay in cache between the copy and the checksum. */
    private static final int PIECE_BYTES = 1 << 20;

    private static final int PREFIXES = 1 << 20;
    private static final int ATTEMPTS = 3;

    private final Path root;
    private final FsPathLayout layout;
    private final FileOperations files;
    private final boolean fsync;
    private final long valueBytes;
    private final FileHeader header;
    private final IoBuffers buffers = new IoBuffers(PIECE_BYTES);

    /** {@code O_DIRECT}, if files are opened with it. */
    private volatile List<OpenOption> direct = List.of();

    /** The directories, by the first five digits of keys, that were found to be directories and not links. */
    @GuardedBy("this")
    private final BitSet trusted = new BitSet(PREFIXES);

    ValueFiles(Path root, FsPathLayout layout, long valueBytes, FileOperations files, boolean fsync) {
        this.root = root;
        this.layout = layout;
        this.files = files;
        this.fsync = fsync;
        this.valueBytes = valueBytes;
        this.header = new FileHeader(valueBytes, layout.digest());
    }

    /** Opens files with {@code O_DIRECT} from now on, if the file system supports it: writes and reads a file to find out. */
    boolean tryDirect() {
        List<OpenOption> options = directOption();
        Path probe = root.resolve(layout.directory(), temporary("probe"));
        IoBuffers.Buffer buffer = buffers.take();
        try {
            OpenOption[] with = options.toArray(OpenOption[]::new);
            try (FileChannel channel = files.create(probe, with)) {
                buffer.header().fill((byte) 1);
                channel.write(buffer.header().asByteBuffer(), 0);
            }
            try (FileChannel channel = files.openToRead(probe, with)) {
                if (channel.read(buffer.header().asByteBuffer(), 0) == FileHeader.BYTES) {
                    direct = options;
                }
            }
        } catch (IOException | UnsupportedOperationException e) {
            log.info("{} has no direct I/O: {}", root, e.toString());
        } finally {
            buffers.giveBack(buffer);
            discard(probe);
        }
        return !direct.isEmpty();
    }

    /** The JDK's, by name, as it is not in Java SE: none elsewhere. */
    private static List<OpenOption> directOption() {
        try {
            return Arrays.stream(
                            Class.forName("com.sun.nio.file.ExtendedOpenOption").getEnumConstants())
                    .filter(option -> option.toString().equals("DIRECT"))
                    .map(OpenOption.class::cast)
                    .toList();
        } catch (ClassNotFoundException e) {
            return List.of();
        }
    }

    Path file(BlockHash key) {
        return layout.value(root, 0, key.toString(), 0);
    }

    /**
     * Whether there is a file for the key, of the right size.
     *
     * @throws BadFileException if there is something else in its place
     */
    boolean exists(BlockHash key) throws IOException {
        try {
            Path file = file(key);
            requireDirectories(key, file);
            return checked(file).size() == FileHeader.fileBytes(valueBytes);
        } catch (NoSuchFileException e) {
            return false;
        }
    }

    private BasicFileAttributes checked(Path file) throws IOException {
        BasicFileAttributes found = files.attributes(file);
        if (!found.isRegularFile()) {
            throw new BadFileException(FileFault.FOREIGN, "is no file");
        }
        return found;
    }

    /** Links below the root are not followed. */
    private void requireDirectories(BlockHash key, Path file) throws IOException {
        int prefix = (int) (key.a() >>> 44);
        synchronized (this) {
            if (trusted.get(prefix)) {
                return;
            }
        }
        Path directory = root;
        Path below = root.relativize(file);
        for (int level = 0; level < below.getNameCount() - 1; level++) {
            directory = directory.resolve(below.getName(level));
            if (!files.attributes(directory).isDirectory()) {
                throw new BadFileException(FileFault.FOREIGN, directory + " is no directory");
            }
        }
        synchronized (this) {
            trusted.set(prefix);
        }
    }

    /**
     * Reads a value. A file that is cut, corrupt, or another key's is deleted.
     *
     * @param index of the key among the ranges
     * @param stop whether the value is not wanted any more
     * @throws IOException if it is not in its ranges; {@link FileFault#of} gives the reason
     */
    void read(BlockHash key, BatchRanges ranges, int index, BooleanSupplier stop) throws IOException {
        Path file = file(key);
        requireDirectories(key, file);
        BasicFileAttributes found = checked(file);
        IoBuffers.Buffer buffer = buffers.take();
        try {
            if (found.size() != FileHeader.fileBytes(valueBytes)) {
                throw new BadFileException(
                        FileFault.TRUNCATED,
                        "has %d bytes, not %d".formatted(found.size(), FileHeader.fileBytes(valueBytes)));
            }
            try (FileChannel channel = files.openToRead(file, options())) {
                new Reading(channel, key, ranges, index, buffer).run(stop);
            }
        } catch (BadFileException e) {
            if (e.fault() != FileFault.TIMEOUT) {
                remove(file, found, e);
            }
            throw e;
        } finally {
            buffers.giveBack(buffer);
        }
    }

    private OpenOption[] options() {
        return direct.toArray(OpenOption[]::new);
    }

    /** Whether memory can be given to the operating system as it is. */
    private boolean isAligned(MemorySegment memory, long bytes) {
        return direct.isEmpty() || (memory.address() | bytes) % FileHeader.BYTES == 0;
    }

    /** One value's pieces: where each is read to or written from. */
    private abstract class Transfer {
        final FileChannel channel;
        final BatchRanges ranges;
        final int index;
        final IoBuffers.Buffer buffer;
        final CRC32C checksum = new CRC32C();
        private final Optional<MemorySegment> whole;

        Transfer(FileChannel channel, BatchRanges ranges, int index, IoBuffers.Buffer buffer) {
            this.channel = channel;
            this.ranges = ranges;
            this.index = index;
            this.buffer = buffer;
            this.whole = ranges.whole(index, valueBytes);
        }

        /** The piece in the value's own memory, if it can be used for I/O. */
        Optional<MemorySegment> inPlace(long offset, long bytes, boolean padded) {
            return whole.map(memory -> memory.asSlice(offset, bytes))
                    .filter(piece -> isAligned(piece, bytes) && !(padded && bytes % FileHeader.BYTES != 0));
        }

        void run(BooleanSupplier stop) throws IOException {
            for (long offset = 0; offset < valueBytes; offset += PIECE_BYTES) {
                if (stop.getAsBoolean()) {
                    throw new BadFileException(FileFault.TIMEOUT, "is not wanted any more");
                }
                piece(offset, Math.min(PIECE_BYTES, valueBytes - offset));
            }
        }

        abstract void piece(long offset, long bytes) throws IOException;
    }

    private final class Reading extends Transfer {
        private final BlockHash key;
        private int expected;

        Reading(FileChannel channel, BlockHash key, BatchRanges ranges, int index, IoBuffers.Buffer buffer) {
            super(channel, ranges, index, buffer);
            this.key = key;
        }

        @Override
        void run(BooleanSupplier stop) throws IOException {
            super.run(stop);
            if ((int) checksum.getValue() != expected) {
                throw new BadFileException(FileFault.CORRUPT, "has another checksum than its header says");
            }
        }

        @Override
        void piece(long offset, long bytes) throws IOException {
            Optional<MemorySegment> inPlace = inPlace(offset, bytes, false);
            MemorySegment piece = inPlace.orElseGet(() -> buffer.piece().asSlice(0, bytes));
            ByteBuffer target = inPlace.isPresent()
                    ? piece.asByteBuffer()
                    : buffer.piece().asSlice(0, FileHeader.padded(bytes)).asByteBuffer();
            if (offset == 0) {
                ByteBuffer[] both = {buffer.header().asByteBuffer(), target};
                while (target.hasRemaining()) {
                    requireMore(channel.read(both));
                }
                expected = header.check(buffer.header(), key);
            } else {
                while (target.hasRemaining()) {
                    requireMore(channel.read(target, FileHeader.BYTES + offset + target.position()));
                }
            }
            checksum.update(piece.asByteBuffer());
            if (inPlace.isEmpty()) {
                ranges.scatter(index, offset, piece, bytes);
            }
        }

        private static void requireMore(long read) throws BadFileException {
            if (read < 0) {
                throw new BadFileException(FileFault.TRUNCATED, "ends inside its value");
            }
        }
    }

    private final class Writing extends Transfer {
        Writing(FileChannel channel, BatchRanges ranges, int index, IoBuffers.Buffer buffer) {
            super(channel, ranges, index, buffer);
        }

        @Override
        void piece(long offset, long bytes) throws IOException {
            Optional<MemorySegment> inPlace = inPlace(offset, bytes, true);
            MemorySegment piece = inPlace.orElseGet(() -> {
                ranges.gather(index, offset, buffer.piece(), bytes);
                return buffer.piece().asSlice(0, bytes);
            });
            checksum.update(piece.asByteBuffer());
            if (inPlace.isEmpty()) {
                long padded = FileHeader.padded(bytes);
                buffer.piece().asSlice(bytes, padded - bytes).fill((byte) 0);
                piece = buffer.piece().asSlice(0, padded);
            }
            ByteBuffer source = piece.asByteBuffer();
            while (source.hasRemaining()) {
                channel.write(source, FileHeader.BYTES + offset + source.position());
            }
        }
    }

    /**
     * Writes a value, unless it is there.
     *
     * @param index of the key among the ranges
     * @param stop whether it is not to be written any more
     * @return false if it was there
     * @throws IOException if it is not there; no temporary file is left
     */
    boolean write(BlockHash key, BatchRanges ranges, int index, BooleanSupplier stop) throws IOException {
        if (exists(key)) {
            return false;
        }
        Path file = file(key);
        Path temporary = file.resolveSibling(temporary(file.getFileName().toString()));
        IoBuffers.Buffer buffer = buffers.take();
        try (FileChannel channel = create(key, file, temporary)) {
            Writing writing = new Writing(channel, ranges, index, buffer);
            writing.run(stop);
            header.encode(buffer.header(), key, (int) writing.checksum.getValue());
            ByteBuffer encoded = buffer.header().asByteBuffer();
            while (encoded.hasRemaining()) {
                channel.write(encoded, encoded.position());
            }
            if (fsync) {
                channel.force(true);
            }
            // Some file systems report only now that the device is full.
            channel.close();
            files.move(temporary, file);
        } catch (IOException | RuntimeException | Error e) {
            discard(temporary);
            throw e;
        } finally {
            buffers.giveBack(buffer);
        }
        return true;
    }

    /** The directories are made when they are first needed; a collector may remove empty ones at any time. */
    private FileChannel create(BlockHash key, Path file, Path temporary) throws IOException {
        for (int attempt = 1; ; attempt++) {
            try {
                requireDirectories(key, file);
                return files.create(temporary, options());
            } catch (NoSuchFileException e) {
                if (attempt == ATTEMPTS) {
                    throw e;
                }
                files.createDirectories(Objects.requireNonNull(file.getParent()));
            }
        }
    }

    static String temporary(String name) {
        return name
                + TEMPORARY_MARK
                + HexFormat.of().toHexDigits(ThreadLocalRandom.current().nextLong())
                + TEMPORARY_END;
    }

    private void remove(Path file, BasicFileAttributes bad, BadFileException reason) {
        try {
            // Another process may have replaced it.
            if (Objects.equals(files.attributes(file).fileKey(), bad.fileKey())) {
                files.delete(file);
                log.warn("deleted {}: it {}", file, reason.getMessage());
            }
        } catch (NoSuchFileException e) {
            log.debug("{} is gone", file);
        } catch (IOException e) {
            log.warn("{} {} and cannot be deleted: {}", file, reason.getMessage(), e.toString());
        }
    }

    private void discard(Path temporary) {
        try {
            files.delete(temporary);
        } catch (IOException e) {
            log.debug("{} is left for a collector: {}", temporary, StorageException.Fault.of(e));
        }
    }

    /** Frees the buffers; nothing reads or writes any more. */
    void close() {
        buffers.close();
    }
}
