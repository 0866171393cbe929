package baton.engine.model;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.OptionalInt;
import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.InferenceMode;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

/**
 * What this machine can do, measured in this process just now: the bounds for prefill (arithmetic) and decode (reading weights).
 *
 * @param threads threads it was measured with
 * @param gemmFlops bf16 operations a second, a multiplication and an addition counted as two, of [512, 2048] by [2048, 8192]
 * @param linearBytesPerSecond weight bytes read by the same projection of a single row, over more weights than caches hold
 * @param readBytesPerSecond bytes of memory read by summing it up
 */
public record MachineLimits(int threads, double gemmFlops, double linearBytesPerSecond, double readBytesPerSecond) {
    private static final int ROWS = 512;
    private static final int IN = 2048;
    private static final int OUT = 8192;
    private static final int MATRICES = 32;
    private static final Duration EACH = Duration.ofSeconds(1);

    /**
     * Measures for about three seconds; the best run of each counts.
     *
     * @param threads as in {@link TorchModels#load}
     * @throws IllegalStateException if LibTorch cannot be loaded or 1 GB of memory is refused
     */
    public static MachineLimits measure(OptionalInt threads) {
        int threadCount = LibTorch.load(threads);
        try (Arena arena = Arena.ofConfined();
                InferenceMode _ = new InferenceMode(true);
                PointerScope _ = new PointerScope()) {
            long matrixBytes = (long) IN * OUT * Short.BYTES;
            MemorySegment memory = Pages.allocate(arena, MATRICES * matrixBytes, "measuring");
            List<Tensor> matrices = new ArrayList<>();
            for (int i = 0; i < MATRICES; i++) {
                Tensor matrix =
                        LibTorch.over(memory.asSlice(i * matrixBytes, matrixBytes), ScalarType.BFloat16, OUT, IN);
                matrices.add(matrix.normal_());
            }
            Tensor all = LibTorch.over(memory, ScalarType.Float, memory.byteSize() / Float.BYTES);
            Tensor many = LibTorch.empty(ScalarType.BFloat16, ROWS, IN).normal_();
            Tensor one = many.narrow(0, 0, 1);
            double gemm = bestSeconds(() -> torch.linear(many, matrices.getFirst()));
            double linear = bestSeconds(() -> matrices.forEach(matrix -> torch.linear(one, matrix)));
            double read = bestSeconds(all::sum);
            return new MachineLimits(
                    threadCount, 2.0 * ROWS * IN * OUT / gemm, memory.byteSize() / linear, memory.byteSize() / read);
        }
    }

    private static double bestSeconds(Runnable work) {
        double best = Double.MAX_VALUE;
        long end = System.nanoTime() + EACH.toNanos();
        int runs = 0;
        // The first runs prepare kernels and caches.
        while (runs < 3 || System.nanoTime() < end) {
            long start = System.nanoTime();
            try (PointerScope _ = new PointerScope()) {
                work.run();
            }
            best = Math.min(best, (System.nanoTime() - start) * 1e-9);
            runs++;
        }
        return best;
    }
}
