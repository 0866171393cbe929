package baton.store.file;

import baton.kv.BlockHash;
import baton.store.file.FileFault.BadFileException;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.zip.CRC32C;

/**
 * The first {@value #BYTES} bytes of a value's file, little-endian: magic, version, bytes of the value, key, SHA-256 of the format, CRC32C of
 * the value, CRC32C of the header before it; the rest is zero. The value follows, padded with zeros to a multiple of {@value #BYTES}.
 */
final class FileHeader {
    /** A page, which direct I/O is aligned to. */
    static final int BYTES = 4096;

    private static final long MAGIC = 0x3156_4b4e_4f54_4142L; // "BATONKV1"
    private static final int VERSION = 1;
    private static final int VALUE_BYTES = 16;
    private static final int KEY = 24;
    private static final int FORMAT = 56;
    private static final int VALUE_CHECKSUM = 88;
    private static final int CHECKSUM = 92;
    private static final int DIGEST_BYTES = 32;
    private static final ValueLayout.OfInt INT = ValueLayout.JAVA_INT_UNALIGNED.withOrder(ByteOrder.LITTLE_ENDIAN);
    private static final ValueLayout.OfLong LONG = ValueLayout.JAVA_LONG_UNALIGNED.withOrder(ByteOrder.LITTLE_ENDIAN);

    private final long valueBytes;
    private final byte[] format;

    FileHeader(long valueBytes, byte[] format) {
        this.valueBytes = valueBytes;
        this.format = format.clone();
    }

    /** Bytes of a file with a value of that size. */
    static long fileBytes(long valueBytes) {
        return BYTES + padded(valueBytes);
    }

    static long padded(long bytes) {
        return (bytes + BYTES - 1) / BYTES * BYTES;
    }

    void encode(MemorySegment header, BlockHash key, int valueChecksum) {
        header.fill((byte) 0);
        header.set(LONG, 0, MAGIC);
        header.set(INT, 8, VERSION);
        header.set(INT, 12, BYTES);
        header.set(LONG, VALUE_BYTES, valueBytes);
        MemorySegment.copy(key.toBytes(), 0, header, ValueLayout.JAVA_BYTE, KEY, DIGEST_BYTES);
        MemorySegment.copy(format, 0, header, ValueLayout.JAVA_BYTE, FORMAT, DIGEST_BYTES);
        header.set(INT, VALUE_CHECKSUM, valueChecksum);
        header.set(INT, CHECKSUM, checksum(header));
    }

    /**
     * Checks all of a header.
     *
     * @return the value's checksum
     */
    int check(MemorySegment header, BlockHash key) throws BadFileException {
        if (header.get(LONG, 0) != MAGIC
                || header.get(INT, 8) != VERSION
                || header.get(INT, CHECKSUM) != checksum(header)) {
            throw new BadFileException(FileFault.CORRUPT, "has no intact header");
        }
        if (header.get(LONG, VALUE_BYTES) != valueBytes || !Arrays.equals(digest(header, FORMAT), format)) {
            throw new BadFileException(FileFault.OTHER_FORMAT, "is of another format");
        }
        if (!Arrays.equals(digest(header, KEY), key.toBytes())) {
            throw new BadFileException(FileFault.OTHER_KEY, "is another key's");
        }
        return header.get(INT, VALUE_CHECKSUM);
    }

    private static byte[] digest(MemorySegment header, int at) {
        return header.asSlice(at, DIGEST_BYTES).toArray(ValueLayout.JAVA_BYTE);
    }

    private static int checksum(MemorySegment header) {
        CRC32C checksum = new CRC32C();
        checksum.update(header.asSlice(0, CHECKSUM).asByteBuffer());
        return (int) checksum.getValue();
    }
}
