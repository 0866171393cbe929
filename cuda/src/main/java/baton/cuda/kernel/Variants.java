package baton.cuda.kernel;

import baton.cuda.driver.Gpu;
import baton.cuda.ptx.PtxKernel;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Function;

/**
 * Kernels that are made for the shapes of a model, when a shape comes first.
 *
 * @param <K> their shape
 */
final class Variants<K> implements AutoCloseable {
    private final Gpu gpu;
    private final Function<K, List<PtxKernel>> kernels;
    private final Map<K, Functions> compiled = new ConcurrentHashMap<>();

    Variants(Gpu gpu, Function<K, List<PtxKernel>> kernels) {
        this.gpu = gpu;
        this.kernels = kernels;
    }

    Functions of(K shape) {
        return compiled.computeIfAbsent(shape, key -> new Functions(gpu, kernels.apply(key)));
    }

    @Override
    public void close() {
        compiled.values().forEach(Functions::close);
    }
}
