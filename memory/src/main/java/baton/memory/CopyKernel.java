package baton.memory;

import baton.memory.Assembler.Width;
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
import java.util.Set;
import java.util.TreeSet;
import java.util.function.Function;
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
 * bits, where the next line is added; the rest at a run's end goes through the processor's crc32 instruction. See V. Gopal et al.,
 * "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009. The crc32 instruction alone takes 8 bytes at a
 * time and waits three cycles for the one before it, and its operand would be read from memory a second time, when it may have changed.
 */

/**
 * Copies memory, and digests it in the same pass, by machine code in a page of its own, on Linux and x86-64 processors with AVX2
 * and PCLMULQDQ. The code touches nothing but the ranges and a {@link Work}. {@code -Dbaton.copy=java} switches it off, and it is compared with
 * Java's copying and {@link CRC32C} once before it is used.
 *
 * <p>A page of a mapping that the system cannot give ends the process here, where Java's own copying throws: map only files that cannot
 * shrink.
 */
public final class CopyKernel {
    private static final Logger LOG = LoggerFactory.getLogger(CopyKernel.class);

    /** Lengths of copies are multiples of it. */
    static final long SIDE_BY_SIDE = (long) CopyKernelCode.LANES * CopyKernelCode.LINE;

    private static final ValueLayout.OfInt INT = ValueLayout.JAVA_INT;
    private static final ValueLayout.OfLong LONG = ValueLayout.JAVA_LONG;
    private static final AddressLayout ADDRESS = ValueLayout.ADDRESS;

    private static final long LOWER_FACTOR = CopyKernelCode.lowerFactor();
    private static final long UPPER_FACTOR = CopyKernelCode.upperFactor();

    /**
     * System property: {@code kernel}, the default, for machine code where there can be some; {@code 256} or {@code 128} for machine code
     * with vectors of at most so many bits; {@code java} for none.
     */
    public static final String PROPERTY = "baton.copy";

    /** The vectors that there is code for, the widest first. All digest alike; wider ones with fewer instructions. */
    enum Vectors {
        /** Intel's since Ice Lake, AMD's since Zen 4. */
        OF_512_BITS(Width.ZMM, "avx512f", "vpclmulqdq"),
        /** Intel's since Alder Lake, AMD's since Zen 3. */
        OF_256_BITS(Width.YMM, "avx2", "vpclmulqdq"),
        /** Intel's since Haswell, AMD's since Zen. Their predecessors multiply polynomials too slowly. */
        OF_128_BITS(Width.XMM, "avx2", "pclmulqdq");

        private final Width width;
        private final String vectors;
        private final String products;

        Vectors(Width width, String vectors, String products) {
            this.width = width;
            this.vectors = vectors;
            this.products = products;
        }

        private int bits() {
            return width.bytes() * Byte.SIZE;
        }

        Width width() {
            return width;
        }

        Set<String> instructionSets() {
            return new TreeSet<>(List.of(vectors, products, "sse4_2"));
        }

        boolean areIn(Processor processor) {
            return processor.has(vectors, products, "sse4_2");
        }

        /** The widest ones of a processor, but none wider than these. */
        Optional<Vectors> widest(Processor processor) {
            return Arrays.stream(values())
                    .filter(vectors -> vectors.compareTo(this) >= 0 && vectors.areIn(processor))
                    .findFirst();
        }
    }

    /** The shapes of the self-check: rows, runs, bytes of a run. They range from one line to more than a first-level cache. */
    private static final int[][] CHECKED = {
        {1, 1, 64}, {1, 3, 128}, {2, 2, 192}, {3, 1, 1024}, {2, 5, 4096}, {1, 1, 64 << 10}
    };

    /** How far the self-check's sources are from the beginning of a line. Destinations have to be at one. */
    private static final int[] CHECKED_OFFSETS = {0, 1, 8, 33};

    private static final byte UNTOUCHED = 0x5a;

