package baton.store.remote;

import baton.kv.BlockHash;
import baton.kv.Sha256;
import baton.store.StoreFormat;
import io.netty.buffer.ByteBuf;
import java.lang.foreign.MemorySegment;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import java.util.List;
import java.util.Optional;
import java.util.zip.CRC32C;

/**
 * The header of a stored value. All numbers are big-endian:
 *
 * <pre>
 *  0  4  magic {@code BTKV}, of another kind of stores another one
 *  4  4  version, 1
 *  8 32  the key: the block hash
 * 40 32  SHA-256 of {@link StoreFormat#describe}, in UTF-8
 * 72  8  bytes that follow the header
 * 80  4  CRC32C of the bytes before this field and of those after the header
 * </pre>
 */
public final class ValueHeader {
    public static final int BYTES = 84;

    private static final int MAGIC = 0x42544b56;
    private static final int VERSION = 1;
    private static final int CHECKSUM = 80;

    private final int magic;
    private final byte[] format;
    private final long valueBytes;

    public ValueHeader(StoreFormat format) {
        this(MAGIC, format.describe(), format.valueBytes());
    }

    /**
     * With another magic, for parts of values.
     *
     * @param format describes the stored value
     * @param valueBytes that follow the header
     */
    public ValueHeader(int magic, String format, long valueBytes) {
        this.magic = magic;
        this.format = Sha256.of(format);
        this.valueBytes = valueBytes;
    }

    /** Names the format in keys: 32 hexadecimal digits of its digest. */
    public String formatName() {
        return HexFormat.of().formatHex(format, 0, 16);
    }

    /** Bytes of a value without its header. */
    public long valueBytes() {
        return valueBytes;
    }

    /** Bytes of a value with its header. */
    public long storedBytes() {
        return BYTES + valueBytes;
    }

    /**
     * Writes a header at a buffer's end.
     *
     * @param value in pieces, which need not be in the buffer
     */
    public void write(ByteBuf buffer, List<MemorySegment> value, BlockHash key) {
        buffer.ensureWritable(BYTES);
        write(buffer.nioBuffer(buffer.writerIndex(), BYTES), value, key);
        buffer.writerIndex(buffer.writerIndex() + BYTES);
    }

    /** Writes a header in front of a value that is in place already. */
    public void write(MemorySegment stored, BlockHash key) {
        write(stored.asSlice(0, BYTES).asByteBuffer(), List.of(stored.asSlice(BYTES)), key);
    }

    private void write(ByteBuffer head, List<MemorySegment> value, BlockHash key) {
        head.putInt(magic).putInt(VERSION);
        head.putLong(key.a()).putLong(key.b()).putLong(key.c()).putLong(key.d());
        head.put(format).putLong(valueBytes);
        CRC32C crc = new CRC32C();
        crc.update(head.slice(0, CHECKSUM));
        value.forEach(piece -> crc.update(piece.asByteBuffer()));
        head.putInt((int) crc.getValue());
    }

    /** The fault of a header and its value, which has the right length; empty if both are valid. */
    public Optional<Failure> check(MemorySegment stored, BlockHash key) {
        Checksum checksum = new Checksum();
        checksum.header(stored);
        checksum.value(stored.asSlice(BYTES));
        return check(stored.asSlice(0, BYTES), checksum, key);
    }

    /** Checks, as {@link #check(MemorySegment, BlockHash)} does, a value that has come in pieces. */
    Optional<Failure> check(MemorySegment head, Checksum checksum, BlockHash key) {
        return checkFields(head, key)
                .or(() -> head.asByteBuffer().getInt(CHECKSUM) == (int) checksum.crc.getValue()
                        ? Optional.empty()
                        : Optional.of(Failure.CHECKSUM));
    }

    /** The checksum of a value that comes in pieces. One thread uses it. */
    static final class Checksum {
        private final CRC32C crc = new CRC32C();

        /** @param head whole, before the value */
        void header(MemorySegment head) {
            crc.update(head.asSlice(0, CHECKSUM).asByteBuffer());
        }

        /** The next piece of the value. */
        void value(MemorySegment piece) {
            crc.update(piece.asByteBuffer());
        }
    }

    /** The fault of a header, which may be cut off. */
    Optional<Failure> checkFields(MemorySegment head, BlockHash key) {
        ByteBuffer stored = head.asByteBuffer();
        if (stored.remaining() < 8 || stored.getInt(0) != magic) {
            return Optional.of(Failure.FOREIGN);
        }
        if (stored.getInt(4) != VERSION) {
            return Optional.of(Failure.VERSION);
        }
        if (stored.remaining() < BYTES) {
            return Optional.of(Failure.LENGTH);
        }
        if (stored.getLong(8) != key.a()
                || stored.getLong(16) != key.b()
                || stored.getLong(24) != key.c()
                || stored.getLong(32) != key.d()) {
            return Optional.of(Failure.WRONG_KEY);
        }
        if (!stored.slice(40, format.length).equals(ByteBuffer.wrap(format))) {
            return Optional.of(Failure.WRONG_FORMAT);
        }
        return stored.getLong(72) == valueBytes ? Optional.empty() : Optional.of(Failure.LENGTH);
    }
}
