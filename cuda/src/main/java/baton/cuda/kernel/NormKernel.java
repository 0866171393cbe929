package baton.cuda.kernel;

import static baton.cuda.ptx.PtxAssembler.f32;
import static baton.cuda.ptx.PtxAssembler.u32;
import static baton.cuda.ptx.PtxAssembler.u64;

import baton.cuda.driver.Gpu.Stream;
import baton.cuda.ptx.Is;
import baton.cuda.ptx.Operand.F32;
import baton.cuda.ptx.Operand.Pred;
import baton.cuda.ptx.Operand.U32;
import baton.cuda.ptx.Operand.U64;
import baton.cuda.ptx.PtxAssembler;
import baton.cuda.ptx.PtxKernel;
import baton.kv.DType;
import java.util.ArrayList;
import java.util.List;

/**
 * The code of norms. A head is normalised by a warp or, if it is long, by a block. Each thread adds the squares of its elements in their
 * order, then the threads' sums are added.
 *
 * @param group threads of a head
 * @param elements neighbours that a thread loads together
 */
record NormKernel(DType from, DType to, int group, int elements) {
    private static final int THREADS = 256;
    private static final int MOST_OF_WARP = 512;
    private static final int TOGETHER = 4;

    static List<PtxKernel> kernels(DType from, DType to) {
        List<PtxKernel> kernels = new ArrayList<>();
        for (int group : new int[] {PtxAssembler.WARP, THREADS}) {
            for (int elements : new int[] {TOGETHER, 1}) {
                kernels.add(new NormKernel(from, to, group, elements).kernel());
            }
        }
        return kernels;
    }

    static void launch(
            Functions functions,
            Stream stream,
            DeviceRows from,
            long weights,
            long bias,
            double eps,
            boolean centered,
            DeviceRows to) {
        int elements = from.isAligned(TOGETHER) && to.isAligned(TOGETHER) ? TOGETHER : 1;
        int group = from.columns() <= MOST_OF_WARP ? PtxAssembler.WARP : THREADS;
        int heads = Math.multiplyExact(from.rows(), from.heads());
        functions.launch(
                stream,
                new NormKernel(from.type(), to.type(), group, elements).name(),
                Math.ceilDiv(heads, THREADS / group),
                new Arguments()
                        .add(from)
                        .add(to)
                        .add(weights)
                        .add(bias)
                        .add(eps)
                        .add(centered ? 1 : 0)
                        .add(heads)
                        .add(from.heads())
                        .add(from.columns())
                        .toArray());
    }

    private String name() {
        return "norm_" + from + "_" + to + "_" + group + "_" + elements;
    }

    private PtxKernel kernel() {
        PtxAssembler k = new PtxAssembler(name(), THREADS);
        View source = View.parameters(k, "from", from);
        View target = View.parameters(k, "to", to);
        U64 weights = k.parameterU64("weights");
        U64 bias = k.parameterU64("bias");
        F32 eps = k.parameterF32("eps");
        Pred centered = k.test(k.parameterU32("centered"), Is.NE, 0);
        U32 count = k.parameterU32("count");
        U32 heads = k.parameterU32("heads");
        U32 columns = k.parameterU32("columns");

        boolean ofWarp = group == PtxAssembler.WARP;
        U32 number = ofWarp ? k.mad(k.blockX(), THREADS / group, k.warp()) : k.blockX();
        U32 first = k.mul(ofWarp ? k.lane() : k.thread(), elements);
        U32 scratch = k.shared(k.scratchBytes());
        k.exitIf(k.test(number, Is.GE, count));
        U32 row = k.div(number, heads);
        U32 head = k.rem(number, heads);
        U64 in = source.at(k, row, head);
        U64 out = target.at(k, row, head);
        F32 divisor = k.toF32(columns);

        F32 mean = k.variable(f32(0));
        k.when(centered, () -> {
            F32 sum = k.variable(f32(0));
            each(k, first, columns, in, (_, loaded) -> {
                for (F32 element : loaded) {
                    k.set(sum, k.add(sum, element));
                }
            });
            k.set(mean, k.div(together(k, sum, scratch), divisor));
        });
        F32 squares = k.variable(f32(0));
        each(k, first, columns, in, (_, loaded) -> {
            for (F32 element : loaded) {
                F32 deviation = k.sub(element, mean);
                k.accumulate(squares, deviation, deviation);
            }
        });
        F32 root = k.sqrt(k.add(k.div(together(k, squares, scratch), divisor), eps));
        F32 scale = k.div(f32(1), root);
        Pred biased = k.test(bias, Is.NE, u64(0));
        each(k, first, columns, in, (column, loaded) -> {
            F32[] factors = k.load(DType.F32, elements, k.at(weights, column, Float.BYTES), 0);
            F32[] results = new F32[elements];
            for (int i = 0; i < elements; i++) {
                F32 added = k.loadWhere(biased, k.at(bias, column, Float.BYTES), i * Float.BYTES);
                results[i] = k.fma(k.mul(k.sub(loaded[i], mean), scale), factors[i], added);
            }
            k.store(to, k.at(out, column, to.bytes()), 0, results);
        });
        return k.kernel();
    }

    private interface Columns {
        void accept(U32 column, F32[] loaded);
    }

    private void each(PtxAssembler k, U32 first, U32 columns, U64 in, Columns body) {
        k.loop(
                first,
                columns,
                u32(group * elements),
                column -> body.accept(column, k.load(from, elements, k.at(in, column, from.bytes()), 0)));
    }

    private F32 together(PtxAssembler k, F32 sum, U32 scratch) {
        return group == PtxAssembler.WARP
                ? k.acrossLanes(sum, PtxAssembler.WARP, k::add)
                : k.acrossBlock(sum, scratch, k::add);
    }
}
