package baton.cuda.model;

import baton.cuda.driver.Gpu;
import java.util.ArrayList;
import java.util.List;

/** Memory of a device that is freed together. Small allocations share one of the driver's. Used by one thread. */
final class DeviceAllocations implements AutoCloseable {
    /** The alignment of addresses: enough for vector loads, asynchronous copies and whole sectors. */
    private static final long ALIGNMENT = 256;

    private static final long TOGETHER_BYTES = 8L << 20;

    private final Gpu gpu;
    private final List<Gpu.Buffer> buffers = new ArrayList<>();
    private long free;
    private long end;

    DeviceAllocations(Gpu gpu) {
        this.gpu = gpu;
    }

    /** Allocates memory with undefined content. */
    long allocate(long wanted) {
        long size = aligned(Math.max(1, wanted));
        if (size > TOGETHER_BYTES / 2) {
            return buffer(size);
        }
        if (end - free < size) {
            free = buffer(TOGETHER_BYTES);
            end = free + TOGETHER_BYTES;
        }
        long address = free;
        free += size;
        return address;
    }

    static long aligned(long bytes) {
        return Math.ceilDiv(bytes, ALIGNMENT) * ALIGNMENT;
    }

    private long buffer(long size) {
        Gpu.Buffer buffer = gpu.allocate(size);
        buffers.add(buffer);
        return buffer.address();
    }

    @Override
    public void close() {
        buffers.forEach(Gpu.Buffer::close);
        buffers.clear();
        free = 0;
        end = 0;
    }
}
