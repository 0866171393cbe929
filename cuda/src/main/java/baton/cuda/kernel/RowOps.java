package baton.cuda.kernel;

import baton.cuda.driver.Gpu.Stream;
import baton.cuda.ptx.PtxKernel;
import baton.kv.DType;
import java.util.List;
import java.util.stream.Stream.Builder;

/** Functions of rows, each element or each head for itself. A result depends on its row alone. */
public final class RowOps {
    private final Functions functions;

    RowOps(Functions functions) {
        this.functions = functions;
    }

    static List<PtxKernel> kernels(DType computed) {
        Builder<ElementKernel> kernels = java.util.stream.Stream.builder();
        for (DType type : types(computed)) {
            kernels.add(add(type));
        }
        return kernels.build().flatMap(kernel -> kernel.kernels().stream()).toList();
    }

    /** Types of rows beside those of the computation. */
    private static List<DType> types(DType computed) {
        return computed == DType.F32 ? List.of(computed) : List.of(computed, DType.F32);
    }

    private static ElementKernel add(DType addend) {
        return ElementKernel.of("add", List.of(DType.F32, addend), DType.F32, 1, (k, in, scalars) ->
                k.fma(scalars[0], in[1], in[0]));
    }

    /** {@code x += factor * addend}. */
    public void add(Stream stream, DeviceRows addend, float factor, DeviceRows x) {
        add(addend.type()).launch(functions, stream, List.of(x, addend), x, factor);
    }
}
