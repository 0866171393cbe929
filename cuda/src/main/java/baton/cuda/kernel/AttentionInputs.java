package baton.cuda.kernel;

import static baton.cuda.ptx.PtxAssembler.f32;
import static baton.cuda.ptx.PtxAssembler.u32;

import baton.cuda.ptx.Is;
import baton.cuda.ptx.Operand.F32;
import baton.cuda.ptx.Operand.U32;
import baton.cuda.ptx.Operand.U64;
import baton.cuda.ptx.PtxAssembler;
import baton.kv.DType;

/** The common part of all attention kernels: their parameters, and code for a sequence's positions and scores. Weights are powers of two. */
final class AttentionInputs {
    /** Numbers of a sequence: its first row, rows, position of the first row, index of its first entry in the block tables. */
    static final int SEQUENCE_BYTES = 4 * Integer.BYTES;

    private static final double LOG2_E = 1 / Math.log(2);

    final PtxAssembler k;
    final AttentionShape shape;
    final View queries;
    final View results;
    final U32 reach;
    final U32 mostRows;
    private final U64 layer;
    private final U64 blockBytes;
    private final U64 sequences;
    private final U64 tables;
    private final U64 sinks;
    private final F32 factor;
    private final F32 bound;

    /** One attention, as all its kernels need it. */
    record Call(
            DeviceRows queries,
            DeviceRows results,
            long layer,
            long blockBytes,
            long sequences,
            long tables,
            long sinks,
            int reach,
            float scale,
            float cap) {
        /** @param mostRows of the sequences that few-row kernels compute; others compute the rest */
        Arguments arguments(int mostRows) {
            return new Arguments()
                    .add(queries)
                    .add(results)
                    .add(layer)
                    .add(blockBytes)
                    .add(sequences)
                    .add(tables)
                    .add(sinks)
                    .add(reach)
                    .add(mostRows)
                    .add(cap == 0 ? scale * LOG2_E : 2 * scale * LOG2_E / cap)
                    .add(cap * LOG2_E);
        }
    }

    /** A sequence of the kernel's. */
    record Sequence(U32 firstRow, U32 rows, U32 start, U64 table) {}

    AttentionInputs(PtxAssembler k, AttentionShape shape) {
        this.k = k;
        this.shape = shape;
        this.queries = View.parameters(k, "queries", shape.queries());
        this.results = View.parameters(k, "results", shape.results());
        this.layer = k.parameterU64("layer");
        this.blockBytes = k.parameterU64("blockBytes");
        this.sequences = k.parameterU64("sequences");
        this.tables = k.parameterU64("tables");
        this.sinks = k.parameterU64("sinks");
        this.reach = k.parameterU32("reach");
        this.mostRows = k.parameterU32("mostRows");
        this.factor = k.parameterF32("factor");
        this.bound = k.parameterF32("bound");
    }

    Sequence sequence(U32 number) {
        U32[] numbers = k.loadU32s(4, k.at(sequences, number, SEQUENCE_BYTES), 0);
        return new Sequence(numbers[0], numbers[1], numbers[2], k.at(tables, numbers[3], Integer.BYTES));
    }

    /** The first position that a position attends to. */
    U32 first(U32 position) {
        return k.sub(k.max(k.add(position, 1), reach), reach);
    }

    /** The address of a position's entry. */
    U64 entry(Sequence sequence, U32 head, U32 position) {
        U32 block = k.loadU32(k.at(sequence.table, k.div(position, shape.blockSize()), Integer.BYTES), 0);
        U64 ofHead = k.at(k.at(layer, block, blockBytes), head, shape.headBytes());
        return k.at(ofHead, k.rem(position, shape.blockSize()), shape.entryBytes());
    }

    /** The score of a product of query and key. */
    F32 score(F32 product) {
        F32 scaled = k.mul(product, factor);
        if (!shape.capped()) {
            return scaled;
        }
        // bound * tanh(x) is bound - 2 * bound / (exp(2 * x) + 1).
        F32 part = k.div(bound, k.add(k.exp2(scaled), f32(1)));
        return k.fma(part, f32(-2), bound);
    }

    /** The largest score of a query before any position is seen. */
    F32 firstLargest(U32 queryHead) {
        return shape.sinks()
                ? k.mul(k.load(DType.F32, k.at(sinks, queryHead, Float.BYTES), 0), f32(LOG2_E))
                : f32(AttentionShape.NO_SCORE);
    }

    /** The sum of its weights. */
    F32 firstSum() {
        return f32(shape.sinks() ? 1 : 0);
    }

    /** {@code i}, but {@code low} or {@code high - 1} where it is not between them. */
    U32 clamp(U32 i, U32 low, U32 high) {
        return k.min(k.max(i, low), k.sub(high, u32(1)));
    }

    /** Ends threads of a block if its sequence has a number of rows that another kernel computes. */
    void exitUnless(Is is, Sequence sequence) {
        k.exitIf(k.not(k.test(sequence.rows, is, mostRows)));
    }
}
