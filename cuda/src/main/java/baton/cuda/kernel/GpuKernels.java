package baton.cuda.kernel;

import baton.cuda.driver.Gpu;
import baton.cuda.ptx.PtxKernel;
import baton.kv.DType;
import java.util.ArrayList;
import java.util.List;

/**
 * The kernels of a device for models that compute in one type, in one module. Their methods enqueue on a stream and return. Safe for use by
 * several threads.
 */
public final class GpuKernels implements AutoCloseable {
    private final Functions functions;
    private final RowOps rows;
    private final Products products;

    /**
     * Compiles the kernels.
     *
     * @param computed the type of weights and of the inputs of products
     */
    public GpuKernels(Gpu gpu, DType computed) {
        functions = new Functions(gpu, kernels(computed));
        rows = new RowOps(functions);
        products = new Products(functions, computed);
    }

    /** All kernels, as they are compiled. */
    static List<PtxKernel> kernels(DType computed) {
        List<PtxKernel> kernels = new ArrayList<>();
        kernels.addAll(RowOps.kernels(computed));
        kernels.addAll(Products.kernels(computed));
        return kernels;
    }

    /** Functions of rows. */
    public RowOps rows() {
        return rows;
    }

    /** Products with weights. */
    public Products products() {
        return products;
    }

    @Override
    public void close() {
        functions.close();
    }
}
