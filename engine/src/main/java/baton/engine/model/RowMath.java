package baton.engine.model;

import baton.kv.DType;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.List;
import java.util.Optional;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ForkJoinPool;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Stream;

/**
 * Norms and rotations of rows in plain Java, many rows by several threads. Computes in fp32 and rounds once, to nearest even. Used by
 * one thread at a time.
 *
 * <p>Of loops of a single operation over heap arrays HotSpot makes vector code: it does so neither for conversions between bf16 and
 * fp32 nor for two segments that might overlap. So a pair of neighbours in bf16 is taken as one {@code int}, whose low and high half
 * become fp32 by a shift and by a mask, and even and odd elements are computed apart. That is faster than LibTorch's operators, the
 * more so since code of theirs comes cold from memory after each product with weights.
 */
final class RowMath implements AutoCloseable {
    /** Fewer rows are not worth waking another thread. */
    private static final int ROWS_PER_THREAD = 64;

    /** Rows that a thread takes at once. */
    private static final int PIECE = 32;

    private static final int SPINS = 10_000;
    private static final long MOMENT = 20_000;

    private final List<Part> parts;

    /** The other threads, if there are any. They begin where the first use is, and so on the processors that it is bound to. */
    private final Optional<ForkJoinPool> others;

    /**
     * @param dtype bf16 or fp32, the type of all rows
     * @param threads to compute with
     */
    RowMath(DType dtype, int threads) {
        parts = Stream.generate(() -> new Part(dtype)).limit(threads).toList();
        others = threads == 1 ? Optional.empty() : Optional.of(new ForkJoinPool(threads - 1));
    }

    @Override
    public void close() {
        others.ifPresent(ForkJoinPool::close);
    }

    /** Numbers to compute with, also to be seen as bits. */
    private record Lanes(float[] values, MemorySegment bits) {
        Lanes(int count) {
            this(new float[count]);
        }

        Lanes(float[] values) {
            this(values, MemorySegment.ofArray(values));
        }
    }

    /** The elements 0, 2, 4, ... and the others. */
    private record Both(Lanes even, Lanes odd) {
        Both(int count) {
            this(new Lanes(count), new Lanes(count));
        }

        int count() {
            return even.values.length;
        }
    }

    /**
     * Weights of a norm.
     *
     * @param even those of elements 0, 2, 4, ...
     * @param odd the others
     */
    record NormWeights(float[] even, float[] odd) {
        /** @throws IllegalArgumentException if they are an odd number */
        static NormWeights of(float[] values) {
            if (values.length % 2 != 0) {
                throw new IllegalArgumentException("a norm over an odd number of elements: " + values.length);
            }
            float[] even = new float[values.length / 2];
            float[] odd = new float[values.length / 2];
            for (int i = 0; i < even.length; i++) {
                even[i] = values[2 * i];
                odd[i] = values[2 * i + 1];
            }
            return new NormWeights(even, odd);
        }

        int width() {
            return 2 * even.length;
        }
    }

    /**
     * Where heads of rows lie: head h of row r begins at element {@code offset + r * rowStride + h * headStride}.
     *
     * @param memory elements of the rows' type, open to all threads
     */
    record Heads(MemorySegment memory, int rows, long offset, long rowStride, int heads, long headStride) {
        long start(int row, int head) {
            return offset + row * rowStride + head * headStride;
        }
    }

    /**
     * Divides each head by its root mean square, and multiplies it by {@code weights}, which are as many as a head's elements:
     * x / sqrt(mean(x * x) + eps) * weight.
     *
     * @param to as many heads as {@code from}, and may be the same
     */
    void norm(Heads from, Heads to, NormWeights weights, double eps) {
        forRows(from.rows, (part, row) -> part.norm(from, to, weights, eps, row));
    }

    /**
     * Turns the pairs of each head, element i with element i + D/2, by the angles of its row's position.
     *
     * @param turned where the queries are written to, as many heads with the same stride; the keys are turned in place
     * @param table by row: D/2 cosines, D/2 sines
     * @throws IllegalArgumentException if the queries are to lie further apart or closer than they do
     */
    void rotate(Heads queries, Heads turned, Heads keys, int headDim, MemorySegment table) {
        if (turned.headStride != queries.headStride) {
            throw new IllegalArgumentException(
                    "head stride %d becomes %d".formatted(queries.headStride, turned.headStride));
        }
        forRows(queries.rows, (part, row) -> {
            part.angles(table, (long) row * headDim, headDim, Math.max(queries.heads, keys.heads));
            part.rotate(queries, turned, headDim, row);
            part.rotate(keys, keys, headDim, row);
        });
    }

