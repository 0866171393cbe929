package baton.cuda.kernel;

import static baton.cuda.ptx.PtxAssembler.f32;

import baton.cuda.driver.Gpu.Stream;
import baton.cuda.ptx.Is;
import baton.cuda.ptx.Operand.F32;
import baton.cuda.ptx.PtxAssembler;
import baton.cuda.ptx.PtxKernel;
import baton.engine.kernel.Activation;
import baton.engine.model.Recipe.Plain.Function;
import baton.kv.DType;
import java.util.ArrayList;
import java.util.List;

/** Functions of rows, of each element or of each head alone. A result depends on its row alone. */
public record RowOps(Functions functions) {
    private static final double GELU_SLOPE = 2 * Math.sqrt(2 / Math.PI);
    private static final double GELU_CUBIC = 0.044715;

    static List<PtxKernel> kernels(DType computed) {
        List<DType> types = types(computed);
        List<ElementKernel> elements = new ArrayList<>(List.of(scale(), scaleAndCap()));
        List<PtxKernel> kernels = new ArrayList<>();
        for (DType type : types) {
            elements.add(add(type));
            for (Activation kind : Activation.values()) {
                elements.add(activate(kind, type));
            }
            for (Function kind : Function.values()) {
                elements.add(function(kind, type));
            }
            for (DType to : types) {
                elements.add(convert(type, to));
                elements.add(gather(type, to));
                kernels.addAll(NormKernel.kernels(type, to));
                kernels.add(new RotationKernel(type, to).kernel());
            }
        }
        elements.forEach(each -> kernels.addAll(each.kernels()));
        return kernels;
    }

    /** Types of rows beside those of the computation. */
    private static List<DType> types(DType computed) {
        return computed == DType.F32 ? List.of(computed) : List.of(computed, DType.F32);
    }

    /** {@code x = factor * table[id]}, of the id of each row. */
    public void embed(Stream stream, long ids, DeviceRows table, float factor, DeviceRows x) {
        gather(table.type(), x.type()).launch(functions, stream, List.of(table), ids, x, factor);
    }

    private static ElementKernel gather(DType from, DType to) {
        return new ElementKernel("gather", List.of(from), to, true, 1, (k, in, numbers) -> k.mul(in[0], numbers[0]));
    }

    /** {@code to[i] = from[indices[i]]}. */
    public void gather(Stream stream, DeviceRows from, long indices, DeviceRows to) {
        embed(stream, indices, from, 1, to);
    }

    /**
     * Normalises each head of each row: divides it by the root of the mean of its squares and {@code eps}, and multiplies it by the weights. A
     * result depends on its head alone.
     *
     * @param weights a number in fp32 for each column
     * @param bias the same; 0: none is added
     * @param centered the head's mean is subtracted before all else
     * @param to may be {@code from}
     */
    public void norm(
            Stream stream, DeviceRows from, long weights, long bias, double eps, boolean centered, DeviceRows to) {
        NormKernel.launch(functions, stream, from, weights, bias, eps, centered, to);
    }

    /**
     * Rotates pairs of elements of each head by the angles of its row's position; the elements behind those that are rotated are copied.
     *
     * @param positions a u32 for each row
     * @param table in fp32, for each position the cosines of all pairs, then the sines
     * @param rotated elements of a head, the first ones
     * @param neighbours whether elements 2i and 2i + 1 are a pair; else i and i + rotated / 2
     * @param to may be {@code from}
     */
    public void rotate(
            Stream stream,
            DeviceRows from,
            long positions,
            long table,
            int rotated,
            boolean neighbours,
            DeviceRows to) {
        new RotationKernel(from.type(), to.type())
                .launch(functions, stream, from, positions, table, rotated, neighbours, to);
    }

    /** {@code to = activation(gate) * up}, with the limits of the kind. The gate and the other product are in fp32. */
    public void activate(Stream stream, DeviceRows gate, DeviceRows up, Activation kind, DeviceRows to) {
        activate(kind, to.type()).launch(functions, stream, List.of(gate, up), to);
    }

