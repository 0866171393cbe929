package baton.cuda.kernel;

import baton.cuda.driver.Gpu.Stream;
import baton.cuda.kernel.ProductOperands.Of;
import baton.cuda.ptx.PtxAssembler;
import baton.cuda.ptx.PtxKernel;
import baton.kv.DType;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;

/**
 * Products of rows with weights: {@code out[row][output] = sum over inputs of in[row][input] * weight[output][input] + bias[output]}, summed in
 * fp32.
 *
 * <p>A result of a method depends on its row and the weight alone, not on how many rows are multiplied with it, nor on its place among them. Sums are
 * divided into segments by the number of inputs; all kernels of a type add in one order. (Of the device's matrix products it is assumed that
 * a sum does not depend on its place in the matrix.) Weights in 16 bits take other kernels, with another order of sums, if they are not aligned.
 */
public final class Products {
    /** Up to as many rows are computed as few. */
    private static final int FEW = 64;
    /** Blocks that keep a device busy; it may have more multiprocessors or fewer. */
    private static final int BUSY = 132;
    /** Blocks of a grid in its second and third dimension. */
    private static final int MOST_BLOCKS = 65535;

    private static final int PLAIN_FEW = 4;
    private static final int PLAIN_MANY = 32;

    private final Functions functions;
    private final Optional<LargeProducts> library;

    Products(Functions functions, DType computed, Optional<LargeProducts> library) {
        this.functions = functions;
        this.library = library;
        if (computed != DType.F32) {
            for (Of of : Of.values()) {
                for (boolean large : new boolean[] {false, true}) {
                    TiledProduct tiled = tiled(of, computed, large);
                    functions.allowShared(tiled.name(), tiled.sharedBytes());
                }
            }
        }
    }

    static List<PtxKernel> kernels(DType computed) {
        List<PtxKernel> kernels = new ArrayList<>();
        for (Of of : Of.values()) {
            kernels.add(new PlainProduct(of, computed, PLAIN_FEW).kernel());
            kernels.add(new PlainProduct(of, computed, PLAIN_MANY).kernel());
            if (computed != DType.F32) {
                for (int outputTiles = 1; outputTiles <= 2; outputTiles *= 2) {
                    for (int rowTiles = 1; rowTiles <= 4; rowTiles *= 2) {
                        kernels.add(new FewRowsProduct(of, computed, outputTiles, rowTiles).kernel());
                    }
                }
                kernels.add(tiled(of, computed, false).kernel());
                kernels.add(tiled(of, computed, true).kernel());
            }
        }
        return kernels;
    }

    /** Tiles of 128 outputs and 128 rows, or of 64 and 64. */
    private static TiledProduct tiled(Of of, DType type, boolean large) {
        return large ? new TiledProduct(of, type, 2, 4, 4, 4) : new TiledProduct(of, type, 2, 2, 2, 4);
    }

    /**
     * Multiplies all rows by a weight.
     *
     * @param in in the type of the weight
     * @param out in fp32
     * @param add adds the results to the numbers that are in {@code out}
     */
    public void product(Stream stream, Weight weight, DeviceRows in, DeviceRows out, boolean add) {
        launch(stream, new Operands(Of.ONE_WEIGHT, weight, 0, in, out, 1, 1), add);
    }

    /**
     * The same, by {@link LargeProducts} where the library is there and computes them. Which of the two methods computes a row is to depend on its own
     * sequence: the bits differ.
     */
    public void productOfLong(Stream stream, Weight weight, DeviceRows in, DeviceRows out, boolean add) {
        boolean done = library.isPresent() && library.get().product(stream, weight, in, out, add);
        if (!done) {
            product(stream, weight, in, out, add);
        }
    }

    /**
     * Multiplies each head of all rows by a weight of its own.
     *
     * @param weights of all heads, without biases; the address is that of a table of u64 addresses, each aligned to 16 bytes
     * @param in rows of heads, in the type of the weights
     * @param out rows of as many heads, in fp32
     */
    public void productOfHeads(Stream stream, Weight weights, DeviceRows in, DeviceRows out) {
        long toNext = out.headStride() * out.type().bytes();
        int fromNext = Math.toIntExact(in.headStride() * in.type().bytes());
        launch(stream, new Operands(Of.HEADS, weights, toNext, in, out, in.heads(), fromNext), false);
    }

