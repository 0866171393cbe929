package baton.memory;

import baton.memory.ParallelCopier.Copy;
import java.lang.foreign.AddressLayout;
import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.function.Supplier;
import java.util.zip.CRC32C;
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
 * VPCLMULQDQ (Intel's since Ice Lake, AMD's since Zen 4). The code touches nothing but the ranges and a {@link Work}. It is the only
 * code of Baton's that could end the JVM: {@code -Dbaton.copy=java} switches it off, and it is compared with Java's copying and
 * {@link CRC32C} once before it is used.
 *
 * <p>A page of a mapping that the system cannot give ends the process here, where Java's own copying throws: map only what cannot
 * shrink.
 */
public final class CopyKernel {
    private static final Logger LOG = LoggerFactory.getLogger(CopyKernel.class);

    private static final String[] INSTRUCTION_SETS = {"sse4_2", "avx512f", "vpclmulqdq"};

    /** What the length of a copy is a multiple of. */
    static final long SIDE_BY_SIDE = (long) CopyKernelCode.LANES * CopyKernelCode.LINE;

    private static final ValueLayout.OfInt INT = ValueLayout.JAVA_INT;
    private static final ValueLayout.OfLong LONG = ValueLayout.JAVA_LONG;
    private static final AddressLayout ADDRESS = ValueLayout.ADDRESS;

    private static final long LOWER_FACTOR = CopyKernelCode.lowerFactor();
    private static final long UPPER_FACTOR = CopyKernelCode.upperFactor();

    /** System property: {@code kernel}, the default, for machine code where there can be some; {@code java} for none. */
    public static final String PROPERTY = "baton.copy";

    /** Of the self-check: rows, runs, bytes of a run. From one line on, and more than a cache of the first level has. */
    private static final int[][] CHECKED = {
        {1, 1, 64}, {1, 3, 128}, {2, 2, 192}, {3, 1, 1024}, {2, 5, 4096}, {1, 1, 64 << 10}
    };

    /** How far the self-check's sources are from the beginning of a line. Destinations have to be at one. */
    private static final int[] CHECKED_OFFSETS = {0, 1, 8, 33};

    private static final byte UNTOUCHED = 0x5a;

    /** Made when it is first asked for. */
    private static final class OfThisMachine {
        private static final Optional<CopyKernel> KERNEL = load(CopyKernel::new);
    }

    private final MethodHandle copyPastCaches;
    private final MethodHandle digestPastCaches;
    private final MethodHandle digest;

    private CopyKernel() {
        this(
                function(CopyKernelCode.copy(false, true)),
                function(CopyKernelCode.copy(true, true)),
                function(CopyKernelCode.copy(true, false)));
    }

    /** Of functions of {@link CopyKernelCode#copy}. */
    CopyKernel(MethodHandle copyPastCaches, MethodHandle digestPastCaches, MethodHandle digest) {
        this.copyPastCaches = copyPastCaches;
        this.digestPastCaches = digestPastCaches;
        this.digest = digest;
    }

    /**
     * The kernel of this process; empty if {@value #PROPERTY} says {@code java}, or the processor or the system lacks what it takes, or
     * its self-check fails.
     *
     * @throws IllegalArgumentException if {@value #PROPERTY} has another value than {@code kernel} and {@code java}
     */
    public static Optional<CopyKernel> ofThisMachine() {
        return ofThisMachine(System.getProperty(PROPERTY, "kernel"));
    }

    static Optional<CopyKernel> ofThisMachine(String property) {
        return switch (property) {
            case "kernel" -> OfThisMachine.KERNEL;
            case "java" -> {
                LOG.info("memory is copied by Java: {}=java", PROPERTY);
                yield Optional.empty();
            }
            default -> throw new IllegalArgumentException("%s=%s must be kernel or java".formatted(PROPERTY, property));
        };
    }

    static Optional<CopyKernel> load(Supplier<CopyKernel> maker) {
        if (!Processor.current().has(INSTRUCTION_SETS)) {
            LOG.info(
                    "memory is copied by Java: {} here, machine code takes linux-x86_64 with {}",
                    Platform.current(),
                    String.join(", ", INSTRUCTION_SETS));
            return Optional.empty();
        }
        try {
            CopyKernel kernel = maker.get();
            Optional<String> difference = kernel.selfCheck();
            difference.ifPresent(what -> LOG.warn(
                    "memory is copied by Java: the self-check of the copying kernel failed on {}: {}",
                    Processor.current().name(),
                    what));
            return difference.isPresent() ? Optional.empty() : Optional.of(kernel);
        } catch (RuntimeException e) {
            LOG.info("memory is copied by Java: {}", e.toString());
            return Optional.empty();
        }
    }

