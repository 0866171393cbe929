package baton.cuda.kernel;

import baton.cuda.driver.Gpu;
import baton.cuda.ptx.PtxKernel;
import baton.kv.DType;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;

/**
 * The kernels of a device for models that compute in one type. Their methods enqueue on a stream and return. A kernel is compiled at its first
 * launch, so a launch that is captured in a graph must have been made before with the same shapes. Safe for use by several threads, but those of
 * attention, sampling and experts, which have memory of their own, by one stream at a time.
 */
public final class GpuKernels implements AutoCloseable {
    private final Functions functions;
    private final Optional<LargeProducts> library;
    private final RowOps rows;
    private final Products products;
    private final ExpertOps experts;
    private final CacheOps cache;
    private final AttentionOps attention;
    private final SamplingOps sampling;
    private final CopyOps copies;

    /** @param computed the type of weights and of the inputs of products */
    public GpuKernels(Gpu gpu, DType computed) {
        this(gpu, computed, Optional.empty());
    }

    /**
     * The kernels.
     *
     * @param computed the type of weights and of the inputs of products
     * @param library for products of many rows; closed with the kernels
     */
    public GpuKernels(Gpu gpu, DType computed, Optional<LargeProducts> library) {
        this.library = library;
        functions = new Functions(gpu, kernels(computed));
        rows = new RowOps(functions);
        products = new Products(functions, computed, library);
        experts = new ExpertOps(functions, products, new ExpertRouting(gpu));
        cache = new CacheOps(functions);
        attention = new AttentionOps(gpu);
        sampling = new SamplingOps(gpu, functions);
        copies = new CopyOps(functions);
    }

    /** All kernels, as they are compiled. */
    static List<PtxKernel> kernels(DType computed) {
        List<PtxKernel> kernels = new ArrayList<>();
        kernels.addAll(RowOps.kernels(computed));
        kernels.addAll(Products.kernels(computed));
        kernels.addAll(ExpertOps.kernels());
        kernels.addAll(CacheOps.kernels(computed));
        kernels.addAll(SamplingOps.kernels());
        kernels.addAll(CopyOps.kernels());
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

    /** Mixtures of experts. */
    public ExpertOps experts() {
        return experts;
    }

    /** Writes of new entries into a cache. */
    public CacheOps cache() {
        return cache;
    }

    /** Attention over a cache. */
    public AttentionOps attention() {
        return attention;
    }

    /** The largest logits. */
    public SamplingOps sampling() {
        return sampling;
    }

    /** Copies and digests of ranges. */
    public CopyOps copies() {
        return copies;
    }

    @Override
    public void close() {
        attention.close();
        sampling.close();
        experts.close();
        library.ifPresent(LargeProducts::close);
        functions.close();
    }
}
