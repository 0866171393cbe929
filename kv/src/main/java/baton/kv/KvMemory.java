package baton.kv;

import java.lang.foreign.MemorySegment;
import java.nio.file.Path;
import java.util.Optional;

/** Where the bytes of a KV pool are. */
public sealed interface KvMemory {
    /** The address of the first byte, in the address space of the process or of the device. */
    long address();

    long bytes();

    /**
     * The bytes, which the host reads and writes.
     *
     * @throws IllegalStateException if the host cannot address them
     */
    MemorySegment host();

    /**
     * Memory of the host.
     *
     * @param file of which the memory is a shared mapping, if it is; by it another process of this host can map the pool
     */
    record Host(MemorySegment host, Optional<Path> file) implements KvMemory {
        @Override
        public long address() {
            return host.address();
        }

        @Override
        public long bytes() {
            return host.byteSize();
        }
    }

    /**
     * Memory of a device, which the host does not address.
     *
     * @param copier which moves its bytes to the host's memory and back
     */
    record Device(long address, long bytes, KvDevice device, KvCopier copier) implements KvMemory {
        @Override
        public MemorySegment host() {
            throw new IllegalStateException(
                    "The KV pool is %d bytes of %s at 0x%x: the host cannot read or write them, a KvCopier copies them"
                            .formatted(bytes, device, address));
        }
    }
}
