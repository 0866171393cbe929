package baton.cuda.kernel;

import static baton.cuda.ptx.PtxAssembler.f32;
import static baton.cuda.ptx.PtxAssembler.u64;

import baton.cuda.ptx.Is;
import baton.cuda.ptx.Operand.F32;
import baton.cuda.ptx.Operand.U32;
import baton.cuda.ptx.Operand.U64;
import baton.cuda.ptx.PtxAssembler;
import baton.cuda.ptx.PtxKernel;
import baton.kv.DType;
import java.util.Arrays;

/**
 * Finds the largest number of a chunk of a row. A number and its index are a key of 64 bits: keys are ordered as numbers, and those of equal numbers
 * in the reverse order of indices. A key of 0 stands for no number.
 *
 * @param last reads keys and writes the index and the number, else reads fp32 and writes a key
 */
record ArgmaxKernel(boolean last) {
    private static final int THREADS = 256;
    private static final int OF_THREAD = 16;

    /** Numbers or keys of a block of threads. */
    static final int CHUNK = THREADS * OF_THREAD;

    private static final int SIGN = 0x80000000;

    static String name(boolean last) {
        return last ? "argmax_of_keys" : "argmax_of_numbers";
    }

    PtxKernel kernel() {
        PtxAssembler k = new PtxAssembler(name(last), THREADS);
        U64 rows = k.parameterU64("rows");
        U64 rowStride = k.parameterU64("rowStride");
        U32 columns = k.parameterU32("columns");
        U64 to = k.parameterU64("to");
        U64 values = k.parameterU64("values");

        U32 thread = k.thread();
        U32 row = k.blockY();
        U64 from = k.at(rows, row, rowStride);
        U64[] keys = new U64[OF_THREAD];
        for (int i = 0; i < OF_THREAD; i++) {
            U32 column = k.add(k.mad(k.blockX(), CHUNK, thread), i * THREADS);
            U64 key = k.variable(u64(0));
            k.when(
                    k.test(column, Is.LT, columns),
                    () -> k.set(
                            key,
                            last
                                    ? k.loadU64(k.at(from, column, Long.BYTES), 0)
                                    : key(k, k.load(DType.F32, k.at(from, column, Float.BYTES), 0), column)));
            keys[i] = key;
        }
        U64 largest = largest(k, keys, k.shared(THREADS / PtxAssembler.WARP * Long.BYTES));
        U32 place = k.add(k.mul(row, k.blocksX()), k.blockX());
        k.when(k.test(thread, Is.EQ, 0), () -> {
            if (last) {
                k.storeU32(k.at(to, place, Integer.BYTES), 0, k.xor(k.narrow(largest), -1));
                k.store(DType.F32, k.at(values, place, Float.BYTES), 0, number(k, largest));
            } else {
                k.storeU64(k.at(to, place, Long.BYTES), 0, largest);
            }
        });
        return k.kernel();
    }

    private static U64 largest(PtxAssembler k, U64[] keys, U32 scratch) {
        U64 largest = Arrays.stream(keys).reduce((a, b) -> max(k, a, b)).orElseThrow();
        for (int distance = PtxAssembler.WARP / 2; distance > 0; distance /= 2) {
            U32 high = k.narrow(shiftRight(k, largest));
            largest = max(k, largest, join(k, k.shuffleXor(k.narrow(largest), distance), k.shuffleXor(high, distance)));
        }
        U64 ofWarp = largest;
        k.barrier();
        k.when(k.test(k.lane(), Is.EQ, 0), () -> k.storeU64(k.mad(k.warp(), Long.BYTES, scratch), 0, ofWarp));
        k.barrier();
        U64 all = k.loadU64(scratch, 0);
        for (int warp = 1; warp < THREADS / PtxAssembler.WARP; warp++) {
            all = max(k, all, k.loadU64(scratch, warp * Long.BYTES));
        }
        return all;
    }

    private static U64 key(PtxAssembler k, F32 number, U32 index) {
        F32 known = k.select(k.isNaN(number), f32(Double.NEGATIVE_INFINITY), number);
        // Adding 0 makes 0 of -0.
        U32 bits = k.bits(k.add(known, f32(0)));
        U32 ordered = k.select(k.test(bits, Is.GE, SIGN), k.xor(bits, -1), k.xor(bits, SIGN));
        return join(k, k.xor(index, -1), ordered);
    }

    private static F32 number(PtxAssembler k, U64 key) {
        U32 ordered = k.narrow(shiftRight(k, key));
        return k.ofBits(k.select(k.test(ordered, Is.GE, SIGN), k.xor(ordered, SIGN), k.xor(ordered, -1)));
    }

    private static U64 join(PtxAssembler k, U32 low, U32 high) {
        U64 joined = k.newU64();
        k.write("mov.b64", joined.text(), "{%s, %s}".formatted(low.text(), high.text()));
        return joined;
    }

    private static U64 shiftRight(PtxAssembler k, U64 value) {
        U64 shifted = k.newU64();
        k.write("shr.u64", shifted.text(), value.text(), "32");
        return shifted;
    }

    private static U64 max(PtxAssembler k, U64 a, U64 b) {
        U64 larger = k.newU64();
        k.write("max.u64", larger.text(), a.text(), b.text());
        return larger;
    }
}
