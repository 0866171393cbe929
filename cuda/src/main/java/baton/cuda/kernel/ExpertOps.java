package baton.cuda.kernel;

import static baton.cuda.ptx.PtxAssembler.f32;
import static baton.cuda.ptx.PtxAssembler.u32;
import static baton.cuda.ptx.PtxAssembler.u64;

import baton.cuda.driver.Gpu.Stream;
import baton.cuda.kernel.ProductOperands.Of;
import baton.cuda.ptx.Is;
import baton.cuda.ptx.Operand.F32;
import baton.cuda.ptx.Operand.Pred;
import baton.cuda.ptx.Operand.U32;
import baton.cuda.ptx.Operand.U64;
import baton.cuda.ptx.PtxAssembler;
import baton.cuda.ptx.PtxKernel;
import baton.engine.model.Recipe.Experts;
import baton.kv.DType;
import java.util.List;

/**
 * Mixtures of experts. Each token chooses as many experts; a choice is numbered {@code token * chosen + i}. A result depends on its token and
 * the expert's weight alone.
 */
public record ExpertOps(Functions functions, Products products, ExpertRouting routing) implements AutoCloseable {
    private static final String GROUP = "group";
    private static final String COMBINE = "combine";
    private static final int THREADS = 256;

    static List<PtxKernel> kernels() {
        return List.of(groupKernel(), combineKernel());
    }

    /**
     * Chooses the experts of each row, in the order of their numbers.
     *
     * @param logits in fp32, a column for each expert, and perhaps one for the shared expert
     * @param correction f32 [expert]; 0: there is none
     * @param choices u32 [row][chosen]
     * @param shares f32 [row][chosen]
     * @param sharedShares f32 [row], the sigmoid of the column behind the experts, or 1 if there is none; 0: not computed
     */
    public void route(
            Stream stream,
            DeviceRows logits,
            long correction,
            Experts kind,
            long choices,
            long shares,
            long sharedShares) {
        routing.route(stream, logits, correction, kind, choices, shares, sharedShares);
    }

    /** Bytes of the lists that {@link #group} makes. */
    public static long listBytes(int tokens, int chosen, int experts) {
        return ((long) tokens * chosen + experts + 1) * Integer.BYTES;
    }

    /**
     * Makes lists of the choices of each expert, in their order.
     *
     * @param choices u32 [token][chosen], an expert's number each
     * @param lists memory of {@link #listBytes}
     */
    public void group(Stream stream, long choices, int tokens, int chosen, int experts, long lists) {
        functions.launch(stream, GROUP, experts, choices, Math.multiplyExact(tokens, chosen), lists);
    }

    /**
     * Multiplies by the weights of the experts that were chosen, as {@link Products} does.
     *
     * @param weights of each expert; the address is that of a table of u64 addresses, each aligned to 16 bytes, and so is the bias', unless
     *     it is 0
     * @param lists of {@link #group}
     * @param in a row for each choice, or for each token
     * @param out in fp32, a row for each choice
     * @param chosen experts of a token
     * @param inputPerChoice whether {@code in} has a row for each choice
     */
    public void products(
            Stream stream,
            Weight weights,
            int experts,
            long lists,
            DeviceRows in,
            DeviceRows out,
            int chosen,
            boolean inputPerChoice) {
        int rowsOfInput = inputPerChoice ? 1 : chosen;
        products.launch(
                stream, new Products.Operands(Of.EXPERTS, weights, lists, in, out, experts, rowsOfInput), false);
    }

    /**
     * Adds the experts' results, times their shares, to the tokens' rows: the sum of the choices in their order, then the shared expert's.
     *
     * @param results in fp32, a row for each choice, without gaps
     * @param shares f32 [token][chosen]
     * @param shared result of an expert that computes every token, in fp32 without gaps; 0: there is none
     * @param sharedShares of it, f32 [token]; 0: all are 1
     * @param x in fp32
     */
    public void combine(Stream stream, DeviceRows results, long shares, long shared, long sharedShares, DeviceRows x) {
        int count = Math.multiplyExact(x.rows(), x.columns());
        functions.launch(
                stream,
                COMBINE,
                Math.ceilDiv(count, THREADS),
                new Arguments()
                        .add(x)
                        .add(results.address())
                        .add(shares)
                        .add(x.rows() == 0 ? 0 : results.rows() / x.rows())
                        .add(shared)
                        .add(sharedShares)
                        .add(x.columns())
                        .add(count)
                        .toArray());
    }

    @Override
    public void close() {
        routing.close();
    }

