package baton.engine.model;

import baton.engine.model.Weights.Owned;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.OptionalInt;
import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.IValue;
import org.bytedeco.pytorch.InferenceMode;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

/**
 * What this machine can do, measured in this process just now: the bounds for prefill (arithmetic) and decode (reading weights).
 *
 * @param gemmFlops bf16 operations a second, a multiplication and an addition counted as two, of [512, 2048] by [2048, 8192] with eight
 *     matrices one after the other, as a model has them, in the faster of LibTorch's and oneDNN's layout
 * @param gemmBurstFlops the same of the fastest single product among them
 * @param linearFlops the same eight products in a row by LibTorch's {@code linear}, whose matrices are not laid out beforehand
 * @param linearBytesPerSecond weight bytes read by the same projection of a single row, over more weights than caches hold
 * @param readBytesPerSecond bytes of memory read by summing it up
 */
public record MachineLimits(
        double gemmFlops,
        double gemmBurstFlops,
        double linearFlops,
        double linearBytesPerSecond,
        double readBytesPerSecond) {
    private static final int ROWS = 512;
    private static final int IN = 2048;
    private static final int OUT = 8192;
    private static final int MATRICES = 32;
    /** The first runs prepare kernels and caches. */
    private static final int LEAST_RUNS = 3;

    private static final double PRODUCT_FLOPS = 2.0 * ROWS * IN * OUT;

    /** Matrices that are multiplied by in a row: more than caches of a core hold, and a stretch as long as some layers. */
    private static final int ROW = 8;

    /** Measures again and again over the same 1 GB of memory. Used by one thread. */
    public static final class Probe implements AutoCloseable {
        private final int threads;
        private final Arena arena = Arena.ofConfined();
        private final Owned owned = new Owned();
        private final MemorySegment memory;
        private final List<Tensor> matrices = new ArrayList<>();
        private final List<Runnable> products = new ArrayList<>();
        private final List<Runnable> packedProducts = new ArrayList<>();
        private final Tensor all;
        private final Tensor rows;
        private final Tensor row;
        private int next;
        private final List<Double> plainRows = new ArrayList<>();
        private final List<Double> packedRows = new ArrayList<>();

        /**
         * @param threads as in {@link TorchModels#load}
         * @throws IllegalStateException if LibTorch cannot be loaded or the memory is refused
         */
        public Probe(OptionalInt threads) {
            this.threads = LibTorch.load(threads);
            long matrixBytes = (long) IN * OUT * Short.BYTES;
            memory = Pages.allocate(arena, MATRICES * matrixBytes, "measuring");
            for (int i = 0; i < MATRICES; i++) {
                MemorySegment part = memory.asSlice(i * matrixBytes, matrixBytes);
                Tensor matrix = owned.add(LibTorch.over(part, ScalarType.BFloat16, OUT, IN));
                if (i == 0) {
                    owned.add(matrix.normal_());
                } else {
                    part.copyFrom(memory.asSlice(0, matrixBytes));
                }
                matrices.add(matrix);
            }
            all = owned.add(LibTorch.over(memory, ScalarType.Float, memory.byteSize() / Float.BYTES));
            rows = owned.add(LibTorch.empty(ScalarType.BFloat16, ROWS, IN));
            owned.add(rows.normal_());
            row = owned.add(rows.narrow(0, 0, 1));
            Optional<OneDnn> packing = OneDnn.find(ScalarType.BFloat16, owned);
            for (Tensor matrix : matrices.subList(0, ROW)) {
                products.add(() -> torch.linear(rows, matrix));
                packing.ifPresent(oneDnn -> {
                    try (PointerScope _ = new PointerScope()) {
                        IValue packed = owned.add(new IValue(oneDnn.pack(matrix)));
                        packedProducts.add(() -> oneDnn.linear(rows, packed));
                    }
                });
            }
        }

        /** Threads it measures with. */
        public int threads() {
            return threads;
        }

        /** Runs each of the three for that long, but thrice at least; the best run of each counts. */
        public MachineLimits measure(Duration each) {
            torch.set_num_threads(threads);
            try (InferenceMode _ = new InferenceMode(true)) {
                Seconds plain = Seconds.NONE;
                Seconds packed = Seconds.NONE;
                long end = System.nanoTime() + each.toNanos();
                // In turns, so that what disturbs one disturbs the other.
                for (int runs = 0; runs < LEAST_RUNS || System.nanoTime() < end; runs++) {
                    plain = plain.best(once(products, plainRows));
                    packed = packedProducts.isEmpty() ? plain : packed.best(once(packedProducts, packedRows));
                }
                double linear = Seconds.of(each, List.of(() -> matrices.forEach(matrix -> torch.linear(row, matrix))))
                        .inARow();
                double read = Seconds.of(each, List.of(all::sum)).inARow();
                return new MachineLimits(
                        ROW * PRODUCT_FLOPS / Math.min(plain.inARow, packed.inARow),
                        PRODUCT_FLOPS / Math.min(plain.single, packed.single),
                        ROW * PRODUCT_FLOPS / plain.inARow,
                        memory.byteSize() / linear,
                        memory.byteSize() / read);
            }
        }

        private static Seconds once(List<Runnable> work, List<Double> rows) {
            Seconds seconds = Seconds.once(work);
            rows.add(seconds.inARow);
            return seconds;
        }

        private static double median(List<Double> seconds) {
            return seconds.isEmpty()
                    ? Double.MAX_VALUE
                    : seconds.stream().sorted().toList().get(seconds.size() / 2);
        }

        /**
         * Operations a second of the same products one after the other for at least that long, in the layout that was the faster one
         * at the median when it was measured. A machine that others use is never at its best for long: this is the limit of work that takes as long.
         */
        public double sustainedGemmFlops(Duration atLeast) {
            torch.set_num_threads(threads);
            List<Runnable> faster = median(packedRows) < median(plainRows) ? packedProducts : products;
            try (InferenceMode _ = new InferenceMode(true)) {
                long start = System.nanoTime();
                long nanos;
                int count = 0;
                do {
                    Seconds.run(faster.get(next++ % ROW));
                    count++;
                    nanos = System.nanoTime() - start;
                } while (nanos < atLeast.toNanos());
                return count * PRODUCT_FLOPS / (nanos * 1e-9);
            }
        }

        @Override
        public void close() {
            owned.close();
            arena.close();
        }

        /**
         * The best times of work that is done again and again.
         *
         * @param inARow of all of it
         * @param single of one part of it
         */
        private record Seconds(double inARow, double single) {
            static final Seconds NONE = new Seconds(Double.MAX_VALUE, Double.MAX_VALUE);

            Seconds best(Seconds other) {
                return new Seconds(Math.min(inARow, other.inARow), Math.min(single, other.single));
            }

            static Seconds of(Duration duration, List<Runnable> work) {
                Seconds best = NONE;
                long end = System.nanoTime() + duration.toNanos();
                for (int runs = 0; runs < LEAST_RUNS || System.nanoTime() < end; runs++) {
                    best = best.best(once(work));
                }
                return best;
            }

            static Seconds once(List<Runnable> work) {
                double single = Double.MAX_VALUE;
                long start = System.nanoTime();
                long before = start;
                for (Runnable part : work) {
                    run(part);
                    long now = System.nanoTime();
                    single = Math.min(single, (now - before) * 1e-9);
                    before = now;
                }
                return new Seconds((before - start) * 1e-9, single);
            }

            static void run(Runnable part) {
                try (PointerScope _ = new PointerScope()) {
                    part.run();
                }
            }
        }
    }
}