    /**
     * The operands of a launch.
     *
     * @param weight of experts and heads with the addresses of tables in place of the weight's and the bias'
     * @param lists rows of each expert; of heads the bytes from one to the next in {@code out}
     * @param experts or heads; 1, if there is one weight
     * @param rowsOfInput results of a row of {@code in}; of heads the bytes from one to the next there
     */
    record Operands(Of of, Weight weight, long lists, DeviceRows in, DeviceRows out, int experts, int rowsOfInput) {
        /** Whether rows can be loaded 16 bytes at once, which all of weights in 16 bits are if their inputs are a multiple of 8. */
        private boolean isAligned() {
            int elements = PtxAssembler.ACCESS / weight.type().bytes();
            return weight.inputs() % elements == 0
                    && (of != Of.ONE_WEIGHT || weight.address() % PtxAssembler.ACCESS == 0)
                    && in.address() % PtxAssembler.ACCESS == 0
                    && in.rowStride() % elements == 0
                    && in.headStride() % elements == 0;
        }
    }

    /** Enqueues a product. */
    void launch(Stream stream, Operands operands, boolean add) {
        Of of = operands.of;
        Weight weight = operands.weight;
        DeviceRows in = operands.in;
        DeviceRows out = operands.out;
        if (in.type() != weight.type() || out.type() != DType.F32) {
            throw new IllegalArgumentException("weights of %s take rows of the same type and give F32, not %s and %s"
                    .formatted(weight.type(), in.type(), out.type()));
        }
        int segment = Math.ceilDiv(Math.ceilDiv(weight.inputs(), FewRowsProduct.SEGMENTS), TiledProduct.STEP)
                * TiledProduct.STEP;
        long[] arguments = {
            weight.address(),
            weight.bias(),
            operands.lists,
            in.address(),
            in.rowStride() * in.type().bytes(),
            out.address(),
            out.rowStride() * out.type().bytes(),
            of == Of.EXPERTS ? operands.experts : out.rows(),
            weight.outputs(),
            weight.inputs(),
            segment,
            operands.rowsOfInput,
            add ? 1 : 0
        };
        // Of each expert as many as if all were chosen as often: a block with more computes them one group after the
        // other.
        int rows = of == Of.HEADS ? out.rows() : Math.ceilDiv(out.rows(), operands.experts);
        int outputs = weight.outputs();
        int experts = rows == 0 ? 0 : operands.experts;
        if (!operands.isAligned() || weight.type() == DType.F32) {
            PlainProduct plain = new PlainProduct(of, weight.type(), rows <= PLAIN_FEW ? PLAIN_FEW : PLAIN_MANY);
            launch(stream, plain.name(), outputs, PlainProduct.OUTPUTS, rows, plain.rows(), experts, arguments);
        } else if (rows <= FEW) {
            int rowTiles = rows <= 8 ? 1 : rows <= 16 ? 2 : 4;
            int outputTiles = (long) outputs * experts >= 4L * FewRowsProduct.TILE_OUTPUTS * BUSY ? 2 : 1;
            FewRowsProduct few = new FewRowsProduct(of, weight.type(), outputTiles, rowTiles);
            launch(stream, few.name(), outputs, few.outputs(), rows, few.rows(), experts, arguments);
        } else {
            TiledProduct large = tiled(of, weight.type(), true);
            boolean suffices =
                    (long) Math.ceilDiv(outputs, large.outputs()) * Math.ceilDiv(rows, large.rows()) * experts >= BUSY;
            TiledProduct tiled = tiled(of, weight.type(), suffices);
            functions.launch(
                    stream,
                    tiled.name(),
                    Math.ceilDiv(rows, tiled.rows()),
                    Math.ceilDiv(outputs, tiled.outputs()),
                    experts,
                    tiled.sharedBytes(),
                    arguments);
        }
    }

    private void launch(
            Stream stream, String name, int outputs, int ofBlock, int rows, int rowsOfBlock, int experts, long... all) {
        int rowBlocks = Math.min(Math.ceilDiv(rows, rowsOfBlock), MOST_BLOCKS);
        functions.launch(stream, name, Math.ceilDiv(outputs, ofBlock), rowBlocks, experts, 0, all);
    }
}
