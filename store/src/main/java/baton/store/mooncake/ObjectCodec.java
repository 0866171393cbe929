package baton.store.mooncake;

import baton.kv.BlockHash;
import baton.store.StoreFormat;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.HexFormat;
import java.util.zip.CRC32C;

/**
 * What an object holds beside the bytes of its share.
 *
 * <p>In a namespace of Baton's own, a header, whose numbers are big-endian:
 *
 * <pre>
 *  0  4  magic {@code BTMC}
 *  4  4  version, 1
 *  8 32  the block hash
 * 40 32  SHA-256 of {@link StoreFormat#describe} and of the share, in UTF-8
 * 72  8  bytes that follow the header
 * 80  4  CRC32C of the bytes before this field and of those after the header
 * </pre>
 *
 * <p>In a namespace of vLLM's, nothing, as vLLM reads and writes the same objects. The checksum of one that Baton wrote, 4 bytes, is then an
 * object of its own, whose key has {@value #CHECKSUM_SUFFIX} behind that of the first.
 */
enum ObjectCodec {
    FRAMED(84),
    RAW(0);

    static final String CHECKSUM_SUFFIX = "@crc32c";
    static final int CHECKSUM_BYTES = 4;

    private static final int MAGIC = 0x42544d43;
    private static final int VERSION = 1;
    private static final int KEY = 8;
    private static final int FORMAT = 40;
    private static final int LENGTH = 72;
    private static final int CHECKSUM = 80;
    private static final ValueLayout.OfInt INT = ValueLayout.JAVA_INT_UNALIGNED.withOrder(ByteOrder.BIG_ENDIAN);
    private static final ValueLayout.OfLong LONG = ValueLayout.JAVA_LONG_UNALIGNED.withOrder(ByteOrder.BIG_ENDIAN);

    private final int headerBytes;

    ObjectCodec(int headerBytes) {
        this.headerBytes = headerBytes;
    }

    int headerBytes() {
        return headerBytes;
    }

    /** Names a format in keys: 32 hexadecimal digits. */
    static String formatName(StoreFormat format) {
        return HexFormat.of().formatHex(sha256(format.describe()), 0, 16);
    }

    /** What a header says of the format. */
    static MemorySegment formatDigest(StoreFormat format, ObjectLayout.Share share) {
        return MemorySegment.ofArray(sha256("%s tp_rank=%d pp_rank=%d bytes=%d"
                .formatted(format.describe(), share.tensor(), share.pipeline(), share.bytes())));
    }

    /** Writes a header in front of a share that is in place already. */
    void seal(MemorySegment object, BlockHash key, MemorySegment format) {
        if (this == RAW) {
            return;
        }
        object.set(INT, 0, MAGIC);
        object.set(INT, 4, VERSION);
        MemorySegment.copy(MemorySegment.ofArray(key.toBytes()), 0, object, KEY, FORMAT - KEY);
        MemorySegment.copy(format, 0, object, FORMAT, LENGTH - FORMAT);
        object.set(LONG, LENGTH, object.byteSize() - headerBytes);
        object.set(INT, CHECKSUM, checksum(object));
    }

    /** {@link Outcome#DONE}, or what is wrong with an object. */
    Outcome check(MemorySegment object, BlockHash key, MemorySegment format) {
        if (this == RAW) {
            return Outcome.DONE;
        }
        if (object.get(INT, 0) != MAGIC) {
            return Outcome.FOREIGN;
        }
        if (object.get(INT, 4) != VERSION) {
            return Outcome.VERSION;
        }
        if (object.asSlice(KEY, FORMAT - KEY).mismatch(MemorySegment.ofArray(key.toBytes())) >= 0) {
            return Outcome.WRONG_KEY;
        }
        if (object.asSlice(FORMAT, LENGTH - FORMAT).mismatch(format) >= 0) {
            return Outcome.WRONG_FORMAT;
        }
        if (object.get(LONG, LENGTH) != object.byteSize() - headerBytes) {
            return Outcome.LENGTH;
        }
        return object.get(INT, CHECKSUM) == checksum(object) ? Outcome.DONE : Outcome.CHECKSUM;
    }

    /** Writes the checksum of an object without a header into memory for its own. */
    static void writeChecksum(MemorySegment object, MemorySegment to) {
        to.set(INT, 0, crc(object));
    }

    static Outcome checkChecksum(MemorySegment object, MemorySegment checksum) {
        return checksum.get(INT, 0) == crc(object) ? Outcome.DONE : Outcome.CHECKSUM;
    }

    private int checksum(MemorySegment object) {
        CRC32C crc = new CRC32C();
        crc.update(object.asSlice(0, CHECKSUM).asByteBuffer());
        crc.update(object.asSlice(headerBytes).asByteBuffer());
        return (int) crc.getValue();
    }

    private static int crc(MemorySegment object) {
        CRC32C crc = new CRC32C();
        crc.update(object.asByteBuffer());
        return (int) crc.getValue();
    }

    private static byte[] sha256(String text) {
        try {
            return MessageDigest.getInstance("SHA-256").digest(text.getBytes(StandardCharsets.UTF_8));
        } catch (NoSuchAlgorithmException e) {
            throw new IllegalStateException("every Java platform has SHA-256", e);
        }
    }
}
