package baton.transfer.embedded;

import baton.memory.MachineCode;
import baton.memory.Platform;
import baton.memory.Processor;
import baton.transfer.Digests;
import baton.transfer.embedded.Copier.Copy;
import java.lang.foreign.AddressLayout;
import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.util.Arrays;
import java.util.Optional;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/*
 * Why machine code. A copy that is too large for the caches is limited by memory. Ordinary stores read each line of the destination
 * before they overwrite it, a third of the traffic; stores past the caches do not, which Java uses for copies of 2.5 MiB and more only. And a
 * CRC32C is nearly free if it is made from the register that a line is in on its way, which Java cannot do, while one that is made
 * afterwards holds the copying up.
 *
 * Two ranges are copied side by side, a line of each in turn: a core follows two streams faster than one.
 *
 * The digest is the remainder of a polynomial over GF(2). Two carry-less products for each 128 bits move 512 bits of it on by 512
 * bits, where the next line is added; what is left at a run's end goes through the processor's crc32 instruction. See V. Gopal et al.,
 * "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009.
 */

/**
 * Copies memory, and digests it in the same pass, by machine code in a page of its own: on Linux, and processors with AVX-512 and
 * VPCLMULQDQ (Intel's since Ice Lake, AMD's since Zen 4). The code touches nothing but the ranges and a {@link Work}.
 *
 * <p>A page of a mapping that the system cannot give ends the process here, where Java's own copying throws: map only what cannot
 * shrink.
 */
final class CopyKernel {
    private static final Logger LOG = LoggerFactory.getLogger(CopyKernel.class);

    private static final String[] INSTRUCTION_SETS = {"sse4_2", "avx512f", "vpclmulqdq"};

    /** What the length of a copy is a multiple of. */
    static final long SIDE_BY_SIDE = (long) KernelCode.LANES * KernelCode.LINE;

    private static final ValueLayout.OfInt INT = ValueLayout.JAVA_INT;
    private static final ValueLayout.OfLong LONG = ValueLayout.JAVA_LONG;
    private static final AddressLayout ADDRESS = ValueLayout.ADDRESS;

    private static final long LOWER_FACTOR = KernelCode.lowerFactor();
    private static final long UPPER_FACTOR = KernelCode.upperFactor();
    private static final Optional<CopyKernel> OF_THIS_MACHINE = load();

    private final MethodHandle copyPastCaches;
    private final MethodHandle digestPastCaches;
    private final MethodHandle digest;

    private CopyKernel() {
        copyPastCaches = function(KernelCode.copy(false, true));
        digestPastCaches = function(KernelCode.copy(true, true));
        digest = function(KernelCode.copy(true, false));
    }

    /** Empty if the processor or the system lacks what it takes. */
    static Optional<CopyKernel> ofThisMachine() {
        return OF_THIS_MACHINE;
    }

    private static Optional<CopyKernel> load() {
        if (!Processor.current().has(INSTRUCTION_SETS)) {
            LOG.info(
                    "memory is copied by Java: {} here, machine code takes linux-x86_64 with {}",
                    Platform.current(),
                    String.join(", ", INSTRUCTION_SETS));
            return Optional.empty();
        }
        try {
            return Optional.of(new CopyKernel());
        } catch (RuntimeException e) {
            LOG.info("memory is copied by Java: {}", e.toString());
            return Optional.empty();
        }
    }

    /** Whether {@link #copy} takes it. */
    static boolean takes(Copy copy) {
        return copy.bytes() > 0 && copy.bytes() % SIDE_BY_SIDE == 0 && takesDestination(copy);
    }

    /** Whether {@link #digest} takes it. */
    static boolean takes(Copy copy, Digests digests) {
        return copy.bytes() == digests.bytes() && digests.runBytes() % KernelCode.LINE == 0 && takesDestination(copy);
    }

    private static boolean takesDestination(Copy copy) {
        return copy.to().address() % KernelCode.LINE == 0 && !copy.to().isReadOnly();
    }

    /** Copies past the caches. */
    void copy(Copy copy, Work work) {
        long half = copy.bytes() / KernelCode.LANES;
        work.set(1, 1, half);
        call(
                copyPastCaches,
                new Copy(copy.from().asSlice(0, half), copy.to().asSlice(0, half)),
                new Copy(copy.from().asSlice(half), copy.to().asSlice(half)),
                work);
    }

    /**
     * Copies two ranges and digests them. One that is given twice is copied twice, line by line: what stays is what the second
     * lane has digested.
     *
     * @param work has the digests afterwards
     */
    void digest(Copy one, Copy other, Digests digests, boolean pastCaches, Work work) {
        work.set(digests.rows(), digests.runs(), digests.runBytes());
        call(pastCaches ? digestPastCaches : digest, one, other, work);
    }

    private static void call(MethodHandle code, Copy one, Copy other, Work work) {
        try {
            code.invokeExact(one.to(), one.from(), other.to(), other.from(), work.memory);
        } catch (RuntimeException | Error e) {
            throw e;
        } catch (Throwable e) {
            throw new AssertionError("machine code throws nothing", e);
        }
    }

    /** What a thread works with. */
    static final class Work {
        private final MemorySegment memory;
        private final int runs;

        /** @param runs in a row, at most */
        Work(Arena arena, int runs) {
            this.runs = runs;
            memory = arena.allocate(KernelCode.digestAt(runs, 0), KernelCode.LINE);
            for (long at = 0; at < KernelCode.LINE; at += 2 * Long.BYTES) {
                memory.set(LONG, KernelCode.FACTORS_AT + at, LOWER_FACTOR);
                memory.set(LONG, KernelCode.FACTORS_AT + at + Long.BYTES, UPPER_FACTOR);
            }
        }

        private void set(int rows, int rowRuns, long runBytes) {
            memory.set(LONG, KernelCode.ROWS_AT, rows);
            memory.set(LONG, KernelCode.RUNS_AT, rowRuns);
            memory.set(LONG, KernelCode.RUN_BYTES_AT, runBytes);
            memory.asSlice(KernelCode.digestAt(0, 0)).fill((byte) 0xff);
        }

        /**
         * Digests of the runs of one range.
         *
         * @param lane 0 of the first range, 1 of the other
         */
        int[] crc32c(int lane) {
            int[] all = new int[runs];
            Arrays.setAll(all, run -> ~memory.get(INT, KernelCode.digestAt(run, lane)));
            return all;
        }
    }

    private static MethodHandle function(byte[] code) {
        return MachineCode.function(code, FunctionDescriptor.ofVoid(ADDRESS, ADDRESS, ADDRESS, ADDRESS, ADDRESS));
    }
}
