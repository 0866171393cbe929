package baton.cuda.ptx;

import baton.cuda.ptx.Operand.F32;
import baton.cuda.ptx.Operand.Pred;
import baton.cuda.ptx.Operand.U32;
import baton.cuda.ptx.Operand.U64;
import java.util.Arrays;
import java.util.function.BinaryOperator;

/**
 * The instructions of a kernel that use registers alone. Each method emits instructions and returns the register that has their result.
 * Variables, which change, are made by {@code variable} and changed by {@code set} and by methods that name it.
 *
 * <p>Instructions that have no method are written by {@link #write}.
 *
 * @see <a href="https://docs.nvidia.com/cuda/parallel-thread-execution/">Parallel Thread Execution ISA</a>
 */
abstract class PtxInstructions extends PtxWriter {
    public static final int WARP = 32;
    private static final float LOG2_E = 1.442695f;

    /** @param threads of a block, a multiple of 32 */
    PtxInstructions(String name, int threads) {
        super(name, threads);
    }

    public static U32 u32(int value) {
        return new U32(Integer.toString(value));
    }

    public static U64 u64(long value) {
        return new U64(Long.toString(value));
    }

    public static F32 f32(double value) {
        return new F32("0f%08X".formatted(Float.floatToRawIntBits((float) value)));
    }

    private U32 special(String register) {
        return result("mov.u32", newU32(), new U32(register));
    }

    public U32 thread() {
        return special("%tid.x");
    }

    public U32 blockX() {
        return special("%ctaid.x");
    }

    public U32 blockY() {
        return special("%ctaid.y");
    }

    public U32 blockZ() {
        return special("%ctaid.z");
    }

    public U32 blocksX() {
        return special("%nctaid.x");
    }

    public U32 blocksY() {
        return special("%nctaid.y");
    }

    /** The thread's number in its warp. */
    public U32 lane() {
        return and(thread(), WARP - 1);
    }

    /** The warp's number in its block. */
    public U32 warp() {
        return shr(thread(), 5);
    }

    public U32 variable(U32 initial) {
        return result("mov.u32", newU32(), initial);
    }

    public U64 variable(U64 initial) {
        return result("mov.u64", newU64(), initial);
    }

    public F32 variable(F32 initial) {
        return result("mov.f32", newF32(), initial);
    }

    public F32[] variables(int count, F32 initial) {
        F32[] variables = new F32[count];
        Arrays.setAll(variables, _ -> variable(initial));
        return variables;
    }

    public void set(U32 variable, U32 value) {
        result("mov.u32", variable, value);
    }

    public void set(U64 variable, U64 value) {
        result("mov.u64", variable, value);
    }

    public void set(F32 variable, F32 value) {
        result("mov.f32", variable, value);
    }

    // Integers of 32 bits

    public U32 add(U32 a, U32 b) {
        return result("add.u32", newU32(), a, b);
    }

    public U32 add(U32 a, int b) {
        return b == 0 ? a : add(a, u32(b));
    }

    public U32 sub(U32 a, U32 b) {
        return result("sub.u32", newU32(), a, b);
    }

    public U32 mul(U32 a, U32 b) {
        return result("mul.lo.u32", newU32(), a, b);
    }

    public U32 mul(U32 a, int b) {
        return Integer.bitCount(b) == 1 ? shl(a, Integer.numberOfTrailingZeros(b)) : mul(a, u32(b));
    }

    /** {@code a * b + c}. */
    public U32 mad(U32 a, U32 b, U32 c) {
        return result("mad.lo.u32", newU32(), a, b, c);
    }

    public U32 mad(U32 a, int b, U32 c) {
        return mad(a, u32(b), c);
    }

    /** Unsigned. */
    public U32 div(U32 a, U32 b) {
        return result("div.u32", newU32(), a, b);
    }

    public U32 div(U32 a, int b) {
        return Integer.bitCount(b) == 1 ? shr(a, Integer.numberOfTrailingZeros(b)) : div(a, u32(b));
    }

