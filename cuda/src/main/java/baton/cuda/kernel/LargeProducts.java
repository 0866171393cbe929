package baton.cuda.kernel;

import baton.cuda.driver.CublasLt;
import baton.cuda.driver.CublasLt.Plan;
import baton.cuda.driver.CublasLt.Shape;
import baton.cuda.driver.CudaException;
import baton.cuda.driver.Gpu;
import baton.cuda.driver.Gpu.Stream;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Products of many rows by cuBLASLt. A shape has one algorithm, which is chosen for {@link #CHOSEN_ROWS} rows and divides no sum, whatever the number
 * of rows: so a result depends on its row and the weight. (Of the library it is assumed, as {@link Products} does of the device, that a sum does
 * not depend on its place in the matrix.) Its bits are not those of Baton's kernels, which compute a shape from the first number of rows on that the
 * library refuses.
 */
public final class LargeProducts implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(LargeProducts.class);
    private static final int CHOSEN_ROWS = 1024;
    private static final long WORKSPACE_BYTES = 32 << 20;

    private final CublasLt library;
    private final Gpu gpu;
    private final long handle;
    private final Gpu.Buffer workspace;

    /** Empty: the library has no algorithm for the shape. */
    @GuardedBy("this")
    private final Map<Shape, Optional<Plan>> plans = new HashMap<>();

    private LargeProducts(Gpu gpu, CublasLt library, long handle) {
        this.gpu = gpu;
        this.library = library;
        this.handle = handle;
        this.workspace = gpu.allocate(WORKSPACE_BYTES);
    }

    /** @return empty if the library does not work with the device or its driver, which is logged */
    public static Optional<LargeProducts> of(Gpu gpu, CublasLt library) {
        gpu.driver().makeCurrent(gpu.context());
        try {
            return Optional.of(new LargeProducts(gpu, library, library.create()));
        } catch (CudaException e) {
            LOG.warn("cuBLASLt is not used, Baton's kernels compute all products: {}", e.getMessage());
            return Optional.empty();
        }
    }

    /**
     * Enqueues a product as {@link Products#product} does, by one stream at a time.
     *
     * @return false if the library does not compute products of this weight
     */
    synchronized boolean product(Stream stream, Weight weight, DeviceRows in, DeviceRows out, boolean add) {
        Shape shape = new Shape(
                weight.type(),
                weight.outputs(),
                weight.inputs(),
                CHOSEN_ROWS,
                in.rowStride(),
                out.rowStride(),
                weight.bias() != 0);
        boolean aligned = (weight.address() | weight.bias()) % CublasLt.ALIGNMENT == 0
                && (long) weight.inputs() * weight.type().bytes() % CublasLt.ALIGNMENT == 0
                && in.isAligned(CublasLt.ALIGNMENT / in.type().bytes())
                && out.isAligned(CublasLt.ALIGNMENT / out.type().bytes());
        gpu.driver().makeCurrent(gpu.context());
        Optional<Plan> plan = aligned
                ? plans.computeIfAbsent(shape, key -> library.plan(handle, key, WORKSPACE_BYTES))
                : Optional.empty();
        boolean done = plan.isPresent()
                && library.multiply(
                        handle,
                        plan.get(),
                        weight.address(),
                        weight.bias(),
                        in.address(),
                        out.address(),
                        in.rows(),
                        add,
                        workspace,
                        stream);
        if (plan.isPresent() && !done) {
            LOG.warn("cuBLASLt refuses a product of {} rows, Baton's kernels compute those of {}", in.rows(), shape);
            plans.put(shape, Optional.empty());
            library.close(plan.get());
        }
        return done;
    }

    @Override
    public synchronized void close() {
        gpu.driver().makeCurrent(gpu.context());
        plans.values().forEach(plan -> plan.ifPresent(library::close));
        plans.clear();
        library.destroy(handle);
        workspace.close();
    }
}