    /**
     * Copies random bytes in several sizes and alignments, and compares the copies with Java's, and their digests with {@link CRC32C}.
     *
     * @return the first difference
     */
    Optional<String> selfCheck() {
        Random random = new Random(1);
        try (Arena arena = Arena.ofConfined()) {
            for (int[] shape : CHECKED) {
                for (int offset : CHECKED_OFFSETS) {
                    RunDigests digests = new RunDigests(shape[0], shape[1], shape[2], (_, _) -> {});
                    Optional<String> difference = checkCopy(arena, random, digests.bytes() * 2, offset)
                            .or(() -> checkDigests(arena, random, digests, offset, false))
                            .or(() -> checkDigests(arena, random, digests, offset, true));
                    if (difference.isPresent()) {
                        return difference.map(what -> "%s of rows=%d runs=%d runBytes=%d from offset=%d"
                                .formatted(what, digests.rows(), digests.runs(), digests.runBytes(), offset));
                    }
                }
            }
            return Optional.empty();
        }
    }

    private Optional<String> checkCopy(Arena arena, Random random, long bytes, int offset) {
        Sample sample = Sample.of(arena, random, bytes, offset);
        copy(sample.copy(), new Work(arena, 1));
        return sample.difference();
    }

    private Optional<String> checkDigests(
            Arena arena, Random random, RunDigests digests, int offset, boolean pastCaches) {
        List<Sample> samples = List.of(
                Sample.of(arena, random, digests.bytes(), offset), Sample.of(arena, random, digests.bytes(), offset));
        Work work = new Work(arena, digests.runs());
        digest(samples.getFirst().copy(), samples.getLast().copy(), digests, pastCaches, work);
        for (int lane = 0; lane < CopyKernelCode.LANES; lane++) {
            Optional<String> difference = samples.get(lane).difference();
            if (difference.isPresent()) {
                return difference;
            }
            if (!Arrays.equals(
                    work.crc32c(lane), crc32c(samples.get(lane).copy().from(), digests))) {
                return Optional.of("wrong digests");
            }
        }
        return Optional.empty();
    }

    private static int[] crc32c(MemorySegment range, RunDigests digests) {
        int[] all = new int[digests.runs()];
        for (int run = 0; run < digests.runs(); run++) {
            CRC32C crc = new CRC32C();
            for (int row = 0; row < digests.rows(); row++) {
                long at = ((long) row * digests.runs() + run) * digests.runBytes();
                crc.update(range.asSlice(at, digests.runBytes()).asByteBuffer());
            }
            all[run] = (int) crc.getValue();
        }
        return all;
    }

    /** A copy of random bytes, with a line before and after its destination that has to stay as it is. */
    private record Sample(Copy copy, MemorySegment surroundings) {
        static Sample of(Arena arena, Random random, long bytes, int offset) {
            byte[] content = new byte[Math.toIntExact(bytes)];
            random.nextBytes(content);
            MemorySegment from = arena.allocate(bytes + CopyKernelCode.LINE, CopyKernelCode.LINE)
                    .asSlice(offset, bytes);
            MemorySegment.copy(content, 0, from, ValueLayout.JAVA_BYTE, 0, content.length);
            MemorySegment surroundings = arena.allocate(bytes + 2 * CopyKernelCode.LINE, CopyKernelCode.LINE)
                    .fill(UNTOUCHED);
            return new Sample(new Copy(from, surroundings.asSlice(CopyKernelCode.LINE, bytes)), surroundings);
        }

        Optional<String> difference() {
            MemorySegment expected = MemorySegment.ofArray(new byte[Math.toIntExact(surroundings.byteSize())])
                    .fill(UNTOUCHED);
            MemorySegment.copy(copy.from(), 0, expected, CopyKernelCode.LINE, copy.bytes());
            long at = surroundings.mismatch(expected);
            return at < 0
                    ? Optional.empty()
                    : Optional.of("a wrong byte at %d of %d".formatted(at - CopyKernelCode.LINE, copy.bytes()));
        }
    }

