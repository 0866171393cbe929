package baton.pipe;

import baton.kv.KvMemory;
import java.lang.foreign.MemorySegment;
import java.util.List;
import java.util.stream.LongStream;

/** Bytes of a tensor, in memory of the host or of a device. */
public sealed interface TensorBytes {
    long byteSize();

    /** The {@code bytes} bytes from offset {@code from} on. */
    TensorBytes slice(long from, long bytes);

    /** Slices of so many bytes, one after the other; the last one may be smaller. */
    default List<TensorBytes> pieces(long most) {
        return LongStream.range(0, Math.ceilDiv(byteSize(), most))
                .mapToObj(i -> slice(i * most, Math.min(most, byteSize() - i * most)))
                .toList();
    }

    /**
     * The bytes, which the host reads and writes.
     *
     * @throws IllegalStateException if the host cannot address them
     */
    MemorySegment host();

    /** Native memory of the host. */
    record Host(MemorySegment host) implements TensorBytes {
        @Override
        public long byteSize() {
            return host.byteSize();
        }

        @Override
        public TensorBytes slice(long from, long bytes) {
            return new Host(host.asSlice(from, bytes));
        }
    }

    /**
     * Memory of a device.
     *
     * @param pool beside which it is
     * @param offset from the pool's first byte, as in {@link baton.kv.KvCopier.Beside}
     */
    record Device(KvMemory.Device pool, long offset, long byteSize) implements TensorBytes {
        /** The address of the first byte, in the address space of the device. */
        public long address() {
            return pool.address() + offset;
        }

        @Override
        public TensorBytes slice(long from, long bytes) {
            return new Device(pool, offset + from, bytes);
        }

        @Override
        public MemorySegment host() {
            throw new IllegalStateException("%d bytes of a tensor are in memory of %s, which the host cannot address"
                    .formatted(byteSize, pool.device()));
        }
    }
}