    /** Made when it is first asked for. */
    private static final class OfThisMachine {
        private static final Optional<CopyKernel> KERNEL = load(most(property()), Processor.current(), CopyKernel::new);
    }

    private final Vectors vectors;
    private final MethodHandle copyPastCaches;
    private final MethodHandle digestPastCaches;
    private final MethodHandle digest;

    CopyKernel(Vectors vectors) {
        this(
                vectors,
                function(CopyKernelCode.copy(vectors.width, false, true)),
                function(CopyKernelCode.copy(vectors.width, true, true)),
                function(CopyKernelCode.copy(vectors.width, true, false)));
    }

    /** Binds the functions of {@link CopyKernelCode#copy}. */
    CopyKernel(Vectors vectors, MethodHandle copyPastCaches, MethodHandle digestPastCaches, MethodHandle digest) {
        this.vectors = vectors;
        this.copyPastCaches = copyPastCaches;
        this.digestPastCaches = digestPastCaches;
        this.digest = digest;
    }

    /**
     * The kernel of this process; empty if {@value #PROPERTY} says {@code java}, or the processor or the system lacks a feature that the
     * kernel needs, or the self-check fails.
     *
     * @throws IllegalArgumentException if {@value #PROPERTY} has a value that it cannot have
     */
    public static Optional<CopyKernel> ofThisMachine() {
        return ofThisMachine(property());
    }

    private static String property() {
        return System.getProperty(PROPERTY, "kernel");
    }

    static Optional<CopyKernel> ofThisMachine(String property) {
        if (property.equals("java")) {
            LOG.info("memory is copied by Java: {}=java", PROPERTY);
            return Optional.empty();
        }
        most(property);
        return OfThisMachine.KERNEL;
    }

    /** The widest vectors that a value of {@value #PROPERTY} allows. */
    private static Vectors most(String property) {
        return property.equals("kernel")
                ? Vectors.OF_512_BITS
                : Arrays.stream(Vectors.values())
                        .filter(vectors -> property.equals(String.valueOf(vectors.bits())))
                        .findFirst()
                        .orElseThrow(() -> new IllegalArgumentException(
                                "%s=%s must be kernel, 512, 256, 128 or java".formatted(PROPERTY, property)));
    }

    static Optional<CopyKernel> load(Vectors most, Processor processor, Function<Vectors, CopyKernel> maker) {
        Optional<Vectors> vectors = most.widest(processor);
        if (vectors.isEmpty()) {
            LOG.info(
                    "memory is copied by Java: {} here, machine code takes linux-x86_64 with {}",
                    processor.platform(),
                    String.join(", ", Vectors.OF_128_BITS.instructionSets()));
            return Optional.empty();
        }
        try {
            CopyKernel kernel = maker.apply(vectors.get());
            Optional<String> difference = kernel.selfCheck();
            difference.ifPresent(what -> LOG.warn(
                    "memory is copied by Java: the self-check of the copying kernel failed on {}: {}",
                    processor.name(),
                    what));
            return difference.isPresent() ? Optional.empty() : Optional.of(kernel);
        } catch (RuntimeException e) {
            LOG.info("memory is copied by Java: {}", e.toString());
            return Optional.empty();
        }
    }