    public U32 rem(U32 a, U32 b) {
        return result("rem.u32", newU32(), a, b);
    }

    public U32 rem(U32 a, int b) {
        return Integer.bitCount(b) == 1 ? and(a, b - 1) : rem(a, u32(b));
    }

    /** Unsigned. */
    public U32 min(U32 a, U32 b) {
        return result("min.u32", newU32(), a, b);
    }

    /** Unsigned. */
    public U32 max(U32 a, U32 b) {
        return result("max.u32", newU32(), a, b);
    }

    public U32 and(U32 a, U32 b) {
        return result("and.b32", newU32(), a, b);
    }

    public U32 and(U32 a, int b) {
        return and(a, u32(b));
    }

    public U32 or(U32 a, U32 b) {
        return result("or.b32", newU32(), a, b);
    }

    public U32 xor(U32 a, U32 b) {
        return result("xor.b32", newU32(), a, b);
    }

    public U32 xor(U32 a, int b) {
        return xor(a, u32(b));
    }

    public U32 shl(U32 a, int bits) {
        return bits == 0 ? a : result("shl.b32", newU32(), a, u32(bits));
    }

    /** Unsigned. */
    public U32 shr(U32 a, int bits) {
        return bits == 0 ? a : result("shr.u32", newU32(), a, u32(bits));
    }

    // Integers of 64 bits

    public U64 add(U64 a, U64 b) {
        return result("add.u64", newU64(), a, b);
    }

    public U64 add(U64 a, long b) {
        return b == 0 ? a : add(a, u64(b));
    }

    public U64 mul(U64 a, U64 b) {
        return result("mul.lo.u64", newU64(), a, b);
    }

    /** {@code base + index * bytes}, the index unsigned. */
    public U64 at(U64 base, U32 index, int bytes) {
        return at(base, index, u32(bytes));
    }

    public U64 at(U64 base, U32 index, U32 bytes) {
        return result("mad.wide.u32", newU64(), index, bytes, base);
    }

    /** {@code base + index * bytes}, all of 64 bits. */
    public U64 at(U64 base, U32 index, U64 bytes) {
        return result("mad.lo.u64", newU64(), wide(index), bytes, base);
    }

    /** Unsigned. */
    public U64 wide(U32 a) {
        return result("cvt.u64.u32", newU64(), a);
    }

    /** The lower half. */
    public U32 narrow(U64 a) {
        return result("cvt.u32.u64", newU32(), a);
    }

    // Conditions

    public Pred test(U32 a, Is is, U32 b) {
        return result("setp.%s.u32".formatted(is.text()), newPred(), a, b);
    }

    public Pred test(U32 a, Is is, int b) {
        return test(a, is, u32(b));
    }

    public Pred test(U64 a, Is is, U64 b) {
        return result("setp.%s.u64".formatted(is.text()), newPred(), a, b);
    }

    /** False if one is no number. */
    public Pred test(F32 a, Is is, F32 b) {
        return result("setp.%s.f32".formatted(is.text()), newPred(), a, b);
    }

    public Pred isNaN(F32 a) {
        return result("setp.nan.f32", newPred(), a, a);
    }

    public Pred and(Pred a, Pred b) {
        return result("and.pred", newPred(), a, b);
    }

    public Pred or(Pred a, Pred b) {
        return result("or.pred", newPred(), a, b);
    }

    public Pred not(Pred a) {
        return result("not.pred", newPred(), a);
    }

    public U32 select(Pred condition, U32 then, U32 otherwise) {
        return result("selp.b32", newU32(), then, otherwise, condition);
    }

    public U64 select(Pred condition, U64 then, U64 otherwise) {
        return result("selp.b64", newU64(), then, otherwise, condition);
    }

    public F32 select(Pred condition, F32 then, F32 otherwise) {
        return result("selp.f32", newF32(), then, otherwise, condition);
    }

    // Numbers of fp32. Without .rn, the assembler may make one fma of a product and a sum.

