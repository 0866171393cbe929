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
 * Logits in a device's memory, with the ids of the largest in host memory. A row is copied when it is asked for, or fetched
 * with others. Safe for use by several
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

    /** Copies of as many rows as stay in pinned memory are waited for at once. */
    @Override
    public synchronized void fetch(int... rows) {
        int before = copied.size();
        for (int row : rows) {
            if (copied.size() < PINNED_ROWS && !copied.containsKey(row)) {
                copied.put(row, enqueue(row, copied.size()));
            }
        }
        if (copied.size() > before) {
            fences.synchronize();
        }
    }

    private MemorySegment enqueue(int row, int place) {
        MemorySegment pinned = host.get(place);
        stream.copyToHost(pinned, logits.address() + row * pinned.byteSize());
        return pinned;
    }

    @Override
    public synchronized MemorySegment row(int row) {
        fetch(row);
        return copied.computeIfAbsent(row, this::copy);
    }

    /** A row beside those in pinned memory. */
    private MemorySegment copy(int row) {
        MemorySegment pinned = enqueue(row, PINNED_ROWS);
        fences.synchronize();
        return Arena.ofAuto().allocate(pinned.byteSize(), Long.BYTES).copyFrom(pinned);
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
