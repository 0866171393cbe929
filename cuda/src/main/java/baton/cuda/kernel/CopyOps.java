package baton.cuda.kernel;

import baton.cuda.driver.Gpu.Stream;
import baton.cuda.ptx.Is;
import baton.cuda.ptx.Operand.Pred;
import baton.cuda.ptx.Operand.U32;
import baton.cuda.ptx.Operand.U64;
import baton.cuda.ptx.PtxAssembler;
import baton.cuda.ptx.PtxKernel;
import java.util.List;

/** Copies of many rows and digests of many runs of memory, each by one launch. */
public record CopyOps(Functions functions) {
    private static final int THREADS = 256;

    /** Numbers that describe rows to {@link #copy}. */
    public static final int ROWS_WORDS = 6;

    /** Blocks of threads that copy rows. */
    private static final int BLOCKS = 8;

    static List<PtxKernel> kernels() {
        return List.of(copyKernel(), new DigestKernel().kernel());
    }

    private static PtxKernel copyKernel() {
        PtxAssembler k = new PtxAssembler("copy", THREADS);
        U64 rows = k.parameterU64("rows");
        U64 row = k.at(rows, k.blockX(), ROWS_WORDS * Long.BYTES);
        U64 from = k.loadU64(row, 0);
        U64 fromStride = k.loadU64(row, Long.BYTES);
        U64 to = k.loadU64(row, 2 * Long.BYTES);
        U64 toStride = k.loadU64(row, 3 * Long.BYTES);
        U32 count = k.narrow(k.loadU64(row, 4 * Long.BYTES));
        U64 bytes = k.loadU64(row, 5 * Long.BYTES);
        k.when(
                isAligned(k, from, fromStride, to, toStride, bytes),
                () -> copyRuns(k, from, fromStride, to, toStride, count, bytes, PtxAssembler.ACCESS),
                () -> copyRuns(k, from, fromStride, to, toStride, count, bytes, 1));
        return k.kernel();
    }

    private static void copyRuns(
            PtxAssembler k, U64 from, U64 fromStride, U64 to, U64 toStride, U32 count, U64 bytes, int piece) {
        U32 pieces = k.div(k.narrow(bytes), piece);
        U32 thread = k.mad(k.blockY(), THREADS, k.thread());
        k.loop(thread, k.mul(pieces, count), PtxAssembler.u32(THREADS * BLOCKS), each -> {
            U64 source = k.variable(k.at(from, each, piece));
            U64 target = k.variable(k.at(to, each, piece));
            // Divisions take longer than the copy of a piece.
            k.when(k.test(count, Is.GT, 1), () -> {
                U32 run = k.div(each, pieces);
                U32 at = k.rem(each, pieces);
                k.set(source, k.at(k.at(from, run, fromStride), at, piece));
                k.set(target, k.at(k.at(to, run, toStride), at, piece));
            });
            if (piece == 1) {
                k.storeU8(target, 0, k.loadU8(source, 0));
            } else {
                k.storeU32(target, 0, k.loadU32s(piece / Integer.BYTES, source, 0));
            }
        });
    }

    /** Whether all numbers are multiples of {@link PtxAssembler#ACCESS}. */
    static Pred isAligned(PtxAssembler k, U64... numbers) {
        U32 all = k.narrow(numbers[0]);
        for (int i = 1; i < numbers.length; i++) {
            all = k.or(all, k.narrow(numbers[i]));
        }
        return k.test(k.and(all, PtxAssembler.ACCESS - 1), Is.EQ, 0);
    }

    /**
     * Copies runs of bytes, which do not overlap.
     *
     * @param rows address of {@link #ROWS_WORDS} u64 for each: the components of {@link baton.kv.KvCopier.Rows}, with addresses for
     *     offsets
     */
    public void copy(Stream stream, long rows, int count) {
        functions.launch(stream, "copy", count, BLOCKS, 1, 0, rows);
    }

    /**
     * Computes digests of {@link baton.kv.KvDigest#SUM61}.
     *
     * @param runs address of four u64 for each digest, as of {@link baton.kv.KvCopier.Runs}: the address of the first run, a multiple of 4 as
     *     the distance of runs is, this distance, the number of runs and the bytes of one, less than 4 GiB
     * @param digests address of a u64 for each digest
     */
    public void digest(Stream stream, long runs, int count, long digests) {
        functions.launch(stream, DigestKernel.NAME, count, runs, digests);
    }
}
