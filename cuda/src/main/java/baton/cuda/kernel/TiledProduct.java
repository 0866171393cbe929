package baton.cuda.kernel;

import static baton.cuda.kernel.FewRowsProduct.CHUNK;
import static baton.cuda.kernel.FewRowsProduct.SUMS;
import static baton.cuda.kernel.FewRowsProduct.TILE_OUTPUTS;
import static baton.cuda.kernel.FewRowsProduct.TILE_ROWS;
import static baton.cuda.ptx.PtxAssembler.f32;
import static baton.cuda.ptx.PtxAssembler.u32;

import baton.cuda.ptx.Is;
import baton.cuda.ptx.Operand.F32;
import baton.cuda.ptx.Operand.Pred;
import baton.cuda.ptx.Operand.U32;
import baton.cuda.ptx.Operand.U64;
import baton.cuda.ptx.PtxAssembler;
import baton.cuda.ptx.PtxKernel;
import baton.kv.DType;

/**
 * The code of a product of many rows: a block computes a tile of outputs and rows. Its operands are copied to shared memory some steps of
 * inputs ahead. The order of sums is that of {@link FewRowsProduct}: sums of a segment of inputs, which are added to those of the segments before.
 *
 * <p>A step of an output, or of a row, is {@link #LINE} bytes of shared memory. The 8 lanes that load 16 bytes each at once have half of two
 * lines, so halves are exchanged in every other line: no two of the lanes use the same bank.
 *
 * @param outputWarps warps beside each other, each with outputs of its own
 * @param rowWarps warps beside each other, each with rows of its own
 * @param outputTiles outputs of a warp, in tiles of 16
 * @param rowTiles rows of a warp, in tiles of 8
 */
record TiledProduct(ProductOperands.Of of, DType type, int outputWarps, int rowWarps, int outputTiles, int rowTiles) {
    /** Inputs that are copied together. A segment is a multiple of them. */
    static final int STEP = 64;

    private static final int LINE = STEP * Short.BYTES;
    private static final int COPIES_OF_LINE = LINE / PtxAssembler.ACCESS;
    private static final int HALF_LINE = LINE / 2;
    private static final int STAGES = 3;

    int outputs() {
        return outputWarps * outputTiles * TILE_OUTPUTS;
    }

    int rows() {
        return rowWarps * rowTiles * TILE_ROWS;
    }

    int sharedBytes() {
        return STAGES * stageBytes();
    }

    private int stageBytes() {
        return (outputs() + rows()) * LINE;
    }

    private int threads() {
        return outputWarps * rowWarps * PtxAssembler.WARP;
    }

    String name() {
        return "product_tiled_" + of + "_" + type + "_" + outputs() + "_" + rows();
    }

