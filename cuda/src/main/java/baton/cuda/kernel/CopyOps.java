package baton.cuda.kernel;

import baton.cuda.driver.Gpu.Stream;
import baton.cuda.ptx.Is;
import baton.cuda.ptx.Operand.Pred;
import baton.cuda.ptx.Operand.U32;
import baton.cuda.ptx.Operand.U64;
import baton.cuda.ptx.PtxAssembler;
import baton.cuda.ptx.PtxKernel;
import baton.cuda.ptx.PtxWriter;
import java.util.List;

/** Copies and digests of many ranges of memory, each by one launch. */
public final class CopyOps {
    private static final int THREADS = 256;

    /** Blocks that copy a range. */
    private static final int BLOCKS = 8;

    private final Functions functions;

    CopyOps(Functions functions) {
        this.functions = functions;
    }

    static List<PtxKernel> kernels() {
        return List.of(copyKernel(), new DigestKernel().kernel());
    }

    private static PtxKernel copyKernel() {
        PtxAssembler k = new PtxAssembler("copy", THREADS);
        U64 ranges = k.parameterU64("ranges");
        U64 range = k.at(ranges, k.blockX(), 3 * Long.BYTES);
        U64 from = k.loadU64(range, 0);
        U64 to = k.loadU64(range, Long.BYTES);
        U64 bytes = k.loadU64(range, 2 * Long.BYTES);
        U32 thread = k.mad(k.blockY(), THREADS, k.thread());
        k.when(
                isAligned(k, from, to, bytes),
                () -> copyPieces(k, from, to, bytes, thread, PtxAssembler.ACCESS),
                () -> copyPieces(k, from, to, bytes, thread, 1));
        return k.kernel();
    }

    /** Whether all numbers are multiples of {@link PtxAssembler#ACCESS}. */
    static Pred isAligned(PtxAssembler k, U64... numbers) {
        U32 all = k.narrow(numbers[0]);
        for (int i = 1; i < numbers.length; i++) {
            all = k.or(all, k.narrow(numbers[i]));
        }
        return k.test(k.and(all, PtxAssembler.ACCESS - 1), Is.EQ, 0);
    }

    private static void copyPieces(PtxAssembler k, U64 from, U64 to, U64 bytes, U32 thread, int piece) {
        U64 at = k.variable(k.at(PtxAssembler.u64(0), thread, piece));
        PtxWriter.Label start = k.newLabel();
        PtxWriter.Label end = k.newLabel();
        k.place(start);
        k.branchIf(k.test(at, Is.GE, bytes), end);
        U64 source = k.add(from, at);
        U64 target = k.add(to, at);
        if (piece == 1) {
            k.storeU8(target, 0, k.loadU8(source, 0));
        } else {
            k.storeU32(target, 0, k.loadU32s(piece / Integer.BYTES, source, 0));
        }
        k.set(at, k.add(at, (long) THREADS * BLOCKS * piece));
        k.branch(start);
        k.place(end);
    }

    /**
     * Copies ranges, which do not overlap.
     *
     * @param ranges address of three u64 for each range: the addresses that bytes are copied from and to, and their number
     */
    public void copy(Stream stream, long ranges, int count) {
        functions.launch(stream, "copy", count, BLOCKS, 1, 0, ranges);
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
