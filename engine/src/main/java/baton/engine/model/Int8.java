package baton.engine.model;

import baton.engine.model.Weights.Owned;
import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Dispatcher;
import org.bytedeco.pytorch.GenericList;
import org.bytedeco.pytorch.IValue;
import org.bytedeco.pytorch.IValueVector;
import org.bytedeco.pytorch.OperatorHandle;
import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.ScalarTypeOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

/**
 * Weights as 8-bit integers with one scale for each output channel: {@code weight[o, i] ~ scale[o] * q[o, i]}, q from -127 to 127.
 *
 * <p>oneDNN multiplies 8-bit integers with 8-bit integers (AMX, VNNI) and reads packed weights at the speed of memory, which
 * LibTorch's kernel of 8-bit weights and wide activations does not. So that activations lose nothing that matters, each row of
 * them is given as two rows of integers: {@code x[i] ~ max|x| / 127 * (high[i] + low[i] / 127)}, 15 bits below the row's largest
 * element. Both rows go through one multiplication, so that weights are read once; sums of products are exact.
 */
final class Int8 implements Linear {
    private static final double LEVELS = 127;

    /** Stands for the largest magnitude of zeros. */
    private static final double SMALLEST = 1e-30;

    /**
     * Elements of activations or products in fp32 that are worked on together: few enough to be in cache, and in memory that the
     * allocator keeps.
     */
    private static final long ELEMENTS = 1L << 20;

    /** Rows of activations at least that are multiplied together, since each time all weights are read. */
    private static final long ROWS = 64;

    /** Rows of a matrix that are quantised together, so that what that takes beside stays small. */
    private static final int QUANTIZED_ROWS = 4096;

    private final OperatorHandle product;

    /** Of the product; the first, the activations, is null. */
    private final IValue[] arguments;

    private final long outputs;
    private final long inputs;

    private Int8(OperatorHandle product, IValue[] arguments, long outputs, long inputs) {
        this.product = product;
        this.arguments = arguments;
        this.outputs = outputs;
        this.inputs = inputs;
    }

    /** The matrix [out, in], which is not needed afterwards; what is made belongs to {@code owned}. */
    static Int8 quantize(Tensor matrix, Owned owned) {
        long outputs = matrix.size(0);
        long inputs = matrix.size(1);
        OperatorHandle product = owned.add(operator("onednn::qlinear_pointwise"));
        Tensor scales = owned.add(LibTorch.empty(ScalarType.Float, outputs));
        Tensor zeroPoints = owned.add(LibTorch.empty(ScalarType.Int, outputs));
        try (PointerScope _ = new PointerScope()) {
            zeroPoints.zero_();
            Tensor quantized = LibTorch.empty(ScalarType.Char, outputs, inputs);
            quantize(matrix, quantized, scales);
            Tensor packed = call(operator("onednn::qlinear_prepack"), new IValue(quantized), new IValue());
            long bytes;
            try (IValueVector stack = new IValueVector(new IValue(packed))) {
                operator("mkldnn::_nbytes").callBoxed(stack);
                bytes = stack.get(0).toInt();
            }
            owned.count(bytes + outputs * (Float.BYTES + Integer.BYTES));
            // The product's own type of "no further operations".
            GenericList none = new GenericList(
                    product.schema().arguments().getPointer(11).type().get().containedType(0));
            IValue[] arguments = {
                null,
                new IValue(1.0),
                new IValue(0L),
                new IValue(packed),
                new IValue(scales),
                new IValue(zeroPoints),
                new IValue(),
                new IValue(1.0),
                new IValue(0L),
                new IValue(ScalarType.Float),
                new IValue("none"),
                new IValue(none),
                new IValue("none")
            };
            for (int i = 1; i < arguments.length; i++) {
                owned.add(arguments[i]);
            }
            return new Int8(product, arguments, outputs, inputs);
        }
    }

    /** Rounds a matrix [out, in] into {@code quantized}, of as many integers, and {@code scales}, [out]. */
    static void quantize(Tensor matrix, Tensor quantized, Tensor scales) {
        long outputs = matrix.size(0);
        for (long first = 0; first < outputs; first += QUANTIZED_ROWS) {
            try (PointerScope _ = new PointerScope()) {
                long rows = Math.min(QUANTIZED_ROWS, outputs - first);
                Tensor part = matrix.narrow(0, first, rows);
                Tensor scale = largest(part).div(new Scalar(LEVELS));
                quantized.narrow(0, first, rows).copy_(part.div(scale).round_());
                scales.narrow(0, first, rows).copy_(scale.view(rows));
            }
        }
    }

    @Override
    public Tensor apply(Tensor rows) {
        Tensor out = LibTorch.empty(rows.scalar_type(), rows.size(0), outputs);
        multiply(rows, (first, length, product, scale) -> torch.mul_out(out.narrow(0, first, length), product, scale));
        return out;
    }

    @Override
    public void addTo(Tensor x, Tensor rows) {
        multiply(
                rows,
                (first, length, product, scale) -> x.narrow(0, first, length).addcmul_(product, scale));
    }

    /** Called when the result's rows from {@code first} on are {@code product} [length, out] times {@code scale} [length, 1]. */
    private interface Sink {
        void take(long first, long length, Tensor product, Tensor scale);
    }

    private void multiply(Tensor rows, Sink sink) {
        long total = rows.size(0);
        long piece = Math.max(ROWS, ELEMENTS / Math.max(inputs, outputs));
        for (long first = 0; first < total; first += piece) {
            try (PointerScope _ = new PointerScope()) {
                long length = Math.min(piece, total - first);
                Tensor part = rows.narrow(0, first, length);
                Tensor scale = largest(part).div_(new Scalar(LEVELS));
                Tensor scaled = part.div(scale);
                Tensor planes = LibTorch.empty(ScalarType.Char, 2 * length, inputs);
                // Conversion cuts off the fraction, which is what is left for the second plane.
                planes.narrow(0, 0, length).copy_(scaled);
                planes.narrow(0, length, length)
                        .copy_(scaled.frac_().mul_(new Scalar(LEVELS)).round_());
                IValue[] all = arguments.clone();
                all[0] = new IValue(planes);
                Tensor products = call(product, all);
                Tensor high = products.narrow(0, 0, length);
                high.add_(products.narrow(0, length, length), new Scalar(1 / LEVELS));
                sink.take(first, length, high, scale);
            }
        }
    }

    /** The largest magnitude of each row, [rows, 1] in fp32, and not zero. */
    private static Tensor largest(Tensor rows) {
        try (ScalarTypeOptional type = new ScalarTypeOptional(ScalarType.Float)) {
            return torch.linalg_vector_norm(rows, new Scalar(Double.POSITIVE_INFINITY), new long[] {1}, true, type)
                    .clamp_min_(new Scalar(SMALLEST));
        }
    }

    private static OperatorHandle operator(String name) {
        return Dispatcher.realSingleton().findSchemaOrThrow(name, "");
    }

    /** The operator's only result, which belongs to the caller's scope. */
    private static Tensor call(OperatorHandle operator, IValue... arguments) {
        try (IValueVector stack = new IValueVector(arguments)) {
            operator.callBoxed(stack);
            return new Tensor(stack.get(0).toTensor());
        }
    }
}
