package baton.cuda.kernel;

import static baton.cuda.ptx.PtxAssembler.f32;
import static baton.cuda.ptx.PtxAssembler.u32;

import baton.cuda.ptx.Is;
import baton.cuda.ptx.Operand.F32;
import baton.cuda.ptx.Operand.U32;
import baton.cuda.ptx.Operand.U64;
import baton.cuda.ptx.PtxAssembler;
import baton.cuda.ptx.PtxKernel;
import baton.kv.DType;

/**
 * The code of a product in fp32, without matrix products: of weights in fp32, and of weights with rows that are not aligned to 16 bytes. Each sum takes
 * the inputs in their order.
 *
 * @param rows of a block
 */
record PlainProduct(ProductOperands.Of of, DType type, int rows) {
    /** Outputs of a block. */
    static final int OUTPUTS = 64;

    private static final int STEP = 32;
    private static final int THREADS = 128;
    /** Numbers of a line of weights in shared memory: so many that 8 lanes that load 16 bytes each use all banks. */
    private static final int LINE = STEP + 4;

    private static final int TOGETHER = 4;

    String name() {
        return "product_plain_" + of + "_" + type + "_" + rows;
    }

    PtxKernel kernel() {
        PtxAssembler k = new PtxAssembler(name(), THREADS);
        ProductOperands operands = new ProductOperands(k, of, type);
        U32 weightLines = k.shared(OUTPUTS * LINE * Float.BYTES);
        U32 rowLines = k.shared(rows * LINE * Float.BYTES);
        U32 thread = k.thread();
        U32 output = k.rem(thread, OUTPUTS);
        int rowsOfThread = rows * OUTPUTS / THREADS;
        U32 row = k.mul(k.div(thread, OUTPUTS), rowsOfThread);
        U32 firstOutput = k.mul(k.blockX(), OUTPUTS);
        U32 outputLine = k.mad(output, LINE * Float.BYTES, weightLines);
        U32 rowLine = k.mad(row, LINE * Float.BYTES, rowLines);
        k.loop(k.mul(k.blockY(), rows), operands.rows, k.mul(k.blocksY(), rows), firstRow -> {
            F32[] sums = k.variables(rowsOfThread, f32(0));
            k.loop(u32(0), operands.inputs, u32(STEP), input -> {
                fill(k, operands, weightLines, OUTPUTS, input, line -> operands.weight(k.add(firstOutput, line)));
                fill(k, operands, rowLines, rows, input, line -> operands.input(k.add(firstRow, line)));
                k.barrier();
                for (int i = 0; i < STEP; i += TOGETHER) {
                    F32[] weights = k.load(DType.F32, TOGETHER, outputLine, i * Float.BYTES);
                    for (int r = 0; r < rowsOfThread; r++) {
                        F32[] ofRow = k.load(DType.F32, TOGETHER, rowLine, (r * LINE + i) * Float.BYTES);
                        for (int j = 0; j < TOGETHER; j++) {
                            k.accumulate(sums[r], weights[j], ofRow[j]);
                        }
                    }
                }
                k.barrier();
            });
            U32[] toRows = new U32[rowsOfThread];
            F32[][] ofRows = new F32[rowsOfThread][];
            for (int r = 0; r < rowsOfThread; r++) {
                toRows[r] = k.add(k.add(firstRow, row), r);
                ofRows[r] = new F32[] {sums[r]};
            }
            operands.store(toRows, new U32[] {k.add(firstOutput, output)}, ofRows);
        });
        return k.kernel();
    }

    private interface Lines {
        U64 line(U32 number);
    }

    /** Fills lines of shared memory with a step's inputs, and with zeros behind the last one. */
    private void fill(PtxAssembler k, ProductOperands operands, U32 to, int lines, U32 input, Lines from) {
        U32 own = k.rem(k.thread(), STEP);
        U32 place = k.add(input, own);
        k.loop(k.div(k.thread(), STEP), u32(lines), u32(THREADS / STEP), line -> {
            F32 number = k.variable(f32(0));
            k.when(
                    k.test(place, Is.LT, operands.inputs),
                    () -> k.set(number, k.load(type, k.at(from.line(line), place, type.bytes()), 0)));
            k.store(DType.F32, k.mad(k.mad(line, LINE, own), Float.BYTES, to), 0, number);
        });
    }
}
