package baton.engine.model;

import baton.engine.kernel.Activation;
import baton.engine.kernel.PanelMatrix;

/** Weights in panels. Rows are as {@link PanelKernels#inputs} has them, results fp32. */
record PanelLinear(PanelMatrix matrix, PanelKernels kernels) implements Linear {
    @Override
    public Matrix apply(Matrix rows) {
        Matrix out = kernels.rows(rows.rows(), matrix.outputs());
        matrix.multiply(rows.inBytes(), rows.rows(), out.inBytes());
        return out;
    }

    @Override
    public void applyTo(Matrix out, Matrix rows) {
        if (out.columns() != matrix.outputs() || out.rows() > rows.rows()) {
            throw new IllegalArgumentException("out: is [%d, %d], the product is [%d, %d]"
                    .formatted(out.rows(), out.columns(), rows.rows(), matrix.outputs()));
        }
        matrix.multiply(rows.inBytes(), out.rows(), out.inBytes());
    }

    @Override
    public Matrix applyGated(Linear gate, Activation activation, Matrix rows) {
        Matrix out = kernels.inputs(rows.rows(), matrix.outputs());
        matrix.multiplyGated(((PanelLinear) gate).matrix, activation, rows.inBytes(), rows.rows(), out.inBytes());
        return out;
    }

    @Override
    public void addTo(Matrix x, Matrix rows) {
        matrix.add(rows.inBytes(), rows.rows(), x.inBytes());
    }
}
