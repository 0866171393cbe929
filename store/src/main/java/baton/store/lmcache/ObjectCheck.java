package baton.store.lmcache;

import baton.kv.BlockHash;
import baton.kv.Sha256;
import baton.store.StoreFormat;
import baton.store.remote.Failure;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.ByteOrder;
import java.util.Optional;
import java.util.zip.CRC32C;

/**
 * The record that Baton stores beside an object where LMCache does not look, because LMCache's objects have no checksum, and their keys say little of
 * the model and 64 bits of the tokens. Numbers are big-endian:
 *
 * <pre>
 *  0  4  magic {@code BTLC}
 *  4  4  version, 1
 *  8 32  the chunk's key in memory, which has more of the tokens' hash
 * 40 32  SHA-256 of {@link StoreFormat#describe}, in UTF-8
 * 72  4  rank of the share of the chunk
 * 76  4  CRC32C of the bytes before this field and of the object's bytes
 * </pre>
 */
final class ObjectCheck {
    static final int BYTES = 80;

    private static final int MAGIC = 0x42544c43;
    private static final int VERSION = 1;
    private static final int CHECKSUM = 76;

    private static final ValueLayout.OfInt INT = ValueLayout.JAVA_INT_UNALIGNED.withOrder(ByteOrder.BIG_ENDIAN);
    private static final ValueLayout.OfLong LONG = ValueLayout.JAVA_LONG_UNALIGNED.withOrder(ByteOrder.BIG_ENDIAN);

    private final MemorySegment format;

    ObjectCheck(StoreFormat format) {
        this.format = MemorySegment.ofArray(Sha256.of(format.describe()));
    }

    void write(MemorySegment to, BlockHash key, int rank, MemorySegment object) {
        to.set(INT, 0, MAGIC);
        to.set(INT, 4, VERSION);
        to.set(LONG, 8, key.a());
        to.set(LONG, 16, key.b());
        to.set(LONG, 24, key.c());
        to.set(LONG, 32, key.d());
        MemorySegment.copy(format, 0, to, 40, 32);
        to.set(INT, 72, rank);
        to.set(INT, CHECKSUM, checksum(to, object));
    }

    /** The reason why the object is not the right one; empty if it is. */
    Optional<Failure> check(MemorySegment check, BlockHash key, int rank, MemorySegment object) {
        if (check.get(INT, 0) != MAGIC) {
            return Optional.of(Failure.FOREIGN);
        }
        if (check.get(INT, 4) != VERSION) {
            return Optional.of(Failure.VERSION);
        }
        if (check.get(INT, CHECKSUM) != checksum(check, object)) {
            return Optional.of(Failure.CHECKSUM);
        }
        if (check.get(LONG, 8) != key.a()
                || check.get(LONG, 16) != key.b()
                || check.get(LONG, 24) != key.c()
                || check.get(LONG, 32) != key.d()
                || check.get(INT, 72) != rank) {
            return Optional.of(Failure.WRONG_KEY);
        }
        return check.asSlice(40, 32).mismatch(format) == -1 ? Optional.empty() : Optional.of(Failure.WRONG_FORMAT);
    }

    private static int checksum(MemorySegment check, MemorySegment object) {
        CRC32C crc = new CRC32C();
        crc.update(check.asSlice(0, CHECKSUM).asByteBuffer());
        crc.update(object.asByteBuffer());
        return (int) crc.getValue();
    }
}
