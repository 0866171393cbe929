package baton.memory;

import java.lang.foreign.MemorySegment;
import java.util.zip.CRC32C;

/** CRC32C over memory of any size. */
public final class Crc32c {
    /** Bytes that a buffer can have. */
    private static final long AT_ONCE = 1 << 30;

    private Crc32c() {}

    public static int of(MemorySegment memory) {
        CRC32C crc = new CRC32C();
        update(crc, memory);
        return (int) crc.getValue();
    }

    /** Adds all bytes of the memory. */
    public static void update(CRC32C crc, MemorySegment memory) {
        for (long at = 0; at < memory.byteSize(); at += AT_ONCE) {
            crc.update(memory.asSlice(at, Math.min(AT_ONCE, memory.byteSize() - at))
                    .asByteBuffer());
        }
    }
}
