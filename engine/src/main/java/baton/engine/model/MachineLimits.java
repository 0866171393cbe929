package baton.engine.model;

import baton.engine.model.Weights.Owned;
import baton.kv.DType;
import baton.kv.Percentiles;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.SplittableRandom;
import java.util.stream.Stream;
import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.IValue;
import org.bytedeco.pytorch.InferenceMode;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

/**
 * The limits of this machine, measured in this process just now: the bounds for prefill (arithmetic) and decode (reading weights).
 *
 * @param bf16 products of bf16 matrices
 * @param fp32 products of fp32 matrices, which are faster on processors without instructions for bf16
 * @param readBytesPerSecond bytes of memory read by summing it up
 */
public record MachineLimits(Products bf16, Products fp32, double readBytesPerSecond) {
    /**
     * LibTorch's rates with matrices of one type.
     *
     * @param flops operations a second, a multiplication and an addition counted as two, of [512, 2048] by [2048, 8192] with eight
     *     matrices one after the other, as a model has them, in the faster of LibTorch's and oneDNN's layout
     * @param burstFlops the same of the fastest single product among them
     * @param linearFlops the same products as {@code flops} by LibTorch's {@code linear}, with matrices that are not laid out beforehand
     * @param bytesPerSecond bytes of weights read by {@code linear} of a single row, over more weights than caches hold
     */
    public record Products(double flops, double burstFlops, double linearFlops, double bytesPerSecond) {}

    /** The type that matrix products are faster in. */
    public DType gemmDType() {
        return bf16.flops >= fp32.flops ? DType.BF16 : DType.F32;
    }

    /** Operations a second of eight products in a row in the faster type: the bound for prefill. */
    public double gemmFlops() {
        return Math.max(bf16.flops, fp32.flops);
    }

    /** The same products as {@link #gemmFlops} by LibTorch's {@code linear}, in the type that it is faster in. */
    public double linearFlops() {
        return Math.max(bf16.linearFlops, fp32.linearFlops);
    }

    /** Bytes a second in the fastest way to read: the bound for decode. */
    public double bytesPerSecond() {
        return Math.max(readBytesPerSecond, Math.max(bf16.bytesPerSecond, fp32.bytesPerSecond));
    }

    private static final int ROWS = 512;
    private static final int IN = 2048;
    private static final int OUT = 8192;
    private static final long BYTES = 1L << 30;
    private static final double PRODUCT_FLOPS = 2.0 * ROWS * IN * OUT;

    /** Matrices that are multiplied by in a row: more than caches of a core hold, and a stretch as long as some layers. */
    private static final int ROW = 8;

    /** The first runs prepare kernels and caches. */
    private static final int FIRST_RUNS = 2;

    /** A way to multiply that takes so many times as long as the fastest does not become the limit by being measured again. */
    private static final double FAR_SLOWER = 2;

    /** Measures again and again over the same 1 GiB of memory. Used by one thread. */
    public static final class Probe implements AutoCloseable {
        private final int threads;
        private final Arena arena = Arena.ofConfined();
        private final Owned owned = new Owned();
        private final Matrices bf16;
        private final Matrices fp32;
        private final List<Way> ways;
        private final Tensor all;
        private int next;

        /**
         * @param threads as in {@link CpuModels#load}
         * @throws IllegalStateException if LibTorch cannot be loaded or the memory is refused
         */
        public Probe(OptionalInt threads) {
            this.threads = LibTorch.load("its products are measured", threads);
            MemorySegment memory = HugePages.allocate(arena, BYTES, "measuring");
            MemorySegment first = memory.asSlice(0, (long) IN * OUT * Short.BYTES);
            draw(first);
            for (long at = first.byteSize(); at < BYTES; at += first.byteSize()) {
                MemorySegment.copy(first, 0, memory, at, first.byteSize());
            }
            Blas blas = Blas.loaded(this.threads);
            bf16 = new Matrices(memory, DType.BF16, blas, owned);
            fp32 = new Matrices(memory, DType.F32, blas, owned);
            ways = Stream.concat(bf16.ways.stream(), fp32.ways.stream()).toList();
            all = LibTorch.keep(LibTorch.over(memory, ScalarType.Float, BYTES / Float.BYTES), owned);
        }

        /**
         * Numbers between 1 and 2 and between -2 and -1, whether it is read as bf16 or, two of these making one, as fp32. With numbers so
         * small that they are not normalized processors would take many times as long.
         */
        private static void draw(MemorySegment memory) {
            SplittableRandom random = new SplittableRandom(1);
            for (long at = 0; at < memory.byteSize(); at += Short.BYTES) {
                int signAndFraction = random.nextInt() & 0x807f;
                memory.set(ValueLayout.JAVA_SHORT, at, (short) (signAndFraction | 0x3f80));
            }
        }

