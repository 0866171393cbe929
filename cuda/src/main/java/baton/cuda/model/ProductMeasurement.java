package baton.cuda.model;

import baton.cuda.driver.Gpu;
import baton.cuda.kernel.DeviceRows;
import baton.cuda.kernel.GpuKernels;
import baton.cuda.kernel.Weight;
import baton.engine.model.ProductRates;
import baton.kv.DType;

/** Measures products on a device. */
final class ProductMeasurement {
    private static final int OUTPUTS = 8192;
    private static final int INPUTS = 4096;
    private static final int ROWS = 2048;
    private static final int RUNS = 5;

    /** More than caches hold. */
    private static final int MATRICES = 8;

    private ProductMeasurement() {}

    static ProductRates measure(Gpu gpu, DType dtype) {
        try (DeviceAllocations memory = new DeviceAllocations(gpu);
                GpuKernels kernels = new GpuKernels(gpu, dtype);
                Gpu.Stream stream = gpu.stream()) {
            long bytes = (long) OUTPUTS * INPUTS * dtype.bytes();
            long weights = memory.allocate(MATRICES * bytes);
            DeviceRows rows =
                    DeviceRows.matrix(memory.allocate((long) ROWS * INPUTS * dtype.bytes()), dtype, ROWS, INPUTS);
            DeviceRows out =
                    DeviceRows.matrix(memory.allocate((long) ROWS * OUTPUTS * Float.BYTES), DType.F32, ROWS, OUTPUTS);
            stream.fill(weights, 0, MATRICES * bytes);
            stream.fill(rows.address(), 0, (long) ROWS * INPUTS * dtype.bytes());
            Measured reading = new Measured(kernels, stream, weights, bytes, dtype, rows.rows(0, 1), out.rows(0, 1));
            Measured computing = new Measured(kernels, stream, weights, bytes, dtype, rows, out);
            return new ProductRates(
                    MATRICES * bytes / reading.seconds(),
                    2.0 * MATRICES * ROWS * OUTPUTS * INPUTS / computing.seconds());
        }
    }

    private record Measured(
            GpuKernels kernels,
            Gpu.Stream stream,
            long weights,
            long bytes,
            DType dtype,
            DeviceRows rows,
            DeviceRows out) {
        /** Seconds of the fastest of some runs, each with all matrices. */
        double seconds() {
            double best = Double.MAX_VALUE;
            try (Gpu.Event start = stream.gpu().event();
                    Gpu.Event end = stream.gpu().event()) {
                for (int run = 0; run < RUNS; run++) {
                    start.record(stream);
                    for (int i = 0; i < MATRICES; i++) {
                        Weight weight = new Weight(weights + i * bytes, dtype, OUTPUTS, INPUTS, 0);
                        kernels.products().product(stream, weight, rows, out, false);
                    }
                    end.record(stream);
                    stream.synchronize();
                    Gpu gpu = stream.gpu();
                    best = Math.min(
                            best, gpu.driver().elapsedMillis(gpu.context(), start.handle(), end.handle()) / 1e3);
                }
            }
            return best;
        }
    }
}