    /** A block makes the list of an expert, each thread from neighbouring choices. */
    private static PtxKernel groupKernel() {
        PtxAssembler k = new PtxAssembler(GROUP, THREADS);
        U64 choices = k.parameterU64("choices");
        U32 count = k.parameterU32("count");
        U64 lists = k.parameterU64("lists");
        U32 scratch = k.shared(2 * THREADS / PtxAssembler.WARP * Integer.BYTES);
        U32 expert = k.blockX();
        U32 experts = k.blocksX();
        U32 ofThread = k.div(k.add(count, THREADS - 1), THREADS);
        U32 start = k.min(k.mul(ofThread, k.thread()), count);
        U32 end = k.min(k.add(start, ofThread), count);
        U32 before = k.variable(u32(0));
        U32 own = k.variable(u32(0));
        k.loop(start, end, u32(1), choice -> {
            U32 chosen = k.loadU32(k.at(choices, choice, Integer.BYTES), 0);
            increment(k, before, k.test(chosen, Is.LT, expert));
            increment(k, own, k.test(chosen, Is.EQ, expert));
        });
        // Sums over the threads up to each, of its warp at first.
        U32 beforeSum = upTo(k, before);
        U32 ownSum = upTo(k, own);
        U32 ofWarp = k.mad(k.warp(), 2 * Integer.BYTES, scratch);
        k.guarded(k.test(k.lane(), Is.EQ, PtxAssembler.WARP - 1), () -> k.storeU32(ofWarp, 0, beforeSum, ownSum));
        k.barrier();
        U32 first = k.variable(u32(0));
        U32 all = k.variable(u32(0));
        U32 place = k.variable(k.sub(ownSum, own));
        for (int warp = 0; warp < THREADS / PtxAssembler.WARP; warp++) {
            U32[] sums = k.loadU32s(2, scratch, warp * 2 * Integer.BYTES);
            k.set(first, k.add(first, sums[0]));
            k.set(all, k.add(all, sums[1]));
            U32 earlier = k.select(k.test(k.warp(), Is.GT, warp), sums[1], u32(0));
            k.set(place, k.add(place, earlier));
        }
        k.when(k.test(k.thread(), Is.EQ, 0), () -> {
            U64 to = k.at(lists, expert, Integer.BYTES);
            k.storeU32(to, 0, first);
            Pred last = k.test(k.add(expert, 1), Is.EQ, experts);
            U32 total = k.add(first, all);
            k.guarded(last, () -> k.storeU32(to, Integer.BYTES, total));
        });
        U64 entries = k.at(lists, k.add(experts, 1), Integer.BYTES);
        k.set(place, k.add(place, first));
        k.loop(start, end, u32(1), choice -> {
            U32 chosen = k.loadU32(k.at(choices, choice, Integer.BYTES), 0);
            k.when(k.test(chosen, Is.EQ, expert), () -> {
                k.storeU32(k.at(entries, place, Integer.BYTES), 0, choice);
                k.set(place, k.add(place, 1));
            });
        });
        return k.kernel();
    }

    private static void increment(PtxAssembler k, U32 counter, Pred condition) {
        k.set(counter, k.add(counter, k.select(condition, u32(1), u32(0))));
    }

    /** The sum of the lanes up to each. */
    private static U32 upTo(PtxAssembler k, U32 value) {
        U32 sum = value;
        for (int distance = 1; distance < PtxAssembler.WARP; distance *= 2) {
            U32 earlier = k.shuffleUp(sum, distance);
            sum = k.add(sum, k.select(k.test(k.lane(), Is.GE, distance), earlier, u32(0)));
        }
        return sum;
    }

    private static PtxKernel combineKernel() {
        PtxAssembler k = new PtxAssembler(COMBINE, THREADS);
        View x = View.parameters(k, "x", DType.F32);
        U64 results = k.parameterU64("results");
        U64 shares = k.parameterU64("shares");
        U32 chosen = k.parameterU32("chosen");
        U64 shared = k.parameterU64("shared");
        U64 sharedShares = k.parameterU64("sharedShares");
        U32 columns = k.parameterU32("columns");
        U32 count = k.parameterU32("count");
        U32 number = k.threadBelow(count);
        U32 token = k.div(number, columns);
        U32 column = k.rem(number, columns);
        U32 first = k.mul(token, chosen);
        F32 sum = k.variable(f32(0));
        k.loop(first, k.add(first, chosen), u32(1), choice -> {
            F32 share = k.load(DType.F32, k.at(shares, choice, Float.BYTES), 0);
            k.accumulate(sum, share, k.load(DType.F32, element(k, results, choice, columns, column), 0));
        });
        k.when(k.test(shared, Is.NE, u64(0)), () -> {
            F32 share = k.variable(f32(1));
            k.when(
                    k.test(sharedShares, Is.NE, u64(0)),
                    () -> k.set(share, k.load(DType.F32, k.at(sharedShares, token, Float.BYTES), 0)));
            k.accumulate(sum, share, k.load(DType.F32, element(k, shared, token, columns, column), 0));
        });
        U64 place = x.at(k, token, u32(0), column);
        k.store(DType.F32, place, 0, k.add(k.load(DType.F32, place, 0), sum));
        return k.kernel();
    }

    private static U64 element(PtxAssembler k, U64 rows, U32 row, U32 columns, U32 column) {
        return k.at(k.at(rows, row, k.wide(k.mul(columns, Float.BYTES))), column, Float.BYTES);
    }
}
