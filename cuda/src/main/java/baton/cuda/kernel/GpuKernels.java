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
 *
 * @param library for products of many rows; closed with the kernels
 * @param products with weights
 * @param experts of mixtures
 * @param cache writes new entries into a cache
 * @param attention over a cache
 * @param sampling finds the largest logits
 * @param copies copies ranges, and makes digests of them
 */
public record GpuKernels(
        Functions functions,
        Optional<LargeProducts> library,
        RowOps rows,
        Products products,
        ExpertOps experts,
        CacheOps cache,
        AttentionOps attention,
        SamplingOps sampling,
        CopyOps copies)
        implements AutoCloseable {
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
        Functions functions = new Functions(gpu, kernels(computed));
        Products products = new Products(functions, computed, library);
        this(
                functions,
                library,
                new RowOps(functions),
                products,
                new ExpertOps(functions, products, new ExpertRouting(gpu)),
                new CacheOps(functions),
                new AttentionOps(gpu),
                new SamplingOps(gpu, functions),
                new CopyOps(functions));
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

    @Override
    public void close() {
        attention.close();
        sampling.close();
        experts.close();
        library.ifPresent(LargeProducts::close);
        functions.close();
    }
}