    /** What is done with a row. */
    @FunctionalInterface
    private interface RowWork {
        void accept(Part part, int row);
    }

    private void forRows(int rows, RowWork work) {
        int threads = Math.clamp(rows / ROWS_PER_THREAD, 1, parts.size());
        if (threads == 1 || others.isEmpty()) {
            forRows(parts.getFirst(), 0, rows, work);
            return;
        }
        Spread spread = new Spread(rows, work);
        try {
            for (Part part : parts.subList(1, threads)) {
                others.get().execute(() -> spread.take(part));
            }
        } finally {
            spread.take(parts.getFirst());
            spread.await();
        }
    }

    /**
     * Rows that threads take piece by piece. One that comes late finds nothing left, so nobody waits for a thread to wake, and nobody
     * touches the rows' memory afterwards.
     */
    private static final class Spread {
        private final int rows;
        private final RowWork work;
        private final AtomicInteger taken = new AtomicInteger();
        private final AtomicInteger done = new AtomicInteger();
        private final Queue<Throwable> failures = new ConcurrentLinkedQueue<>();

        Spread(int rows, RowWork work) {
            this.rows = rows;
            this.work = work;
        }

        private int pieces() {
            return Math.ceilDiv(rows, PIECE);
        }

        void take(Part part) {
            for (int piece = taken.getAndIncrement(); piece < pieces(); piece = taken.getAndIncrement()) {
                try {
                    forRows(part, piece * PIECE, Math.min(rows, (piece + 1) * PIECE), work);
                } catch (RuntimeException | Error e) {
                    failures.add(e);
                } finally {
                    done.incrementAndGet();
                }
            }
        }

        /** Until all that was taken is done; whoever calls it has found nothing left to take. */
        void await() {
            for (int i = 0; done.get() < pieces(); i++) {
                if (i < SPINS) {
                    Thread.onSpinWait();
                } else {
                    LockSupport.parkNanos(MOMENT);
                }
            }
            if (!failures.isEmpty()) {
                throw new IllegalStateException("rows were not computed: " + failures.peek(), failures.peek());
            }
        }
    }

    private static void forRows(Part part, int first, int end, RowWork work) {
        for (int row = first; row < end; row++) {
            work.accept(part, row);
        }
    }

    /** What one thread computes with. */
    private static final class Part {
        private final DType dtype;
        private Both own = new Both(0);
        private float[] squares = {};
        private int[] pairs = {};
        private Both other = new Both(0);
        private Both turned = new Both(0);
        private int[] firstHalves = {};
        private int[] secondHalves = {};
        private Both cosines = new Both(0);
        private Both sines = new Both(0);

        Part(DType dtype) {
            this.dtype = dtype;
        }

        void norm(Heads from, Heads to, NormWeights weights, double eps, int row) {
            int half = weights.width() / 2;
            if (squares.length < half) {
                own = new Both(half);
                squares = new float[half];
            }
            float[] even = own.even.values;
            float[] odd = own.odd.values;
            for (int head = 0; head < from.heads; head++) {
                load(from.memory, from.start(row, head), half);
                multiply(even, even, squares, half);
                addProducts(odd, odd, squares, half);
                float scale = (float) (1 / Math.sqrt(sum(squares, half) / weights.width() + eps));
                scale(even, weights.even, scale, half);
                scale(odd, weights.odd, scale, half);
                store(to.memory, to.start(row, head), half);
            }
        }

        private void load(MemorySegment memory, long start, int half) {
            if (dtype == DType.F32) {
                for (int i = 0; i < half; i++) {
                    own.even.values[i] = memory.getAtIndex(ValueLayout.JAVA_FLOAT, start + 2L * i);
                    own.odd.values[i] = memory.getAtIndex(ValueLayout.JAVA_FLOAT, start + 2L * i + 1);
                }
                return;
            }
            pairs = loadPairs(memory, start, half);
            widen(pairs, own, half);
        }

