package baton.cuda.model;

import baton.cuda.driver.Gpu;
import baton.cuda.driver.StreamFences;
import baton.cuda.kernel.DeviceRows;
import baton.engine.model.Logits;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Logits in a device's memory, with the ids of the largest in host memory. A row is copied when it is asked for. Safe for use by several
 * threads.
 */
final class CudaLogits implements Logits {
    /** Rows that stay in pinned memory; others pass through it. */
    private static final int PINNED_ROWS = 64;

    private final Gpu.Stream stream;
    private final StreamFences fences;
    private final DeviceRows logits;
    private final MemorySegment best;
    private final HostRows host;

    @GuardedBy("this")
    private final Map<Integer, MemorySegment> copied = new HashMap<>();

    /** Pinned memory for rows of logits, made as it is asked for. */
    static final class HostRows implements AutoCloseable {
        private final Gpu gpu;
        private final long bytes;
        private final List<Gpu.Pinned> rows = new ArrayList<>();

        HostRows(Gpu gpu, int vocabularySize) {
            this.gpu = gpu;
            this.bytes = (long) vocabularySize * Float.BYTES;
        }

        private MemorySegment get(int index) {
            while (rows.size() <= index) {
                rows.add(gpu.pinned(bytes));
            }
            return rows.get(index).memory();
        }

        @Override
        public void close() {
            rows.forEach(Gpu.Pinned::close);
            rows.clear();
        }
    }

    /**
     * @param best the ids, then the values, of the largest logits
     * @param host not used by other logits at the same time
     */
    CudaLogits(Gpu.Stream stream, StreamFences fences, DeviceRows logits, MemorySegment best, HostRows host) {
        this.stream = stream;
        this.fences = fences;
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
        return copied.computeIfAbsent(row, this::copy);
    }

    private synchronized MemorySegment copy(int row) {
        int place = Math.min(copied.size(), PINNED_ROWS);
        MemorySegment pinned = host.get(place);
        stream.copyToHost(pinned, logits.address() + row * pinned.byteSize());
        fences.synchronize();
        return place < PINNED_ROWS
                ? pinned
                : Arena.ofAuto().allocate(pinned.byteSize(), Long.BYTES).copyFrom(pinned);
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
