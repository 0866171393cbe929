package baton.store.remote;

import baton.kv.BlockHash;
import baton.store.StoreFormat;
import io.netty.buffer.ByteBuf;
import java.lang.foreign.MemorySegment;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.HexFormat;
import java.util.List;
import java.util.Optional;
import java.util.zip.CRC32C;

/**
 * What a stored value begins with. All numbers are big-endian:
 *
 * <pre>
 *  0  4  magic {@code BTKV}
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

    private final byte[] format;
    private final long valueBytes;

    public ValueHeader(StoreFormat format) {
        this.format = sha256(format.describe());
        this.valueBytes = format.valueBytes();
    }

    /** Names the format in keys: 32 hexadecimal digits of its digest. */
    public String formatName() {
        return HexFormat.of().formatHex(format, 0, 16);
    }

    /**
     * Writes a header in front of a value that is in place already.
     *
     * @param at where the header begins; the value follows it
     */
    public void write(ByteBuf buffer, int at, BlockHash key) {
        writeFields(buffer, at, key);
        buffer.setInt(at + CHECKSUM, checksum(buffer.nioBuffer(at, Math.toIntExact(BYTES + valueBytes))));
    }

    /**
     * Writes a header at a buffer's end.
     *
     * @param value in pieces, which need not be in the buffer
     */
    public void write(ByteBuf buffer, List<MemorySegment> value, BlockHash key) {
        int at = buffer.writerIndex();
        buffer.writeZero(BYTES);
        writeFields(buffer, at, key);
        buffer.setInt(at + CHECKSUM, checksum(buffer.nioBuffer(at, CHECKSUM), value));
    }

    private void writeFields(ByteBuf buffer, int at, BlockHash key) {
        buffer.setInt(at, MAGIC);
        buffer.setInt(at + 4, VERSION);
        buffer.setLong(at + 8, key.a());
        buffer.setLong(at + 16, key.b());
        buffer.setLong(at + 24, key.c());
        buffer.setLong(at + 32, key.d());
        buffer.setBytes(at + 40, format);
        buffer.setLong(at + 72, valueBytes);
    }

    /** What is wrong with a header and the value behind it; empty if nothing is. */
    public Optional<Failure> check(ByteBuffer stored, BlockHash key) {
        Optional<Failure> failure = checkFields(stored, key);
        if (failure.isPresent()) {
            return failure;
        }
        if (stored.remaining() != BYTES + valueBytes) {
            return Optional.of(Failure.LENGTH);
        }
        return stored.getInt(stored.position() + CHECKSUM) == checksum(stored.duplicate())
                ? Optional.empty()
                : Optional.of(Failure.CHECKSUM);
    }

    /** As {@link #check(ByteBuffer, BlockHash)}, of a header whose value has the right length and is known by a {@link Checksum}. */
    public Optional<Failure> check(MemorySegment head, Checksum checksum, BlockHash key) {
        ByteBuffer fields = head.asByteBuffer();
        return checkFields(fields, key)
                .or(() -> fields.getInt(CHECKSUM) == (int) checksum.crc.getValue()
                        ? Optional.empty()
                        : Optional.of(Failure.CHECKSUM));
    }

    /** Of a value that comes in pieces. One thread uses it. */
    public static final class Checksum {
        private final CRC32C crc = new CRC32C();

        /** @param head whole, before the value */
        public void header(MemorySegment head) {
            crc.update(head.asSlice(0, CHECKSUM).asByteBuffer());
        }

        /** The next piece of the value. */
        public void value(MemorySegment piece) {
            crc.update(piece.asByteBuffer());
        }
    }

    private Optional<Failure> checkFields(ByteBuffer stored, BlockHash key) {
        int at = stored.position();
        if (stored.remaining() < 8 || stored.getInt(at) != MAGIC) {
            return Optional.of(Failure.FOREIGN);
        }
        if (stored.getInt(at + 4) != VERSION) {
            return Optional.of(Failure.VERSION);
        }
        if (stored.remaining() < BYTES) {
            return Optional.of(Failure.LENGTH);
        }
        if (stored.getLong(at + 8) != key.a()
                || stored.getLong(at + 16) != key.b()
                || stored.getLong(at + 24) != key.c()
                || stored.getLong(at + 32) != key.d()) {
            return Optional.of(Failure.WRONG_KEY);
        }
        if (!stored.slice(at + 40, format.length).equals(ByteBuffer.wrap(format))) {
            return Optional.of(Failure.WRONG_FORMAT);
        }
        return stored.getLong(at + 72) == valueBytes ? Optional.empty() : Optional.of(Failure.LENGTH);
    }

    private static int checksum(ByteBuffer fields, List<MemorySegment> value) {
        CRC32C crc = new CRC32C();
        crc.update(fields);
        value.forEach(piece -> crc.update(piece.asByteBuffer()));
        return (int) crc.getValue();
    }

    /** Moves the buffer's position. */
    private static int checksum(ByteBuffer stored) {
        int at = stored.position();
        int end = stored.limit();
        CRC32C crc = new CRC32C();
        crc.update(stored.limit(at + CHECKSUM));
        crc.update(stored.limit(end).position(at + BYTES));
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
