package baton.engine.model;

import baton.engine.kernel.Activation;
import baton.engine.kernel.PanelMatrix;
import baton.engine.kernel.Rows;
import java.util.ArrayList;
import java.util.List;

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
    public Matrix applyLast(int columns, Matrix rows) {
        PanelMatrix last = matrix.last(columns);
        Matrix out = kernels.rows(rows.rows(), last.outputs());
        last.multiply(rows.inBytes(), rows.rows(), out.inBytes());
        return out.columns(last.outputs() - columns, columns);
    }

    @Override
    public Matrix applyGated(Linear gate, Activation activation, Matrix rows) {
        Matrix out = kernels.inputs(rows.rows(), matrix.outputs());
        matrix.multiplyGated(((PanelLinear) gate).matrix, activation, rows.inBytes(), rows.rows(), out.inBytes());
        return out;
    }

    @Override
    public List<Matrix> applyAll(List<Product> products) {
        List<Matrix> results = new ArrayList<>();
        List<PanelMatrix.Product> all = new ArrayList<>();
        for (Product product : products) {
            PanelMatrix own = ((PanelLinear) product.matrix()).matrix;
            Rows from = product.rows().inBytes();
            int count = product.rows().rows();
            Matrix out = product.gate().isPresent()
                    ? kernels.inputs(count, own.outputs())
                    : kernels.rows(count, own.outputs());
            all.add(product.gate()
                    .map(gate -> own.gatedProduct(
                            ((PanelLinear) gate.matrix()).matrix, gate.activation(), from, count, out.inBytes()))
                    .orElseGet(() -> own.product(from, count, out.inBytes())));
            results.add(out);
        }
        PanelMatrix.compute(all);
        return results;
    }

    @Override
    public void addTo(Matrix x, Matrix rows) {
        matrix.add(rows.inBytes(), rows.rows(), x.inBytes());
    }
}