        private void store(MemorySegment memory, long start, int half) {
            if (dtype == DType.F32) {
                for (int i = 0; i < half; i++) {
                    memory.setAtIndex(ValueLayout.JAVA_FLOAT, start + 2L * i, own.even.values[i]);
                    memory.setAtIndex(ValueLayout.JAVA_FLOAT, start + 2L * i + 1, own.odd.values[i]);
                }
                return;
            }
            round(own, pairs, half);
            storePairs(memory, start, half);
        }

        private int[] loadPairs(MemorySegment memory, long start, int count) {
            int[] into = pairs.length < count ? new int[count] : pairs;
            MemorySegment.copy(memory, ValueLayout.JAVA_INT_UNALIGNED, start * Short.BYTES, into, 0, count);
            return into;
        }

        private void storePairs(MemorySegment memory, long start, int count) {
            MemorySegment.copy(pairs, 0, memory, ValueLayout.JAVA_INT_UNALIGNED, start * Short.BYTES, count);
        }

        /** Takes the cosines and sines of a row, once for each head. */
        void angles(MemorySegment table, long start, int headDim, int heads) {
            if (!inPairs(headDim)) {
                if (cosines.count() < headDim / 2) {
                    cosines = new Both(headDim / 2);
                    sines = new Both(headDim / 2);
                }
                for (int i = 0; i < headDim / 2; i++) {
                    cosines.even.values[i] = get(table, start + i);
                    sines.even.values[i] = get(table, start + headDim / 2 + i);
                }
                return;
            }
            int each = headDim / 4;
            int all = heads * each;
            if (turned.count() < all) {
                own = new Both(Math.max(all, own.count()));
                squares = new float[own.count()];
                other = new Both(all);
                turned = new Both(all);
                firstHalves = new int[all];
                secondHalves = new int[all];
                cosines = new Both(all);
                sines = new Both(all);
            }
            pairs = loadPairs(table, start, 2 * each);
            System.arraycopy(pairs, 0, firstHalves, 0, each);
            System.arraycopy(pairs, each, secondHalves, 0, each);
            for (int filled = each; filled < all; filled *= 2) {
                int more = Math.min(filled, all - filled);
                System.arraycopy(firstHalves, 0, firstHalves, filled, more);
                System.arraycopy(secondHalves, 0, secondHalves, filled, more);
            }
            widen(firstHalves, cosines, all);
            widen(secondHalves, sines, all);
        }

        void rotate(Heads from, Heads to, int headDim, int row) {
            if (!inPairs(headDim)) {
                for (int head = 0; head < from.heads; head++) {
                    rotate(from.memory, from.start(row, head), to.memory, to.start(row, head), headDim / 2);
                }
                return;
            }
            int each = headDim / 4;
            int all = from.heads * each;
            int stride = (int) from.headStride / 2;
            pairs = loadPairs(from.memory, from.start(row, 0), (from.heads - 1) * stride + 2 * each);
            for (int head = 0; head < from.heads; head++) {
                System.arraycopy(pairs, head * stride, firstHalves, head * each, each);
                System.arraycopy(pairs, head * stride + each, secondHalves, head * each, each);
            }
            widen(firstHalves, own, all);
            widen(secondHalves, other, all);
            subtractProducts(own.even, cosines.even, other.even, sines.even, turned.even, all);
            subtractProducts(own.odd, cosines.odd, other.odd, sines.odd, turned.odd, all);
            round(turned, firstHalves, all);
            addProducts(other.even, cosines.even, own.even, sines.even, turned.even, all);
            addProducts(other.odd, cosines.odd, own.odd, sines.odd, turned.odd, all);
            round(turned, secondHalves, all);
            int toStride = (int) to.headStride / 2;
            for (int head = 0; head < from.heads; head++) {
                System.arraycopy(firstHalves, head * each, pairs, head * toStride, each);
                System.arraycopy(secondHalves, head * each, pairs, head * toStride + each, each);
            }
            // What lies between heads in one and the same place is written back as it was.
            storePairs(to.memory, to.start(row, 0), (from.heads - 1) * toStride + 2 * each);
        }

        private void rotate(MemorySegment from, long source, MemorySegment to, long target, int half) {
            for (int i = 0; i < half; i++) {
                float first = get(from, source + i);
                float second = get(from, source + half + i);
                float cos = cosines.even.values[i];
                float sin = sines.even.values[i];
                set(to, target + i, first * cos - second * sin);
                set(to, target + half + i, second * cos + first * sin);
            }
        }

