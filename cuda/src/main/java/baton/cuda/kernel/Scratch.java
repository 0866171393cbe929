package baton.cuda.kernel;

import baton.cuda.driver.Gpu;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.util.ArrayList;
import java.util.List;

/**
 * Memory for results of one kernel that the next one of the same stream reads. It grows, and smaller memory is freed at the end only,
 * because a captured graph may use it. Used by one stream at a time.
 */
final class Scratch implements AutoCloseable {
    private final Gpu gpu;

    @GuardedBy("this")
    private final List<Gpu.Buffer> buffers = new ArrayList<>();

    Scratch(Gpu gpu) {
        this.gpu = gpu;
    }

    /** The address of as many bytes at least, aligned to 256, with any content. */
    synchronized long address(long bytes) {
        if (buffers.isEmpty() || buffers.getLast().bytes() < bytes) {
            buffers.add(gpu.allocate(Math.max(Long.highestOneBit(bytes - 1) << 1, 1 << 16)));
        }
        return buffers.getLast().address();
    }

    @Override
    public synchronized void close() {
        buffers.forEach(Gpu.Buffer::close);
        buffers.clear();
    }
}
