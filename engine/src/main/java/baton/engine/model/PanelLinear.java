package baton.engine.model;

import baton.engine.kernel.PanelMatrix;
import org.bytedeco.pytorch.Tensor;

/** Weights in panels. Rows are as {@link PanelKernels#inputs} has them, results fp32. */
record PanelLinear(PanelMatrix matrix, PanelKernels kernels) implements Linear {
    @Override
    public Tensor apply(Tensor rows) {
        Tensor out = kernels.rows(rows.size(0), matrix.outputs());
        matrix.multiply(PanelKernels.rows(rows), (int) rows.size(0), PanelKernels.rows(out));
        return out;
    }

    @Override
    public void applyTo(Tensor out, Tensor rows) {
        if (out.size(1) != matrix.outputs() || out.size(0) > rows.size(0)) {
            throw new IllegalArgumentException("out: is [%d, %d], the product is [%d, %d]"
                    .formatted(out.size(0), out.size(1), rows.size(0), matrix.outputs()));
        }
        matrix.multiply(PanelKernels.rows(rows), (int) out.size(0), PanelKernels.rows(out));
    }

    @Override
    public Tensor applyGated(Linear gate, Tensor rows) {
        if (!(gate instanceof PanelLinear panels) || !matrix.takesGate(panels.matrix)) {
            return Linear.super.applyGated(gate, rows);
        }
        Tensor out = kernels.inputs(rows.size(0), matrix.outputs());
        matrix.multiplyGated(panels.matrix, PanelKernels.rows(rows), (int) rows.size(0), PanelKernels.rows(out));
        return out;
    }

    @Override
    public void addTo(Tensor x, Tensor rows) {
        matrix.add(PanelKernels.rows(rows), (int) rows.size(0), PanelKernels.rows(x));
    }
}