        /** Whether both halves of a head are whole pairs of bf16. */
        private boolean inPairs(int headDim) {
            return dtype == DType.BF16 && headDim % 4 == 0;
        }

        private float get(MemorySegment memory, long index) {
            return dtype == DType.F32
                    ? memory.getAtIndex(ValueLayout.JAVA_FLOAT, index)
                    : Float.intBitsToFloat(memory.getAtIndex(ValueLayout.JAVA_SHORT, index) << 16);
        }

        private void set(MemorySegment memory, long index, float value) {
            if (dtype == DType.F32) {
                memory.setAtIndex(ValueLayout.JAVA_FLOAT, index, value);
            } else {
                memory.setAtIndex(
                        ValueLayout.JAVA_SHORT, index, (short) (rounded(Float.floatToRawIntBits(value)) >>> 16));
            }
        }
    }

    private static void widen(int[] pairs, Both both, int count) {
        widenLow(pairs, both.even.bits, count);
        widenHigh(pairs, both.odd.bits, count);
    }

    private static void round(Both both, int[] pairs, int count) {
        roundToHigh(both.odd.bits, pairs, count);
        roundToLow(both.even.bits, pairs, count);
    }

    private static void widenLow(int[] pairs, MemorySegment bits, int count) {
        for (int i = 0; i < count; i++) {
            bits.set(ValueLayout.JAVA_INT, 4L * i, pairs[i] << 16);
        }
    }

    private static void widenHigh(int[] pairs, MemorySegment bits, int count) {
        for (int i = 0; i < count; i++) {
            bits.set(ValueLayout.JAVA_INT, 4L * i, pairs[i] & 0xffff_0000);
        }
    }

    private static void roundToHigh(MemorySegment bits, int[] pairs, int count) {
        for (int i = 0; i < count; i++) {
            pairs[i] = rounded(bits.get(ValueLayout.JAVA_INT, 4L * i)) & 0xffff_0000;
        }
    }

    private static void roundToLow(MemorySegment bits, int[] pairs, int count) {
        for (int i = 0; i < count; i++) {
            pairs[i] |= rounded(bits.get(ValueLayout.JAVA_INT, 4L * i)) >>> 16;
        }
    }

    /**
     * Half of bf16's last place, less one if that place is even, carries where rounding goes up. A NaN that comes of bf16 has zeros in
     * its lower half, so that this does not make a number of it.
     */
    private static int rounded(int bits) {
        return bits + 0x7fff + ((bits >>> 16) & 1);
    }

    private static void multiply(float[] x, float[] y, float[] product, int count) {
        for (int i = 0; i < count; i++) {
            product[i] = x[i] * y[i];
        }
    }

    private static void addProducts(float[] x, float[] y, float[] sum, int count) {
        for (int i = 0; i < count; i++) {
            sum[i] += x[i] * y[i];
        }
    }

    /** a * b + c * d. */
    private static void addProducts(Lanes a, Lanes b, Lanes c, Lanes d, Lanes sum, int count) {
        multiply(a.values, b.values, sum.values, count);
        addProducts(c.values, d.values, sum.values, count);
    }

    /** a * b - c * d. */
    private static void subtractProducts(Lanes a, Lanes b, Lanes c, Lanes d, Lanes difference, int count) {
        multiply(a.values, b.values, difference.values, count);
        subtractProducts(c.values, d.values, difference.values, count);
    }

    private static void subtractProducts(float[] x, float[] y, float[] difference, int count) {
        for (int i = 0; i < count; i++) {
            difference[i] -= x[i] * y[i];
        }
    }

    private static void scale(float[] x, float[] weights, float scale, int count) {
        for (int i = 0; i < count; i++) {
            x[i] = x[i] * scale * weights[i];
        }
    }

    /** Eight sums side by side, because the order of additions is not the compiler's to change. */
    private static float sum(float[] x, int count) {
        float a = 0;
        float b = 0;
        float c = 0;
        float d = 0;
        float e = 0;
        float f = 0;
        float g = 0;
        float h = 0;
        int i = 0;
        for (; i + 7 < count; i += 8) {
            a += x[i];
            b += x[i + 1];
            c += x[i + 2];
            d += x[i + 3];
            e += x[i + 4];
            f += x[i + 5];
            g += x[i + 6];
            h += x[i + 7];
        }
        for (; i < count; i++) {
            a += x[i];
        }
        return (a + b) + (c + d) + ((e + f) + (g + h));
    }
}
