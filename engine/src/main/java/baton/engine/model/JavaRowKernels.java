package baton.engine.model;

import baton.engine.model.ModelKernels.Heads;
import baton.kv.DType;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.List;
import java.util.stream.Stream;

/**
 * Norms and rotations of rows in plain Java, many rows by several threads. Computes in fp32 and rounds once, to nearest even. Used by
 * one thread at a time.
 *
 * <p>Of loops of a single operation over heap arrays HotSpot makes vector code: it does so neither for conversions between bf16 and
 * fp32 nor for two segments that might overlap. So a pair of neighbours in bf16 is taken as one {@code int}: its low and high half become
 * fp32 by a shift and by a mask, and even and odd elements are computed apart. That is faster than LibTorch's operators, the more so since
 * their code comes cold from memory after each product with weights.
 */
final class JavaRowKernels {
    /** Rows that a thread takes at once. */
    private static final int PIECE = 32;

    /** The signs of both numbers of a pair. */
    private static final int SIGNS = 0x8000_8000;

    private final OmpTeam team;

    /** One for each thread of the team. */
    private final List<Part> parts;

    /**
     * @param dtype bf16 or fp32, the type of all rows
     * @param team the threads that compute
     */
    JavaRowKernels(DType dtype, OmpTeam team) {
        this.team = team;
        this.parts = Stream.generate(() -> new Part(dtype)).limit(team.size()).toList();
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
     * Divides each head by its root mean square, and multiplies it by {@code weights}, which are as many as a head's elements:
     * x / sqrt(mean(x * x) + eps) * weight.
     *
     * @param to as many heads as {@code from}, and may be the same
     */
    void norm(Heads from, Heads to, NormWeights weights, double eps) {
        forRows(from.rows(), (part, row) -> part.norm(from, to, weights, eps, row));
    }

    /**
     * Turns the pairs of each head, element i with element i + D/2, by the angles of its row's position.
     *
     * @param turned where the queries are written to, as many heads with the same stride; the keys are turned in place
     * @param table by row: D/2 cosines, D/2 sines
     * @throws IllegalArgumentException if the queries are to lie further apart or closer than they do
     */
    void rotate(Heads queries, Heads turned, Heads keys, int headDim, MemorySegment table) {
        if (turned.headStride() != queries.headStride()) {
            throw new IllegalArgumentException(
                    "head stride %d becomes %d".formatted(queries.headStride(), turned.headStride()));
        }
        forRows(queries.rows(), (part, row) -> {
            part.angles(table, (long) row * headDim, headDim, Math.max(queries.heads(), keys.heads()));
            part.rotate(queries, turned, headDim, row);
            part.rotate(keys, keys, headDim, row);
        });
    }

    /** Work on a row. */
    @FunctionalInterface
    private interface RowWork {
        void accept(Part part, int row);
    }

    private void forRows(int rows, RowWork work) {
        team.parallelFor(rows, PIECE, (member, first, end) -> {
            Part part = parts.get(member);
            for (int row = first; row < end; row++) {
                work.accept(part, row);
            }
        });
    }

    /** The buffers of one thread. */
    private static final class Part {
        private final DType dtype;
        private int[] pairs = {};
        private int[] swapped = {};
        private Both own = new Both(0);
        private Both other = new Both(0);
        private Both cosines = new Both(0);
        private Both sines = new Both(0);
        private float[] squares = {};

        Part(DType dtype) {
            this.dtype = dtype;
        }

        /** Makes room for that many pairs. */
        private void need(int count) {
            if (pairs.length < count) {
                pairs = new int[count];
                swapped = new int[count];
                own = new Both(count);
                other = new Both(count);
                cosines = new Both(count);
                sines = new Both(count);
                squares = new float[count];
            }
        }

        void norm(Heads from, Heads to, NormWeights weights, double eps, int row) {
            int half = weights.width() / 2;
            need(half);
            for (int head = 0; head < from.heads(); head++) {
                load(from.memory(), from.start(row, head), half);
                float squared = sumOfSquares(own.even.values, own.odd.values, squares, half);
                float scale = (float) (1 / Math.sqrt(squared / weights.width() + eps));
                scale(own.even.values, weights.even, scale, half);
                scale(own.odd.values, weights.odd, scale, half);
                store(to.memory(), to.start(row, head), half);
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
            loadPairs(memory, start, 0, half);
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
            storePairs(memory, start, 0, half);
        }

        private void loadPairs(MemorySegment memory, long start, int into, int count) {
            MemorySegment.copy(memory, ValueLayout.JAVA_INT_UNALIGNED, start * Short.BYTES, pairs, into, count);
        }

        private void storePairs(MemorySegment memory, long start, int from, int count) {
            MemorySegment.copy(pairs, from, memory, ValueLayout.JAVA_INT_UNALIGNED, start * Short.BYTES, count);
        }

        /**
         * Takes the cosines and sines of a row, as they are multiplied by: the cosines of a head twice, and its sines twice, of which the
         * first are negative; and so for each head.
         */
        void angles(MemorySegment table, long start, int headDim, int heads) {
            int half = headDim / 2;
            need(heads * half);
            if (!inPairs(headDim)) {
                for (int i = 0; i < half; i++) {
                    cosines.even.values[i] = get(table, start + i);
                    sines.even.values[i] = get(table, start + half + i);
                }
                return;
            }
            int each = half / 2;
            loadPairs(table, start, 0, half);
            System.arraycopy(pairs, each, swapped, each, each);
            for (int i = 0; i < each; i++) {
                swapped[i] = pairs[each + i] ^ SIGNS;
            }
            System.arraycopy(pairs, 0, pairs, each, each);
            repeat(pairs, half, heads * half);
            repeat(swapped, half, heads * half);
            widen(pairs, cosines, heads * half);
            widen(swapped, sines, heads * half);
        }

        private static void repeat(int[] values, int filled, int count) {
            for (int done = filled; done < count; done *= 2) {
                System.arraycopy(values, 0, values, done, Math.min(done, count - done));
            }
        }

        void rotate(Heads from, Heads to, int headDim, int row) {
            if (!inPairs(headDim)) {
                for (int head = 0; head < from.heads(); head++) {
                    rotate(from.memory(), from.start(row, head), to.memory(), to.start(row, head), headDim / 2);
                }
                return;
            }
            int half = headDim / 2;
            int all = from.heads() * half;
            int runs = from.headStride() == headDim ? 1 : from.heads();
            for (int i = 0; i < runs; i++) {
                loadPairs(from.memory(), from.start(row, i), i * half, all / runs);
            }
            for (int first = 0; first < all; first += half) {
                System.arraycopy(pairs, first, swapped, first + half / 2, half / 2);
                System.arraycopy(pairs, first + half / 2, swapped, first, half / 2);
            }
            widen(pairs, own, all);
            widen(swapped, other, all);
            turn(own.even.values, cosines.even.values, other.even.values, sines.even.values, all);
            turn(own.odd.values, cosines.odd.values, other.odd.values, sines.odd.values, all);
            round(own, pairs, all);
            int stores = to.headStride() == headDim ? 1 : to.heads();
            for (int i = 0; i < stores; i++) {
                storePairs(to.memory(), to.start(row, i), i * half, all / stores);
            }
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
        round(both.even.bits, both.odd.bits, pairs, count);
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

    private static void round(MemorySegment even, MemorySegment odd, int[] pairs, int count) {
        for (int i = 0; i < count; i++) {
            pairs[i] = (rounded(even.get(ValueLayout.JAVA_INT, 4L * i)) >>> 16)
                    | (rounded(odd.get(ValueLayout.JAVA_INT, 4L * i)) & 0xffff_0000);
        }
    }

    /**
     * Half of bf16's last place, less one if that place is even, carries where rounding goes up. A NaN that comes of bf16 has zeros in
     * its lower half, so that this does not make a number of it.
     */
    private static int rounded(int bits) {
        return bits + 0x7fff + ((bits >>> 16) & 1);
    }

    /** x * cosine + y * sine. */
    private static void turn(float[] x, float[] cosines, float[] y, float[] sines, int count) {
        for (int i = 0; i < count; i++) {
            x[i] = x[i] * cosines[i] + y[i] * sines[i];
        }
    }

    private static void scale(float[] x, float[] weights, float scale, int count) {
        for (int i = 0; i < count; i++) {
            x[i] = x[i] * scale * weights[i];
        }
    }

    /** Sums squares in many sums side by side, as the compiler may not change the order of additions. */
    private static float sumOfSquares(float[] x, float[] y, float[] sums, int count) {
        int quarter = count / 4;
        for (int i = 0; i < quarter; i++) {
            sums[i] = x[i] * x[i]
                    + y[i] * y[i]
                    + (x[i + quarter] * x[i + quarter] + y[i + quarter] * y[i + quarter])
                    + (x[i + 2 * quarter] * x[i + 2 * quarter] + y[i + 2 * quarter] * y[i + 2 * quarter])
                    + (x[i + 3 * quarter] * x[i + 3 * quarter] + y[i + 3 * quarter] * y[i + 3 * quarter]);
        }
        float sum = sum(sums, quarter);
        for (int i = 4 * quarter; i < count; i++) {
            sum += x[i] * x[i] + y[i] * y[i];
        }
        return sum;
    }

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
