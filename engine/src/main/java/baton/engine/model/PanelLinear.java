package baton.engine.model;

import baton.engine.kernel.PanelMatrix;
import java.lang.foreign.MemorySegment;
import org.bytedeco.pytorch.Tensor;

/** Weights in panels, of which all rows and results are fp32. */
record PanelLinear(PanelMatrix matrix, PanelKernels kernels) implements Linear {
    @Override
    public Tensor apply(Tensor rows) {
        Tensor out = kernels.rows(rows.size(0), matrix.outputs());
        run(matrix::multiply, rows, out);
        return out;
    }

    @Override
    public Tensor applyGated(Linear gate, Tensor rows) {
        if (!(gate instanceof PanelLinear panels) || !matrix.takesGate(panels.matrix)) {
            return Linear.super.applyGated(gate, rows);
        }
        Tensor out = kernels.rows(rows.size(0), matrix.outputs());
        run(
                (from, rowStride, count, to, outStride) ->
                        matrix.multiplyGated(panels.matrix, from, rowStride, count, to, outStride),
                rows,
                out);
        return out;
    }

    @Override
    public void addTo(Tensor x, Tensor rows) {
        run(matrix::add, rows, x);
    }

    private interface Product {
        void of(MemorySegment rows, long rowStride, int count, MemorySegment out, long outStride);
    }

    private static void run(Product product, Tensor rows, Tensor out) {
        product.of(
                LibTorch.memory(rows, LibTorch.rowBytes(rows)),
                rows.stride(0) * Float.BYTES,
                (int) rows.size(0),
                LibTorch.memory(out, LibTorch.rowBytes(out)),
                out.stride(0) * Float.BYTES);
    }
}
