package baton.cuda.kernel;

import static baton.cuda.ptx.PtxAssembler.u32;
import static baton.cuda.ptx.PtxAssembler.u64;

import baton.cuda.ptx.Is;
import baton.cuda.ptx.Operand.Pred;
import baton.cuda.ptx.Operand.U32;
import baton.cuda.ptx.Operand.U64;
import baton.cuda.ptx.PtxAssembler;
import baton.cuda.ptx.PtxKernel;
import baton.cuda.ptx.PtxWriter.Label;
import baton.kv.Sum61;
import java.math.BigInteger;

/**
 * A digest of {@link Sum61} for each block of threads: a thread takes each {@link #THREADS}th unit of a run, of one word or four, and
 * evaluates their polynomial by Horner's rule. The distance from the last unit to the run's end is the same for all runs.
 */
final class DigestKernel {
    static final String NAME = "digest";

    private static final int THREADS = 256;
    private static final long P = Sum61.P;
    private static final long R = Sum61.R;

    private final PtxAssembler k = new PtxAssembler(NAME, THREADS);
    private final U64 runs = k.parameterU64("runs");
    private final U64 digests = k.parameterU64("digests");
    private final U32 thread = k.thread();

    PtxKernel kernel() {
        U64 own = k.at(runs, k.blockX(), 4 * Long.BYTES);
        U64 first = k.loadU64(own, 0);
        U64 stride = k.loadU64(own, Long.BYTES);
        U32 count = k.narrow(k.loadU64(own, 2 * Long.BYTES));
        U64 runBytes = k.loadU64(own, 3 * Long.BYTES);
        U64 sum = k.variable(u64(0));
        k.when(
                CopyOps.isAligned(k, first, stride, runBytes),
                () -> addRuns(sum, first, stride, count, k.narrow(runBytes), 4),
                () -> addRuns(sum, first, stride, count, k.narrow(runBytes), 1));
        U32 words = k.shr(k.add(k.narrow(runBytes), Integer.BYTES - 1), 2);
        // Thread 0 adds the power of the number of all words.
        Pred isFirst = k.test(thread, Is.EQ, 0);
        k.when(isFirst, () -> k.set(sum, reduce(k.add(sum, power(power(u64(R), words), count)))));

        U32 sums = k.shared(THREADS * Long.BYTES);
        U32 place = k.mad(thread, Long.BYTES, sums);
        k.storeU64(place, 0, sum);
        for (int distance = THREADS / 2; distance > 0; distance /= 2) {
            int others = distance * Long.BYTES;
            k.barrier();
            k.when(
                    k.test(thread, Is.LT, distance),
                    () -> k.storeU64(place, 0, reduce(k.add(k.loadU64(place, 0), k.loadU64(place, others)))));
        }
        k.when(isFirst, () -> k.storeU64(k.at(digests, k.blockX(), Long.BYTES), 0, k.loadU64(sums, 0)));
        return k.kernel();
    }

    private void addRuns(U64 sum, U64 first, U64 stride, U32 count, U32 bytes, int unitWords) {
        int unitBytes = unitWords * Integer.BYTES;
        U32 units = k.div(k.add(bytes, unitBytes - 1), unitBytes);
        k.when(k.test(thread, Is.LT, units), () -> {
            U32 last = k.sub(units, u32(1));
            // Units behind the thread's last one.
            U32 behind = k.rem(k.sub(last, thread), THREADS);
            U64 toEnd = power(u64(R), k.mul(behind, unitWords));
            U64 ofRun = power(u64(R), k.mul(units, unitWords));
            U64 ofStep = u64(power(R, (long) THREADS * unitWords));
            U64 start = k.variable(first);
            k.loop(u32(0), count, u32(1), _ -> {
                U64 ofUnits = k.variable(u64(0));
                k.loop(thread, units, u32(THREADS), unit -> {
                    U64 words = unitWords == 1 ? word(start, unit, bytes) : words(k.at(start, unit, unitBytes));
                    k.set(ofUnits, reduce(k.add(product(ofUnits, ofStep), words)));
                });
                k.set(sum, reduce(k.add(product(sum, ofRun), reduce(product(ofUnits, toEnd)))));
                k.set(start, k.add(start, stride));
            });
        });
    }

    /** Four words times powers, not reduced. */
    private U64 words(U64 address) {
        U32[] words = k.loadU32s(4, address, 0);
        U64 sum = k.wide(words[3]);
        for (int i = 0; i < 3; i++) {
            sum = k.add(sum, product(k.wide(words[i]), u64(power(R, 3 - i))));
        }
        return sum;
    }

    /** A word; of the last one perhaps some bytes. */
    private U64 word(U64 start, U32 number, U32 bytes) {
        U32 at = k.mul(number, Integer.BYTES);
        U32 word = k.variable(u32(0));
        k.when(
                k.test(k.add(at, Integer.BYTES), Is.LE, bytes),
                () -> k.set(word, k.loadU32(k.at(start, at, 1), 0)),
                () -> {
                    for (int i = 0; i < Integer.BYTES - 1; i++) {
                        int next = i;
                        k.when(
                                k.test(k.add(at, i), Is.LT, bytes),
                                () -> k.set(
                                        word, k.or(word, k.shl(k.loadU8(k.at(start, at, 1), next), next * Byte.SIZE))));
                    }
                });
        return k.wide(word);
    }

    /** The product of numbers below 2^61, as in {@link Sum61}; it is below 2^62. */
    private U64 product(U64 a, U64 b) {
        U64 low = k.mul(a, b);
        U64 high = k.newU64();
        k.write("mul.hi.u64", high.text(), a.text(), b.text());
        return k.add(and(low, P), or(shift("shr.u64", low, 61), shift("shl.b64", high, 3)));
    }

    /** Modulo P. */
    private U64 reduce(U64 number) {
        U64 once = k.add(and(number, P), shift("shr.u64", number, 61));
        return k.select(k.test(once, Is.GE, u64(P)), k.add(once, -P), once);
    }

    private U64 power(U64 base, U32 exponent) {
        U64 result = k.variable(u64(1));
        U64 square = k.variable(base);
        U32 left = k.variable(exponent);
        Label start = k.newLabel();
        Label end = k.newLabel();
        k.place(start);
        k.branchIf(k.test(left, Is.EQ, 0), end);
        Pred odd = k.test(k.and(left, 1), Is.EQ, 1);
        k.set(result, k.select(odd, reduce(product(result, square)), result));
        k.set(square, reduce(product(square, square)));
        k.set(left, k.shr(left, 1));
        k.branch(start);
        k.place(end);
        return result;
    }

    private static long power(long base, long exponent) {
        BigInteger power = BigInteger.valueOf(base).modPow(BigInteger.valueOf(exponent), BigInteger.valueOf(P));
        return power.longValueExact();
    }

    private U64 and(U64 a, long mask) {
        return operation("and.b64", a, u64(mask).text());
    }

    private U64 or(U64 a, U64 b) {
        return operation("or.b64", a, b.text());
    }

    private U64 shift(String instruction, U64 a, int bits) {
        return operation(instruction, a, "" + bits);
    }

    private U64 operation(String instruction, U64 a, String b) {
        U64 to = k.newU64();
        k.write(instruction, to.text(), a.text(), b);
        return to;
    }
}
