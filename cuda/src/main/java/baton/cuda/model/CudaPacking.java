package baton.cuda.model;

import baton.cuda.driver.Gpu;
import baton.cuda.driver.StreamFences;
import baton.cuda.kernel.Weight;
import baton.engine.kernel.ParallelFor;
import baton.engine.model.Matrix;
import baton.engine.model.WeightPacking;
import baton.kv.DType;
import baton.kv.KvFence;
import baton.kv.Ticker;
import java.lang.foreign.MemorySegment;
import java.util.List;
import java.util.Optional;

/**
 * Writes weights to a device as they are read: rows are converted into pinned memory, half of which is filled while the other half is copied.
 * Used by one thread.
 */
final class CudaPacking implements WeightPacking<Weight, DeviceNorm>, AutoCloseable {
    private static final long HALF_BYTES = 16L << 20;

    private final DType dtype;
    private final ParallelFor threads;
    private final DeviceAllocations memory;
    private final Gpu.Pinned staging;
    private final Gpu.Stream stream;
    private final StreamFences fences;

    private int half;
    private long used;
    /** The copies from the other half. */
    private KvFence copied = KvFence.PASSED;

    /**
     * @param dtype that matrices are kept in
     * @param memory of the weights
     */
    CudaPacking(Gpu gpu, DType dtype, ParallelFor threads, DeviceAllocations memory) {
        this.dtype = dtype;
        this.threads = threads;
        this.memory = memory;
        this.staging = gpu.pinned(2 * HALF_BYTES);
        this.stream = gpu.stream();
        this.fences = new StreamFences(stream, Ticker.system());
    }

    @Override
    public ParallelFor threads() {
        return threads;
    }

    @Override
    public DType rotations() {
        return DType.F32;
    }

    @Override
    public Weight linear(String operator, List<Matrix> parts, Optional<float[]> bias) {
        int outputs = parts.stream().mapToInt(Matrix::rows).sum();
        return new Weight(
                upload(parts, dtype),
                dtype,
                outputs,
                parts.getFirst().columns(),
                bias.map(this::upload).orElse(0L));
    }

    @Override
    public Weight unquantised(String operator, List<Matrix> parts, Optional<float[]> bias) {
        return linear(operator, parts, bias);
    }

    /** The embedding is written to the device once, and is the output projection there. */
    @Override
    public Weight shared(String operator, Matrix matrix) {
        return linear(operator, List.of(matrix), Optional.empty());
    }

    @Override
    public DeviceNorm norm(float[] weights, Optional<float[]> bias, double eps) {
        return new DeviceNorm(upload(weights), bias.map(this::upload).orElse(0L), eps);
    }

    /** Writes rows, one part after the other. */
    long upload(List<Matrix> parts, DType type) {
        int columns = parts.getFirst().columns();
        long rowBytes = (long) columns * type.bytes();
        int most = Math.toIntExact(Math.max(1, HALF_BYTES / rowBytes));
        long address = memory.allocate(parts.stream().mapToLong(Matrix::rows).sum() * rowBytes);
        long to = address;
        for (Matrix part : parts) {
            for (int first = 0; first < part.rows(); first += most) {
                int count = Math.min(most, part.rows() - first);
                MemorySegment rows = take(count * rowBytes);
                part.part(first, count).convert(Matrix.dense(rows, count, columns, type), threads);
                stream.copyToDevice(to, rows);
                to += rows.byteSize();
            }
        }
        return address;
    }

    long upload(float[] numbers) {
        return upload(MemorySegment.ofArray(numbers));
    }

    long upload(long[] numbers) {
        return upload(MemorySegment.ofArray(numbers));
    }

    private long upload(MemorySegment source) {
        long address = memory.allocate(source.byteSize());
        stream.copyToDevice(address, take(source.byteSize()).copyFrom(source));
        return address;
    }

    /** The next bytes of pinned memory, which are not used again before they are copied. */
    private MemorySegment take(long bytes) {
        if (used + bytes > HALF_BYTES) {
            KvFence last = fences.record();
            copied.await();
            copied = last;
            half = 1 - half;
            used = 0;
        }
        MemorySegment taken = staging.memory().asSlice(half * HALF_BYTES + used, bytes);
        used += DeviceAllocations.aligned(bytes);
        return taken;
    }

    /** All weights are on the device when this returns. */
    @Override
    public void close() {
        fences.synchronize();
        fences.close();
        stream.close();
        staging.close();
    }
}
