package baton.cuda.kernel;

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
 * The code of a product of a few rows, where reading the weights takes the time.
 *
 * <p>Each warp of a block multiplies one segment of the inputs, for the same outputs and rows. It loads weights and rows into the registers in
 * which a matrix product takes them: lane l has 8 neighbouring inputs of 16 bytes of the output, or of the row, l / 4. The order of inputs in
 * a product is free, as long as it is the same of both: the first product takes the first four of each lane's inputs, the second one the
 * others. Sums of segments are added in their order.
 *
 * @param outputTiles outputs of a block, in tiles of 16
 * @param rowTiles rows of a block, in tiles of 8
 */
record FewRowsProduct(ProductOperands.Of of, DType type, int outputTiles, int rowTiles) {
    /** Segments of the inputs. */
    static final int SEGMENTS = 8;
    /** Inputs that are multiplied together by the lanes that have an output. */
    static final int CHUNK = 32;

    static final int TILE_OUTPUTS = 16;
    static final int TILE_ROWS = 8;
    /** Sums of a tile that a lane has. */
    static final int SUMS = 4;
    /** Inputs of a lane in a chunk. */
    static final int OF_LANE = 8;

    private static final int LANES_OF_OUTPUT = CHUNK / OF_LANE;
    private static final int UNROLLED = 4;
    private static final int WORDS = 4;

    int outputs() {
        return outputTiles * TILE_OUTPUTS;
    }

    int rows() {
        return rowTiles * TILE_ROWS;
    }

    String name() {
        return "product_few_" + of + "_" + type + "_" + outputTiles + "_" + rowTiles;
    }

    PtxKernel kernel() {
        PtxAssembler k = new PtxAssembler(name(), SEGMENTS * PtxAssembler.WARP);
        ProductOperands operands = new ProductOperands(k, of, type);
        int sumsOfLane = outputTiles * rowTiles * SUMS;
        U32 shared = k.shared(SEGMENTS * sumsOfLane * PtxAssembler.WARP * Float.BYTES);
        U32 lane = k.lane();
        U32 warp = k.warp();
        U32 group = k.div(lane, LANES_OF_OUTPUT);
        U32 ofLane = k.mul(k.rem(lane, LANES_OF_OUTPUT), OF_LANE);
        U32 firstOutput = k.mul(k.blockX(), outputs());
        U32 start = k.mul(warp, operands.segment);
        U32 end = k.min(k.add(start, operands.segment), operands.inputs);
        U64[] weights = new U64[2 * outputTiles];
        for (int i = 0; i < weights.length; i++) {
            weights[i] = operands.weight(k.add(k.add(firstOutput, group), i * TILE_ROWS));
        }
        U32 rowsOfGrid = k.mul(k.blocksY(), rows());
        k.loop(k.mul(k.blockY(), rows()), operands.rows, rowsOfGrid, firstRow -> {
            U64[] inputs = new U64[rowTiles];
            for (int i = 0; i < rowTiles; i++) {
                inputs[i] = operands.input(k.add(k.add(firstRow, group), i * TILE_ROWS));
            }
            F32[][] sums = new F32[outputTiles * rowTiles][];
            for (int i = 0; i < sums.length; i++) {
                sums[i] = k.variables(SUMS, f32(0));
            }
            // Steps of several chunks with all loads under way together, then chunks, of which the last one may have
            // fewer inputs.
            U32 rest = start;
            for (int unrolled = outputTiles == 1 && rowTiles <= 2 ? 2 * UNROLLED : UNROLLED;
                    unrolled >= UNROLLED;
                    unrolled /= 2) {
                rest = steps(k, unrolled, rest, end, ofLane, weights, inputs, sums);
            }
            k.loop(rest, end, u32(CHUNK), input -> {
                U32 own = k.add(input, ofLane);
                Pred there = k.test(own, Is.LT, end);
                multiply(
                        k,
                        1,
                        sums,
                        (i, _) -> loadWhere(k, weights[i], own, there),
                        (i, _) -> loadWhere(k, inputs[i], own, there));
            });
            addSegments(k, operands, shared, sums, firstOutput, firstRow);
        });
        return k.kernel();
    }

    /** Multiplies as many whole chunks at once, as long as there are as many. Returns the first input behind them. */
    private U32 steps(
            PtxAssembler k, int chunks, U32 start, U32 end, U32 ofLane, U64[] weights, U64[] inputs, F32[][] sums) {
        U32 length = k.sub(end, k.min(start, end));
        U32 rest = k.add(start, k.sub(length, k.rem(length, chunks * CHUNK)));
        k.loop(start, rest, u32(chunks * CHUNK), input -> {
            U32 own = k.add(input, ofLane);
            multiply(
                    k,
                    chunks,
                    sums,
                    (i, offset) -> load(k, weights[i], own, offset),
                    (i, offset) -> load(k, inputs[i], own, offset));
        });
        return rest;
    }

