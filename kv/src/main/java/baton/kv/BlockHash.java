package baton.kv;

import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.ByteOrder;
import java.util.HexFormat;

/** Content address of a full block: a 256-bit digest of its tokens and of everything before them. */
public record BlockHash(long a, long b, long c, long d) {
    private static final ValueLayout.OfLong BIG_ENDIAN =
            ValueLayout.JAVA_LONG_UNALIGNED.withOrder(ByteOrder.BIG_ENDIAN);

    static final int BYTES = 32;

    static BlockHash of(byte[] digest) {
        MemorySegment bytes = MemorySegment.ofArray(digest);
        return new BlockHash(
                bytes.get(BIG_ENDIAN, 0),
                bytes.get(BIG_ENDIAN, 8),
                bytes.get(BIG_ENDIAN, 16),
                bytes.get(BIG_ENDIAN, 24));
    }

    /** The 32 bytes of the digest. */
    public byte[] toBytes() {
        byte[] digest = new byte[BYTES];
        MemorySegment bytes = MemorySegment.ofArray(digest);
        bytes.set(BIG_ENDIAN, 0, a);
        bytes.set(BIG_ENDIAN, 8, b);
        bytes.set(BIG_ENDIAN, 16, c);
        bytes.set(BIG_ENDIAN, 24, d);
        return digest;
    }

    /** A key for the share that some of the layers have of the block: another one for each number, and of 0 this one. */
    public BlockHash ofShare(int number) {
        return new BlockHash(a, b, c, d ^ number);
    }

    @Override
    public int hashCode() {
        return Long.hashCode(a);
    }

    @Override
    public String toString() {
        return HexFormat.of().formatHex(toBytes());
    }
}