    PtxKernel kernel() {
        PtxAssembler k = new PtxAssembler(name(), threads());
        ProductOperands operands = new ProductOperands(k, of, type);
        U32 shared = k.dynamicShared();
        U32 firstOutput = k.mul(k.blockY(), outputs());
        U32 steps = k.div(k.add(operands.inputs, STEP - 1), STEP);
        U32 stepsOfSegment = k.div(operands.segment, STEP);
        // A thread copies the same part of each of its lines.
        U32 copiedLine = k.div(k.thread(), COPIES_OF_LINE);
        U32 copiedInput = k.mul(k.rem(k.thread(), COPIES_OF_LINE), STEP / COPIES_OF_LINE);
        U32 copiedTo = k.add(
                k.mad(copiedLine, LINE, shared),
                swapped(k, k.mul(k.rem(k.thread(), COPIES_OF_LINE), PtxAssembler.ACCESS), copiedLine));
        int linesAtOnce = threads() / COPIES_OF_LINE;
        U64[] weights = new U64[outputs() / linesAtOnce];
        for (int i = 0; i < weights.length; i++) {
            weights[i] = operands.weight(k.add(k.add(firstOutput, copiedLine), i * linesAtOnce));
        }
        // Where the lane's first output and row are in a stage, for each half of a step.
        U32 group = k.div(k.lane(), CHUNK / FewRowsProduct.OF_LANE);
        U32 inLine = k.mul(k.rem(k.lane(), CHUNK / FewRowsProduct.OF_LANE), PtxAssembler.ACCESS);
        U32 ownOutput = k.mad(k.div(k.warp(), rowWarps), outputTiles * TILE_OUTPUTS, group);
        U32 ownRow = k.mad(k.rem(k.warp(), rowWarps), rowTiles * TILE_ROWS, group);
        U32 place = k.add(shared, swapped(k, inLine, group));
        U32 outputPlace = k.mad(ownOutput, LINE, place);
        U32 rowPlace = k.mad(ownRow, LINE, k.add(place, outputs() * LINE));
        U32 toOtherHalf = k.select(k.test(k.rem(group, 2), Is.EQ, 0), u32(HALF_LINE), u32(-HALF_LINE));

        k.loop(k.mul(k.blockX(), rows()), operands.rows, k.mul(k.blocksX(), rows()), firstRow -> {
            U64[] inputs = new U64[rows() / linesAtOnce];
            for (int i = 0; i < inputs.length; i++) {
                inputs[i] = operands.input(k.add(k.add(firstRow, copiedLine), i * linesAtOnce));
            }
            F32[][] sums = new F32[outputTiles * rowTiles][];
            F32[][] all = new F32[sums.length][];
            for (int i = 0; i < sums.length; i++) {
                sums[i] = k.variables(SUMS, f32(0));
                all[i] = k.variables(SUMS, f32(0));
            }
            U32 copyStep = k.variable(u32(0));
            U32 copyStage = k.variable(u32(0));
            Runnable copy = () -> {
                k.when(k.test(copyStep, Is.LT, steps), () -> {
                    U32 input = k.mad(copyStep, STEP, copiedInput);
                    Pred there = k.test(input, Is.LT, operands.inputs);
                    U32 to = k.add(copiedTo, copyStage);
                    for (int i = 0; i < weights.length; i++) {
                        k.copyAsync(to, i * linesAtOnce * LINE, k.at(weights[i], input, type.bytes()), there);
                    }
                    for (int i = 0; i < inputs.length; i++) {
                        k.copyAsync(
                                to, (outputs() + i * linesAtOnce) * LINE, k.at(inputs[i], input, type.bytes()), there);
                    }
                });
                k.commitCopies();
                k.set(copyStep, k.add(copyStep, 1));
                next(k, copyStage);
            };
            for (int i = 0; i < STAGES - 1; i++) {
                copy.run();
            }
            U32 stage = k.variable(u32(0));
            U32 left = k.variable(stepsOfSegment);
            k.loop(u32(0), steps, u32(1), _ -> {
                k.waitForCopies(STAGES - 2);
                // The copies of all threads are there, and all have multiplied the data that the next copies overwrite.
                k.barrier();
                copy.run();
                U32 a = k.add(outputPlace, stage);
                U32 b = k.add(rowPlace, stage);
                multiply(k, sums, a, b);
                multiply(k, sums, k.add(a, toOtherHalf), k.add(b, toOtherHalf));
                next(k, stage);
                k.set(left, k.sub(left, u32(1)));
                k.when(k.test(left, Is.EQ, 0), () -> {
                    addSegment(k, sums, all);
                    k.set(left, stepsOfSegment);
                });
            });
            addSegment(k, sums, all);
            store(k, operands, all, k.add(firstOutput, ownOutput), firstRow);
            k.waitForCopies(0);
            k.barrier();
        });
        return k.kernel();
    }

    /** Exchanges the halves of every other line. */
    private static U32 swapped(PtxAssembler k, U32 inLine, U32 line) {
        return k.xor(inLine, k.mul(k.rem(line, 2), HALF_LINE));
    }

    private void next(PtxAssembler k, U32 stage) {
        U32 next = k.add(stage, stageBytes());
        k.set(stage, k.select(k.test(next, Is.EQ, sharedBytes()), u32(0), next));
    }

    private void multiply(PtxAssembler k, F32[][] sums, U32 outputs, U32 rows) {
        U32[][] a = new U32[2 * outputTiles][];
        for (int i = 0; i < a.length; i++) {
            a[i] = k.loadU32s(4, outputs, i * TILE_ROWS * LINE);
        }
        U32[][] b = new U32[rowTiles][];
        for (int i = 0; i < b.length; i++) {
            b[i] = k.loadU32s(4, rows, i * TILE_ROWS * LINE);
        }
        FewRowsProduct.multiplyChunk(k, type, sums, a, b);
    }

    private static void addSegment(PtxAssembler k, F32[][] sums, F32[][] all) {
        for (int i = 0; i < sums.length; i++) {
            for (int sum = 0; sum < SUMS; sum++) {
                k.set(all[i][sum], k.add(all[i][sum], sums[i][sum]));
                k.set(sums[i][sum], f32(0));
            }
        }
    }

    private void store(PtxAssembler k, ProductOperands operands, F32[][] all, U32 output, U32 firstRow) {
        U32[] places = new U32[2 * outputTiles];
        for (int i = 0; i < places.length; i++) {
            places[i] = k.add(output, i * TILE_ROWS);
        }
        U32 pair = k.mul(k.rem(k.lane(), CHUNK / FewRowsProduct.OF_LANE), 2);
        U32 row = k.add(firstRow, k.mad(k.rem(k.warp(), rowWarps), rowTiles * TILE_ROWS, pair));
        // A tile after the other, so that registers suffice.
        for (int tile = 0; tile < rowTiles; tile++) {
            F32[][] sums = new F32[2][places.length];
            for (int i = 0; i < places.length; i++) {
                F32[] both = all[i / 2 * rowTiles + tile];
                sums[0][i] = both[i % 2 * 2];
                sums[1][i] = both[i % 2 * 2 + 1];
            }
            U32 first = k.add(row, tile * TILE_ROWS);
            operands.store(new U32[] {first, k.add(first, 1)}, places, sums);
        }
    }
}
