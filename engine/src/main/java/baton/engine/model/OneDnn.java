package baton.engine.model;

import baton.engine.model.Weights.Owned;
import java.util.Optional;
import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Dispatcher;
import org.bytedeco.pytorch.GenericList;
import org.bytedeco.pytorch.IValue;
import org.bytedeco.pytorch.IValueVector;
import org.bytedeco.pytorch.OperatorHandle;
import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * LibTorch's {@code mkldnn::_linear_pointwise}: products with matrices that oneDNN has laid out for itself beforehand, and with an
 * operation on the result as part of the product. PyTorch's compiler uses them; they have no function of their own in
 * LibTorch's API, so they are called by name.
 */
final class OneDnn {
    private static final Logger LOG = LoggerFactory.getLogger(OneDnn.class);

    /** The number of rows that layouts are chosen for. Those for many rows are also right for few, but not the reverse. */
    private static final int ROWS = 512;

    private final OperatorHandle pack;
    private final OperatorHandle linear;
    private final OperatorHandle binary;
    private final IValue rows;
    private final IValue nothing;
    private final IValue noScalars;
    private final IValue noAlgorithm;
    private final IValue none;
    private final IValue swish;
    private final IValue mul;
    private final IValue add;

    private OneDnn(Owned owned) {
        Dispatcher dispatcher = Dispatcher.singleton();
        pack = LibTorch.keep(dispatcher.findSchemaOrThrow("mkldnn::_reorder_linear_weight", ""), owned);
        linear = LibTorch.keep(dispatcher.findSchemaOrThrow("mkldnn::_linear_pointwise", ""), owned);
        binary = LibTorch.keep(dispatcher.findSchemaOrThrow("mkldnn::_linear_pointwise", "binary"), owned);
        rows = LibTorch.keep(new IValue(ROWS), owned);
        nothing = LibTorch.keep(new IValue(), owned);
        // A list's type is part of its value; the schema has the one that the operator wants.
        noScalars = LibTorch.keep(
                new IValue(new GenericList(torch.parseSchema("f(Scalar?[] x) -> ()")
                        .arguments()
                        .type()
                        .get()
                        .containedType(0))),
                owned);
        noAlgorithm = LibTorch.keep(new IValue(""), owned);
        none = LibTorch.keep(new IValue("none"), owned);
        swish = LibTorch.keep(new IValue("swish"), owned);
        mul = LibTorch.keep(new IValue("mul"), owned);
        add = LibTorch.keep(new IValue("add"), owned);
    }

    /** The operators, if this processor and this LibTorch have them for that type. */
    static Optional<OneDnn> find(ScalarType type, Owned owned) {
        if (type != ScalarType.BFloat16) {
            // oneDNN's fp32 products are no faster than LibTorch's own, and round otherwise.
            return Optional.empty();
        }
        try (PointerScope _ = new PointerScope()) {
            OneDnn found = new OneDnn(owned);
            Tensor ones = LibTorch.empty(type, 16, 16).fill_(new Scalar(1.0));
            found.linear(ones, new IValue(found.pack(ones)));
            return Optional.of(found);
        } catch (RuntimeException e) {
            String why = String.valueOf(e.getMessage()).lines().findFirst().orElse("");
            LOG.info("Weights are not packed for oneDNN, products take about a fifth longer: {}", why);
            return Optional.empty();
        }
    }

    /** The matrix [out, in] in oneDNN's layout, in memory of its own. */
    Tensor pack(Tensor matrix) {
        return call(pack, matrix, rows);
    }

    /** {@code rows} [m, in] times the transposed packed matrix: [m, out]. */
    Tensor linear(Tensor rows, IValue packed) {
        return call(linear, rows, packed, nothing, none, noScalars, noAlgorithm);
    }

    /** The product, and of each element x its x * sigmoid(x). */
    Tensor linearSilu(Tensor rows, IValue packed) {
        return call(linear, rows, packed, nothing, swish, noScalars, noAlgorithm);
    }

    /** The product, times {@code factors} [m, out], element by element. */
    Tensor linearTimes(Tensor rows, Tensor factors, IValue packed) {
        return call(binary, rows, new IValue(factors), packed, nothing, mul);
    }

    /** The product plus {@code x} [m, out]. */
    Tensor linearPlus(Tensor rows, Tensor x, IValue packed) {
        return call(binary, rows, new IValue(x), packed, nothing, add);
    }

    private static Tensor call(OperatorHandle operator, Tensor first, IValue... others) {
        IValue[] arguments = new IValue[others.length + 1];
        arguments[0] = new IValue(first);
        System.arraycopy(others, 0, arguments, 1, others.length);
        IValueVector stack = new IValueVector(arguments);
        operator.callBoxed(stack);
        return stack.get(0).toTensor();
    }
}