    private static ElementKernel activate(Activation kind, DType to) {
        return ElementKernel.of("activate_" + kind, List.of(DType.F32, DType.F32), to, 0, (k, in, _) -> {
            F32 gate = in[0];
            F32 up = in[1];
            return switch (kind) {
                case SILU -> k.mul(k.mul(gate, k.sigmoid(gate)), up);
                case GELU_TANH -> k.mul(gelu(k, gate), up);
                case CLAMPED_SWIGLU -> {
                    F32 below = atMost(k, gate, Activation.SWIGLU_LIMIT);
                    F32 activated = k.mul(below, k.sigmoid(k.mul(below, f32(Activation.SWIGLU_SLOPE))));
                    F32 within = atLeast(k, atMost(k, up, Activation.SWIGLU_LIMIT), -Activation.SWIGLU_LIMIT);
                    yield k.fma(activated, within, activated);
                }
            };
        });
    }

    private static F32 gelu(PtxAssembler k, F32 x) {
        F32 cubic = k.fma(k.mul(k.mul(x, x), x), f32(GELU_CUBIC), x);
        return k.mul(x, k.sigmoid(k.mul(cubic, f32(GELU_SLOPE))));
    }

    /** Limits a number, without {@code min}, which makes a number of NaN. */
    private static F32 atMost(PtxAssembler k, F32 x, float limit) {
        return k.select(k.test(x, Is.GT, f32(limit)), f32(limit), x);
    }

    private static F32 atLeast(PtxAssembler k, F32 x, float limit) {
        return k.select(k.test(x, Is.LT, f32(limit)), f32(limit), x);
    }

    /** {@code to = function(up)}, of elements in fp32. */
    public void function(Stream stream, DeviceRows up, Function kind, DeviceRows to) {
        function(kind, to.type()).launch(functions, stream, List.of(up), to);
    }

    private static ElementKernel function(Function kind, DType to) {
        return ElementKernel.of("function_" + kind, List.of(DType.F32), to, 0, (k, in, _) -> switch (kind) {
            case GELU_TANH -> gelu(k, in[0]);
            case RELU_SQUARED -> {
                F32 positive = atLeast(k, in[0], 0);
                yield k.mul(positive, positive);
            }
        });
    }

    /** {@code x += factor * addend}, of x in fp32. */
    public void add(Stream stream, DeviceRows addend, float factor, DeviceRows x) {
        add(addend.type()).launch(functions, stream, List.of(x, addend), x, factor);
    }

    private static ElementKernel add(DType addend) {
        return ElementKernel.of(
                "add", List.of(DType.F32, addend), DType.F32, 1, (k, in, numbers) -> k.fma(numbers[0], in[1], in[0]));
    }

    /** Copies elements, rounded to the type of {@code to}. */
    public void convert(Stream stream, DeviceRows from, DeviceRows to) {
        convert(from.type(), to.type()).launch(functions, stream, List.of(from), to);
    }

    private static ElementKernel convert(DType from, DType to) {
        return ElementKernel.of("convert", List.of(from), to, 0, (_, in, _) -> in[0]);
    }

    /**
     * Multiplies logits in fp32, then bounds them: {@code cap * tanh(logit / cap)}.
     *
     * @param cap 0: no bound
     */
    public void scaleAndCap(Stream stream, DeviceRows logits, float factor, float cap) {
        if (cap != 0) {
            scaleAndCap().launch(functions, stream, List.of(logits), logits, factor, cap);
        } else if (factor != 1) {
            scale().launch(functions, stream, List.of(logits), logits, factor);
        }
    }

    private static ElementKernel scale() {
        return ElementKernel.of(
                "scale", List.of(DType.F32), DType.F32, 1, (k, in, numbers) -> k.mul(in[0], numbers[0]));
    }

    private static ElementKernel scaleAndCap() {
        return ElementKernel.of(
                "scale_and_cap",
                List.of(DType.F32),
                DType.F32,
                2,
                (k, in, numbers) -> k.mul(k.tanh(k.div(k.mul(in[0], numbers[0]), numbers[1])), numbers[1]));
    }
}