    /** Whether {@link #copy} takes it. */
    static boolean takes(Copy copy) {
        return !copy.to().isReadOnly() && takes(copy.to().address(), copy.bytes());
    }

    /** Whether {@link #copy} and {@link #digest} take it by addresses. */
    static boolean takes(long to, long bytes) {
        return bytes > 0 && bytes % SIDE_BY_SIDE == 0 && to % CopyKernelCode.LINE == 0;
    }

    /** Whether {@link #digest} takes it. */
    static boolean takes(Copy copy, RunDigests digests) {
        return copy.bytes() == digests.bytes()
                && digests.runBytes() % CopyKernelCode.LINE == 0
                && takesDestination(copy);
    }

    private static boolean takesDestination(Copy copy) {
        return copy.to().address() % CopyKernelCode.LINE == 0 && !copy.to().isReadOnly();
    }

    /** Copies past the caches. */
    void copy(Copy copy, Work work) {
        long half = copy.bytes() / CopyKernelCode.LANES;
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
    void digest(Copy one, Copy other, RunDigests digests, boolean pastCaches, Work work) {
        work.set(digests.rows(), digests.runs(), digests.runBytes());
        call(pastCaches ? digestPastCaches : digest, one, other, work);
    }

    /**
     * Copies past the caches, by addresses. Nothing keeps the memory alive but the caller, and no count of its users is
     * changed, for which threads would wait for each other.
     */
    void copy(long from, long to, long bytes, Work work) {
        work.set(1, 1, bytes / CopyKernelCode.LANES);
        call(copyPastCaches, from, to, bytes, work);
    }

    /** The same with digests: registers that begin with zeros, of both halves. */
    void digest(long from, long to, long bytes, boolean pastCaches, Work work) {
        work.set(1, 1, bytes / CopyKernelCode.LANES);
        work.clearRegisters();
        call(pastCaches ? digestPastCaches : digest, from, to, bytes, work);
    }

    private static void call(MethodHandle code, long from, long to, long bytes, Work work) {
        long half = bytes / CopyKernelCode.LANES;
        call(
                code,
                MemorySegment.ofAddress(to),
                MemorySegment.ofAddress(from),
                MemorySegment.ofAddress(to + half),
                MemorySegment.ofAddress(from + half),
                work);
    }

    private static void call(MethodHandle code, Copy one, Copy other, Work work) {
        call(code, one.to(), one.from(), other.to(), other.from(), work);
    }

    private static void call(
            MethodHandle code,
            MemorySegment to,
            MemorySegment from,
            MemorySegment otherTo,
            MemorySegment otherFrom,
            Work work) {
        try {
            code.invokeExact(to, from, otherTo, otherFrom, work.memory);
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
            memory = arena.allocate(CopyKernelCode.digestAt(runs, 0), CopyKernelCode.LINE);
            for (long at = 0; at < CopyKernelCode.LINE; at += 2 * Long.BYTES) {
                memory.set(LONG, CopyKernelCode.FACTORS_AT + at, LOWER_FACTOR);
                memory.set(LONG, CopyKernelCode.FACTORS_AT + at + Long.BYTES, UPPER_FACTOR);
            }
        }

        private void set(int rows, int rowRuns, long runBytes) {
            memory.set(LONG, CopyKernelCode.ROWS_AT, rows);
            memory.set(LONG, CopyKernelCode.RUNS_AT, rowRuns);
            memory.set(LONG, CopyKernelCode.RUN_BYTES_AT, runBytes);
            memory.asSlice(CopyKernelCode.digestAt(0, 0)).fill((byte) 0xff);
        }

        private void clearRegisters() {
            memory.asSlice(CopyKernelCode.digestAt(0, 0)).fill((byte) 0);
        }

        /** The register of the first run of a lane. */
        int register(int lane) {
            return memory.get(INT, CopyKernelCode.digestAt(0, lane));
        }

        /**
         * Digests of the runs of one range.
         *
         * @param lane 0 of the first range, 1 of the other
         */
        int[] crc32c(int lane) {
            int[] all = new int[runs];
            Arrays.setAll(all, run -> ~memory.get(INT, CopyKernelCode.digestAt(run, lane)));
            return all;
        }
    }

    private static MethodHandle function(byte[] code) {
        return MachineCode.function(code, FunctionDescriptor.ofVoid(ADDRESS, ADDRESS, ADDRESS, ADDRESS, ADDRESS));
    }
}