    /** Bits of the vectors that it copies with. */
    public int vectorBits() {
        return vectors.bits();
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
                            .or(() -> checkDigests(arena, random, digests, offset, true))
                            .or(() -> checkRows(arena, random, digests, offset));
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

    /** Rows that change places: the first becomes the last one. */
    private Optional<String> checkRows(Arena arena, Random random, RunDigests digests, int offset) {
        int count = 2 * digests.runs();
        int bytes = digests.runBytes();
        Sample sample = Sample.of(arena, random, (long) count * bytes, offset);
        MemorySegment from = sample.copy.from();
        MemorySegment to = sample.copy.to();
        Rows rows = new Rows(from.address(), to.address() + (count - 1L) * bytes, count, bytes, bytes, -bytes);
        Work work = new Work(arena, Work.MOST_ROWS);
        copyRows(rows, true, true, work);
        for (int row = 0; row < count; row++) {
            MemorySegment source = from.asSlice((long) row * bytes, bytes);
            MemorySegment target = to.asSlice((count - 1L - row) * bytes, bytes);
            CRC32C crc = new CRC32C();
            crc.update(source.asByteBuffer());
            int begin = Crc32cPowers.multiply(-1, Crc32cPowers.power(bytes));
            if (source.mismatch(target) >= 0 || (int) crc.getValue() != ~(work.register(row, count) ^ begin)) {
                return Optional.of("row %d of %d differs".formatted(row, count));
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
        return copy.bytes() > 0 && copy.bytes() % SIDE_BY_SIDE == 0 && takesDestination(copy);
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
     * Copies two ranges and digests them. A range that is given twice is copied twice, line by line: the destination keeps the bytes that
     * the second lane digested.
     *
     * @param work has the digests afterwards
     */
    void digest(Copy one, Copy other, RunDigests digests, boolean pastCaches, Work work) {
        work.set(digests.rows(), digests.runs(), digests.runBytes());
        call(pastCaches ? digestPastCaches : digest, one, other, work);
    }

    /**
     * Copies rows, by addresses, an even number of them, the first half beside the other. Nothing keeps the memory alive but the caller, and no
     * count of its users is changed, for which threads would wait for each other.
     *
     * @param isDigested whether the work has registers of the rows afterwards, which begin with zeros
     */
    void copyRows(Rows rows, boolean isDigested, boolean pastCaches, Work work) {
        int half = rows.count() / CopyKernelCode.LANES;
        work.set(1, half, rows.rowBytes());
        work.skip(rows.fromStride() - rows.rowBytes(), rows.toStride() - rows.rowBytes());
        if (isDigested) {
            work.clearRegisters(half);
        }
        call(
                isDigested ? pastCaches ? digestPastCaches : digest : copyPastCaches,
                MemorySegment.ofAddress(rows.to()),
                MemorySegment.ofAddress(rows.from()),
                MemorySegment.ofAddress(rows.to() + half * rows.toStride()),
                MemorySegment.ofAddress(rows.from() + half * rows.fromStride()),
                work);
    }

    /**
     * Rows to copy.
     *
     * @param from address of the first one
     * @param to address of the first one
     * @param fromStride from one row to the next
     */
    record Rows(long from, long to, int count, long rowBytes, long fromStride, long toStride) {}

    /** Whether {@link #copyRows} takes them. */
    static boolean takes(Rows rows) {
        return rows.count() % CopyKernelCode.LANES == 0
                && rows.count() / CopyKernelCode.LANES <= Work.MOST_ROWS
                && rows.rowBytes() % CopyKernelCode.LINE == 0
                && rows.to() % CopyKernelCode.LINE == 0
                && rows.toStride() % CopyKernelCode.LINE == 0;
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

    /** The state of a thread. */
    static final class Work {
        /** The limit of rows in each of two ranges, for {@link #copyRows}. */
        static final int MOST_ROWS = 64;

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
            skip(0, 0);
            memory.asSlice(CopyKernelCode.digestAt(0, 0)).fill((byte) 0xff);
        }

        private void skip(long from, long to) {
            memory.set(LONG, CopyKernelCode.FROM_SKIP_AT, from);
            memory.set(LONG, CopyKernelCode.TO_SKIP_AT, to);
        }

        private void clearRegisters(int count) {
            long at = CopyKernelCode.digestAt(0, 0);
            memory.asSlice(at, CopyKernelCode.digestAt(count, 0) - at).fill((byte) 0);
        }

        /** The register of a row. */
        int register(int row, int count) {
            int half = count / CopyKernelCode.LANES;
            return memory.get(INT, CopyKernelCode.digestAt(row % half, row / half));
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