    public F32 add(F32 a, F32 b) {
        return result("add.rn.f32", newF32(), a, b);
    }

    public F32 sub(F32 a, F32 b) {
        return result("sub.rn.f32", newF32(), a, b);
    }

    public F32 mul(F32 a, F32 b) {
        return result("mul.rn.f32", newF32(), a, b);
    }

    /** {@code a * b + c}, rounded once. */
    public F32 fma(F32 a, F32 b, F32 c) {
        return result("fma.rn.f32", newF32(), a, b, c);
    }

    /** Adds {@code a * b} to a variable, rounded once. */
    public void accumulate(F32 variable, F32 a, F32 b) {
        result("fma.rn.f32", variable, a, b, variable);
    }

    public F32 div(F32 a, F32 b) {
        return result("div.rn.f32", newF32(), a, b);
    }

    /** The one that is a number, if only one is. */
    public F32 min(F32 a, F32 b) {
        return result("min.f32", newF32(), a, b);
    }

    /** The one that is a number, if only one is. */
    public F32 max(F32 a, F32 b) {
        return result("max.f32", newF32(), a, b);
    }

    public F32 neg(F32 a) {
        return result("neg.f32", newF32(), a);
    }

    public F32 abs(F32 a) {
        return result("abs.f32", newF32(), a);
    }

    public F32 sqrt(F32 a) {
        return result("sqrt.rn.f32", newF32(), a);
    }

    /** {@code 2^a} to about 2 units in the last place. */
    public F32 exp2(F32 a) {
        return result("ex2.approx.f32", newF32(), a);
    }

    /**
     * e^a, to about 2 units in the last place; for large {@code a} to as many as its product with the logarithm has bits before the point.
     */
    public F32 exp(F32 a) {
        return exp2(mul(a, f32(LOG2_E)));
    }

    /** {@code 1 / (1 + exp(-a))}. */
    public F32 sigmoid(F32 a) {
        return div(f32(1), add(exp(neg(a)), f32(1)));
    }

    /** Computed by {@link #exp}: exact to 1e-6 of 1, not of small results. */
    public F32 tanh(F32 a) {
        return sub(f32(1), div(f32(2), add(exp(add(a, a)), f32(1))));
    }

    public F32 toF32(U32 a) {
        return result("cvt.rn.f32.u32", newF32(), a);
    }

    /** The bits of a number. */
    public U32 bits(F32 a) {
        return result("mov.b32", newU32(), a);
    }

    /** The number that has the bits. */
    public F32 ofBits(U32 a) {
        return result("mov.b32", newF32(), a);
    }

    // Between threads

    /** The value of the lane {@code lane() ^ mask}. */
    public F32 shuffleXor(F32 a, int mask) {
        return result("shfl.sync.bfly.b32", newF32(), a, u32(mask), u32(WARP - 1), new U32("0xffffffff"));
    }

    public U32 shuffleXor(U32 a, int mask) {
        return result("shfl.sync.bfly.b32", newU32(), a, u32(mask), u32(WARP - 1), new U32("0xffffffff"));
    }

    /** The value of the lane {@code lanes} before this one; the lane's own value if no such lane exists. */
    public U32 shuffleUp(U32 a, int lanes) {
        return result("shfl.sync.up.b32", newU32(), a, u32(lanes), u32(0), new U32("0xffffffff"));
    }

    /** The value of a lane. */
    public F32 shuffle(F32 a, U32 lane) {
        return result("shfl.sync.idx.b32", newF32(), a, lane, u32(WARP - 1), new U32("0xffffffff"));
    }

    /**
     * The values of as many neighbouring lanes together, the same in each of them. All lanes of the warp must be there.
     *
     * @param lanes a power of two up to 32
     * @param both a commutative function, such as {@code this::add}
     */
    public F32 acrossLanes(F32 value, int lanes, BinaryOperator<F32> both) {
        F32 all = value;
        for (int distance = lanes / 2; distance > 0; distance /= 2) {
            all = both.apply(all, shuffleXor(all, distance));
        }
        return all;
    }
}
