package baton.cuda.kernel;

import baton.cuda.ptx.Is;
import baton.cuda.ptx.Operand.F32;
import baton.cuda.ptx.Operand.Pred;
import baton.cuda.ptx.Operand.U32;
import baton.cuda.ptx.Operand.U64;
import baton.cuda.ptx.PtxAssembler;
import baton.kv.DType;

/**
 * Weights and rows in the code of a product, from the kernel's parameters: of one weight and all rows, of the expert that the block's third
 * number names and the rows that chose it, or of that head of all rows.
 */
final class ProductOperands {
    /** Which rows a kernel multiplies by which weight. */
    enum Of {
        ONE_WEIGHT,
        EXPERTS,
        HEADS
    }

    private final PtxAssembler k;
    private final Of of;
    private final DType type;
    private final U64 in;
    private final U64 inStride;
    private final U64 out;
    private final U64 outStride;
    private final U64 lists;
    private final U32 rowsOfInput;
    private final Pred adds;
    final U32 outputs;
    final U32 inputs;
    final U32 segment;
    final U64 weights;
    final U64 bias;
    /** How many rows there are. */
    final U32 rows;

    ProductOperands(PtxAssembler k, Of of, DType type) {
        this.k = k;
        this.of = of;
        this.type = type;
        U64 weightOrTable = k.parameterU64("weights");
        U64 biasOrTable = k.parameterU64("bias");
        U64 listsOfExperts = k.parameterU64("lists");
        U64 from = k.parameterU64("from");
        this.inStride = k.parameterU64("fromStride");
        U64 to = k.parameterU64("to");
        this.outStride = k.parameterU64("toStride");
        U32 rowsOrExperts = k.parameterU32("rows");
        this.outputs = k.parameterU32("outputs");
        this.inputs = k.parameterU32("inputs");
        this.segment = k.parameterU32("segment");
        this.rowsOfInput = k.parameterU32("rowsOfInput");
        this.adds = k.test(k.parameterU32("adds"), Is.NE, 0);
        // Of heads these two are the bytes from one to the next.
        this.in = of == Of.HEADS ? k.at(from, k.blockZ(), rowsOfInput) : from;
        this.out = of == Of.HEADS ? k.at(to, k.blockZ(), listsOfExperts) : to;
        if (of != Of.EXPERTS) {
            this.weights = of == Of.HEADS ? k.loadU64(k.at(weightOrTable, k.blockZ(), Long.BYTES), 0) : weightOrTable;
            this.bias = biasOrTable;
            this.rows = rowsOrExperts;
            this.lists = listsOfExperts;
        } else {
            U32 expert = k.blockZ();
            U64 ofExpert = k.at(listsOfExperts, expert, Integer.BYTES);
            U32 start = k.loadU32(ofExpert, 0);
            this.rows = k.sub(k.loadU32(ofExpert, Integer.BYTES), start);
            this.weights = k.loadU64(k.at(weightOrTable, expert, Long.BYTES), 0);
            this.lists = k.at(k.at(listsOfExperts, k.add(rowsOrExperts, 1), Integer.BYTES), start, Integer.BYTES);
            this.bias = k.variable(PtxAssembler.u64(0));
            k.when(
                    k.test(biasOrTable, Is.NE, PtxAssembler.u64(0)),
                    () -> k.set(bias, k.loadU64(k.at(biasOrTable, expert, Long.BYTES), 0)));
        }
    }

    /** The address of a weight's row of inputs; of the last one, where there are not as many. */
    U64 weight(U32 output) {
        return k.at(weights, last(output, outputs), k.mul(k.wide(inputs), PtxAssembler.u64(type.bytes())));
    }

    /** The address of a row's inputs; of the last one, where there are not as many. */
    U64 input(U32 row) {
        U32 there = rowOfList(last(row, rows));
        return k.at(in, of == Of.EXPERTS ? k.div(there, rowsOfInput) : there, inStride);
    }

    /** The number, or the last one, if there are not as many. */
    private U32 last(U32 number, U32 count) {
        return k.min(number, k.sub(count, PtxAssembler.u32(1)));
    }

    private U32 rowOfList(U32 row) {
        return of == Of.EXPERTS ? k.loadU32(k.at(lists, row, Integer.BYTES), 0) : row;
    }

    /**
     * Stores sums, of those rows and outputs that there are, with the bias and with the numbers that are there, if they are added.
     *
     * @param sums of each row, one for each output
     */
    void store(U32[] toRows, U32[] toOutputs, F32[][] sums) {
        Pred[] there = new Pred[toOutputs.length];
        F32[] biases = new F32[toOutputs.length];
        Pred biased = k.test(bias, Is.NE, PtxAssembler.u64(0));
        for (int i = 0; i < toOutputs.length; i++) {
            there[i] = k.test(toOutputs[i], Is.LT, outputs);
            biases[i] = k.loadWhere(k.and(biased, there[i]), k.at(bias, toOutputs[i], Float.BYTES), 0);
        }
        // All numbers are loaded before the first one is stored, so that their latency is waited for once.
        U64[][] places = new U64[toRows.length][toOutputs.length];
        F32[][] present = new F32[toRows.length][toOutputs.length];
        Pred[] rowThere = new Pred[toRows.length];
        for (int r = 0; r < toRows.length; r++) {
            rowThere[r] = k.test(toRows[r], Is.LT, rows);
            U64 row = k.at(out, rowOfList(last(toRows[r], rows)), outStride);
            Pred loads = k.and(rowThere[r], adds);
            for (int i = 0; i < toOutputs.length; i++) {
                places[r][i] = k.at(row, toOutputs[i], Float.BYTES);
                present[r][i] = k.loadWhere(k.and(loads, there[i]), places[r][i], 0);
            }
        }
        for (int r = 0; r < toRows.length; r++) {
            for (int i = 0; i < toOutputs.length; i++) {
                F32 result = k.add(k.add(sums[r][i], biases[i]), present[r][i]);
                U64 place = places[r][i];
                k.guarded(k.and(rowThere[r], there[i]), () -> k.store(DType.F32, place, 0, result));
            }
        }
    }
}
