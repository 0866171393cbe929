package baton.engine.kernel;

import baton.memory.MachineCode;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.util.Collections;

/**
 * A function of machine code, of addresses and numbers. The JVM does not see its calls: it returns within a few microseconds, for the
 * largest matrices some hundred. Otherwise the processor would wait at the end of each call until all of its stores have reached the
 * caches, a tenth of a prefill's time.
 *
 * @param code the first instruction
 * @param arguments number of arguments
 */
record MachineFunction(MemorySegment code, int arguments) {
    private static final int MOST_ARGUMENTS = 8;

    /** Calls any of the functions: by the calling convention those with fewer arguments do not see the last ones. */
    private static final MethodHandle CALL = Linker.nativeLinker()
            .downcallHandle(
                    FunctionDescriptor.ofVoid(Collections.nCopies(MOST_ARGUMENTS, ValueLayout.JAVA_LONG)
                            .toArray(MemoryLayout[]::new)),
                    Linker.Option.critical(false));

    /** @throws IllegalStateException if the system gives no executable memory */
    static MachineFunction of(byte[] code, int arguments) {
        return new MachineFunction(MachineCode.executable(code), arguments);
    }

    void call() {
        call(0, 0, 0, 0, 0, 0, 0, 0, 0);
    }

    void call(long a) {
        call(1, a, 0, 0, 0, 0, 0, 0, 0);
    }

    void call(long a, long b, long c) {
        call(3, a, b, c, 0, 0, 0, 0, 0);
    }

    void call(long a, long b, long c, long d) {
        call(4, a, b, c, d, 0, 0, 0, 0);
    }

    void call(long a, long b, long c, long d, long e) {
        call(5, a, b, c, d, e, 0, 0, 0);
    }

    void call(long a, long b, long c, long d, long e, long f) {
        call(6, a, b, c, d, e, f, 0, 0);
    }

    void call(long a, long b, long c, long d, long e, long f, long g) {
        call(7, a, b, c, d, e, f, g, 0);
    }

    void call(long a, long b, long c, long d, long e, long f, long g, long h) {
        call(8, a, b, c, d, e, f, g, h);
    }

    private void call(int count, long a, long b, long c, long d, long e, long f, long g, long h) {
        if (count != arguments) {
            throw new IllegalArgumentException(count + " arguments for a function of " + arguments);
        }
        try {
            CALL.invokeExact(code, a, b, c, d, e, f, g, h);
        } catch (RuntimeException | Error thrown) {
            throw thrown;
        } catch (Throwable thrown) {
            throw new AssertionError("machine code throws nothing", thrown);
        }
    }
}
