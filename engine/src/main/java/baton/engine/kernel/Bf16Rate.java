package baton.engine.kernel;

import static baton.memory.Assembler.Reg.RDI;

import baton.memory.Assembler;
import baton.memory.Assembler.Binary;
import baton.memory.Assembler.Condition;
import baton.memory.Assembler.Label;
import baton.memory.Assembler.Width;
import baton.memory.MachineCode;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;

/**
 * How many bf16 product instructions (VDPBF16PS) a processor executes in the time of one of fp32 (VFMADD). Having the instruction says
 * little: some processors execute it at the same rate and so multiply twice as many numbers; some at half the rate or less, and gain nothing.
 */
public final class Bf16Rate {
    /** Independent sums: more than a multiplication's latency times the multiplications that begin in a cycle. */
    private static final int SUMS = 20;

    private static final int LOOPS = 4_000;
    private static final int TRIALS = 12;

    private Bf16Rate() {}

    private static final class Here {
        static final double RATE = measure();
    }

    /**
     * The rate of this processor, which has AVX-512 and AVX512_BF16; measured once, in less than a millisecond.
     *
     * @throws IllegalStateException if the system gives no executable memory
     */
    public static double here() {
        try {
            return Here.RATE;
        } catch (ExceptionInInitializerError e) {
            throw new IllegalStateException(String.valueOf(e.getCause()), e.getCause());
        }
    }

    private static double measure() {
        MethodHandle bf16 = loop(Binary.DOT_BF16);
        MethodHandle fp32 = loop(Binary.FMA);
        long bestBf16 = Long.MAX_VALUE;
        long bestFp32 = Long.MAX_VALUE;
        for (int i = 0; i < TRIALS; i++) {
            bestBf16 = Math.min(bestBf16, nanos(bf16));
            bestFp32 = Math.min(bestFp32, nanos(fp32));
        }
        return (double) bestFp32 / Math.max(1, bestBf16);
    }

    private static MethodHandle loop(Binary multiplication) {
        Assembler code = new Assembler(Width.ZMM);
        for (int i = 0; i < SUMS + 2; i++) {
            code.clear(i);
        }
        Label loop = code.label();
        code.bind(loop);
        for (int i = 0; i < SUMS; i++) {
            code.op(multiplication, i, SUMS, SUMS + 1);
        }
        code.subtract(RDI, 1);
        code.jump(Condition.NOT_EQUAL, loop);
        code.returnFromVectors();
        return MachineCode.function(code.code(), FunctionDescriptor.ofVoid(ValueLayout.JAVA_LONG));
    }

    private static long nanos(MethodHandle loop) {
        long start = System.nanoTime();
        try {
            loop.invokeExact((long) LOOPS);
        } catch (Throwable e) {
            throw new AssertionError("machine code throws nothing", e);
        }
        return System.nanoTime() - start;
    }
}
