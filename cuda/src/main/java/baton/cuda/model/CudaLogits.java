package baton.cuda.model;

import baton.cuda.driver.Gpu;
import baton.cuda.kernel.DeviceRows;
import baton.engine.model.Logits;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.BitSet;

/**
 * Logits in a device's memory, with the ids of the largest in host memory. A row is copied when it is asked for. Safe for use by several
 * threads.
 */
final class CudaLogits implements Logits {
    private final Gpu.Stream stream;
    private final DeviceRows logits;
    private final MemorySegment best;
    private final HostRows host;

    @GuardedBy("this")
    private final BitSet copied = new BitSet();

    /** Pinned memory for rows, which grows. */
    @FunctionalInterface
    interface HostRows {
        MemorySegment of(long bytes);
    }

    /**
     * @param best the ids, then the values, of the largest logits
     * @param host asked for memory when the first row is
     */
    CudaLogits(Gpu.Stream stream, DeviceRows logits, MemorySegment best, HostRows host) {
        this.stream = stream;
        this.logits = logits;
        this.best = best;
        this.host = host;
    }

    @Override
    public int rows() {
        return logits.rows();
    }

    @Override
    public int vocabularySize() {
        return logits.columns();
    }

    @Override
    public synchronized MemorySegment row(int row) {
        long bytes = (long) vocabularySize() * Float.BYTES;
        MemorySegment copy = host.of(rows() * bytes).asSlice(row * bytes, bytes);
        if (!copied.get(row)) {
            stream.copyToHost(copy, logits.address() + row * bytes);
            stream.synchronize();
            copied.set(row);
        }
        return copy;
    }

    @Override
    public int argmax(int row) {
        return best.getAtIndex(ValueLayout.JAVA_INT, row);
    }

    @Override
    public boolean isFinite(int row) {
        return Float.isFinite(best.getAtIndex(ValueLayout.JAVA_FLOAT, rows() + row));
    }

    @Override
    public void close() {}
}
