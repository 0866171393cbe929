package baton.engine.model;

import baton.engine.model.Weights.Owned;
import baton.kv.DType;
import baton.kv.Ticker;
import java.lang.foreign.Arena;
import java.util.List;
import java.util.Optional;
import java.util.stream.IntStream;

/**
 * The rates of products with weights on this machine, which bound a model's speed.
 *
 * @param bytesPerSecond of weights that one row is multiplied by: the bound for decode
 * @param flops operations a second of many rows: the bound for prefill
 */
public record ProductRates(double bytesPerSecond, double flops) {
    private static final int OUT = 8192;
    private static final int IN = 2048;
    private static final int ROWS = 512;

    /** More than caches hold. */
    private static final long BYTES = 256L << 20;

    private static final int RUNS = 5;

    static ProductRates measure(KernelChoice choice, DType dtype, Quantization quantization, int threads) {
        try (Arena arena = Arena.ofShared();
                Owned owned = new Owned();
                ModelKernels kernels = choice.make(dtype, quantization, threads, arena, owned)) {
            Matrix source = Matrix.dense(
                    HugePages.allocate(arena, (long) OUT * IN * dtype.bytes(), "measuring"), OUT, IN, dtype);
            int count = Math.toIntExact(BYTES / ((long) OUT * IN * dtype.bytes()));
            List<Linear> matrices = IntStream.range(0, count)
                    .mapToObj(_ -> kernels.linear(List.of(source), Optional.empty()))
                    .toList();
            double bytes = owned.bytes();
            return new ProductRates(
                    bytes / best(kernels, matrices, 1),
                    2.0 * ROWS * OUT * IN / best(kernels, matrices.subList(0, 1), ROWS));
        }
    }

    /** Seconds of the fastest of some runs. */
    private static double best(ModelKernels kernels, List<Linear> matrices, int count) {
        Ticker ticker = Ticker.system();
        double best = Double.MAX_VALUE;
        for (int run = 0; run < RUNS; run++) {
            try (RowMemory.Scope _ = kernels.pass()) {
                Matrix rows = kernels.inputs(count, IN);
                rows.memory().fill((byte) 0);
                long start = ticker.nanos();
                for (Linear matrix : matrices) {
                    Matrix _ = matrix.apply(rows);
                }
                best = Math.min(best, (ticker.nanos() - start) * 1e-9);
            }
        }
        return best;
    }
}