        /**
         * Measures the products of each type and each of the ways to read for about that long, but once at least; the best run of
         * each counts. Of a way to multiply that takes far longer than the fastest, eight products are measured only the first time,
         * and not even then if they take longer than {@code each}: then single ones count for it.
         */
        public MachineLimits measure(Duration each) {
            torch.set_num_threads(threads);
            try (InferenceMode _ = new InferenceMode(true)) {
                ways.forEach(way -> way.prepare(each));
                double fastest =
                        ways.stream().mapToDouble(way -> way.single).min().orElseThrow();
                List<Way> near = ways.stream()
                        .filter(way -> way.single <= FAR_SLOWER * fastest)
                        .toList();
                ways.stream()
                        .filter(way -> !near.contains(way) && way.rows.isEmpty())
                        .filter(way -> ROW * way.single <= each.toNanos() * 1e-9)
                        .forEach(Way::run);
                near.forEach(Way::forget);
                long end = System.nanoTime() + 2 * each.toNanos();
                do {
                    // In turns, so that a disturbance affects all of them.
                    near.forEach(Way::run);
                } while (System.nanoTime() < end);
                return new MachineLimits(
                        bf16.measured(best(each, bf16::read)),
                        fp32.measured(best(each, fp32::read)),
                        BYTES / best(each, all::sum));
            }
        }

        /**
         * Operations a second of the same products one after the other for at least that long, in the way that was the fastest
         * at the median when it was measured. A machine that other processes use is never at its best for long: this is the limit of work that takes as long.
         */
        public double sustainedGemmFlops(Duration atLeast) {
            torch.set_num_threads(threads);
            Way fastest =
                    ways.stream().min(Comparator.comparingDouble(Way::median)).orElseThrow();
            try (InferenceMode _ = new InferenceMode(true)) {
                long start = System.nanoTime();
                long nanos;
                int count = 0;
                do {
                    seconds(fastest.products.get(next++ % ROW));
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

        private static double best(Duration each, Runnable work) {
            double best = Double.MAX_VALUE;
            long end = System.nanoTime() + each.toNanos();
            for (int runs = 0; runs < FIRST_RUNS || System.nanoTime() < end; runs++) {
                best = Math.min(best, seconds(work));
            }
            return best;
        }

        private static double seconds(Runnable work) {
            long start = System.nanoTime();
            try (PointerScope _ = new PointerScope()) {
                work.run();
            }
            return (System.nanoTime() - start) * 1e-9;
        }

        /** All of the memory as matrices of one type. */
        private static final class Matrices {
            private final List<Tensor> all = new ArrayList<>();
            private final Blas blas;
            private final Tensor row;
            private final Way plain = new Way();
            private final Way packed = new Way();
            private final List<Way> ways;

            Matrices(MemorySegment memory, DType dtype, Blas blas, Owned owned) {
                this.blas = blas;
                ScalarType type = LibTorch.scalarType(dtype);
                Tensor rows = LibTorch.keep(LibTorch.empty(type, ROWS, IN), owned);
                LibTorch.keep(rows.normal_(), owned);
                row = LibTorch.keep(rows.narrow(0, 0, 1), owned);
                long bytes = (long) IN * OUT * dtype.bytes();
                for (long at = 0; at < BYTES; at += bytes) {
                    all.add(LibTorch.keep(LibTorch.over(memory.asSlice(at, bytes), type, OUT, IN), owned));
                }
                Optional<OneDnn> packing = OneDnn.find(type, owned);
                for (Tensor matrix : all.subList(0, ROW)) {
                    plain.products.add(() -> blas.product(() -> torch.linear(rows, matrix)));
                    packing.ifPresent(oneDnn -> {
                        try (PointerScope _ = new PointerScope()) {
                            IValue laidOut = LibTorch.keep(new IValue(oneDnn.pack(matrix)), owned);
                            packed.products.add(() -> oneDnn.linear(rows, laidOut));
                        }
                    });
                }
                ways = packing.isPresent() ? List.of(plain, packed) : List.of(plain);
            }

            void read() {
                all.forEach(matrix -> blas.product(() -> torch.linear(row, matrix)));
            }

            Products measured(double readSeconds) {
                double inARow = ways.stream().mapToDouble(Way::inARow).min().orElseThrow();
                double single =
                        ways.stream().mapToDouble(way -> way.single).min().orElseThrow();
                return new Products(
                        ROW * PRODUCT_FLOPS / inARow,
                        PRODUCT_FLOPS / single,
                        ROW * PRODUCT_FLOPS / plain.inARow(),
                        BYTES / readSeconds);
            }
        }

        /** A way to multiply by eight matrices, one after the other. */
        private static final class Way {
            private final List<Runnable> products = new ArrayList<>();
            /** Seconds of all products, each time that it was measured. */
            private final List<Double> rows = new ArrayList<>();

            private double best = Double.MAX_VALUE;
            private double single = Double.MAX_VALUE;

            /** Some single products, to know about how long they take: one more each time that this way is not measured otherwise. */
            void prepare(Duration each) {
                long end = System.nanoTime() + each.toNanos();
                int products = single == Double.MAX_VALUE ? FIRST_RUNS : 1;
                for (int i = 0; i < products && (i == 0 || System.nanoTime() < end); i++) {
                    single = Math.min(single, seconds(this.products.get(i)));
                }
            }

            void forget() {
                best = Double.MAX_VALUE;
                single = Double.MAX_VALUE;
            }

            void run() {
                double row = 0;
                for (Runnable product : products) {
                    double seconds = seconds(product);
                    single = Math.min(single, seconds);
                    row += seconds;
                }
                best = Math.min(best, row);
                rows.add(row);
            }

            double inARow() {
                return best == Double.MAX_VALUE ? ROW * single : best;
            }

            double median() {
                return rows.isEmpty() ? Double.MAX_VALUE : Percentiles.median(rows);
            }
        }
    }
}