    /** Loads a lane's inputs of a chunk, of the i-th row of 8 of a tile. */
    private interface Loads {
        U32[] load(int i, int offset);
    }

    private U32[] load(PtxAssembler k, U64 row, U32 input, int offset) {
        return k.loadConstants(WORDS, k.at(row, input, type.bytes()), offset);
    }

    private U32[] loadWhere(PtxAssembler k, U64 row, U32 input, Pred there) {
        return k.loadConstants(WORDS, k.at(row, input, type.bytes()), 0, there);
    }

    private void multiply(PtxAssembler k, int chunks, F32[][] sums, Loads weights, Loads inputs) {
        U32[][][] a = new U32[chunks][2 * outputTiles][];
        U32[][][] b = new U32[chunks][rowTiles][];
        for (int chunk = 0; chunk < chunks; chunk++) {
            int offset = chunk * CHUNK * type.bytes();
            for (int i = 0; i < a[chunk].length; i++) {
                a[chunk][i] = weights.load(i, offset);
            }
            for (int i = 0; i < rowTiles; i++) {
                b[chunk][i] = inputs.load(i, offset);
            }
        }
        // The compiler moves no load behind this, so all are under way before the first product waits for its own.
        k.warpBarrier();
        for (int chunk = 0; chunk < chunks; chunk++) {
            multiplyChunk(k, type, sums, a[chunk], b[chunk]);
        }
    }

    /**
     * Adds the products of a chunk's inputs.
     *
     * @param sums of tiles, those of the first 16 outputs first
     * @param a of each 8 outputs, 16 bytes of a lane
     * @param b of each 8 rows, 16 bytes of a lane
     */
    static void multiplyChunk(PtxAssembler k, DType type, F32[][] sums, U32[][] a, U32[][] b) {
        for (int half = 0; half < WORDS; half += WORDS / 2) {
            for (int i = 0; i < sums.length; i++) {
                U32[] upper = a[i / b.length * 2];
                U32[] lower = a[i / b.length * 2 + 1];
                U32[] row = b[i % b.length];
                k.multiply(
                        type,
                        sums[i],
                        new U32[] {upper[half], lower[half], upper[half + 1], lower[half + 1]},
                        new U32[] {row[half], row[half + 1]});
            }
        }
    }

    /** The warps write their sums into shared memory; each thread adds some of the segments' sums and stores them. */
    private void addSegments(
            PtxAssembler k, ProductOperands operands, U32 shared, F32[][] sums, U32 firstOutput, U32 firstRow) {
        int ofSegment = sums.length * SUMS * PtxAssembler.WARP;
        U32 own = k.mad(k.mad(k.warp(), ofSegment, k.lane()), Float.BYTES, shared);
        for (int i = 0; i < sums.length * SUMS; i++) {
            k.store(DType.F32, own, i * PtxAssembler.WARP * Float.BYTES, sums[i / SUMS][i % SUMS]);
        }
        k.barrier();
        k.loop(k.thread(), u32(ofSegment), u32(k.threads()), element -> {
            U32 lane = k.rem(element, PtxAssembler.WARP);
            U32 sum = k.rem(k.div(element, PtxAssembler.WARP), SUMS);
            U32 tile = k.div(element, PtxAssembler.WARP * SUMS);
            U32 from = k.mad(element, Float.BYTES, shared);
            F32 all = k.variable(f32(0));
            for (int segment = 0; segment < SEGMENTS; segment++) {
                k.set(all, k.add(all, k.load(DType.F32, from, segment * ofSegment * Float.BYTES)));
            }
            U32 output = k.add(
                    k.mad(k.div(tile, rowTiles), TILE_OUTPUTS, k.mul(k.div(sum, 2), TILE_ROWS)),
                    k.div(lane, LANES_OF_OUTPUT));
            U32 row = k.add(
                    k.mul(k.rem(tile, rowTiles), TILE_ROWS),
                    k.add(k.mul(k.rem(lane, LANES_OF_OUTPUT), 2), k.rem(sum, 2)));
            operands.store(
                    new U32[] {k.add(firstRow, row)}, new U32[] {k.add(firstOutput, output)}, new F32[][] {{all}});
        });
        k.barrier();
    }
}
