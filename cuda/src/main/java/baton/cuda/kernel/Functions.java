package baton.cuda.kernel;

import baton.cuda.driver.Driver.LaunchShape;
import baton.cuda.driver.Gpu;
import baton.cuda.ptx.PtxKernel;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Function;
import java.util.stream.Collectors;

/** Kernels by name. Each is compiled when it is launched for the first time. Safe for use by several threads. */
final class Functions implements AutoCloseable {
    /** Bytes of shared memory that a kernel may have without being allowed more. */
    private static final int USUAL_SHARED = 48 << 10;

    private final Gpu gpu;
    private final Map<String, PtxKernel> kernels;
    private final Map<String, Integer> sharedBytes = new ConcurrentHashMap<>();
    private final Map<String, Compiled> compiled = new ConcurrentHashMap<>();

    private record Compiled(Gpu.Module module, Gpu.Function function, int threads) {}

    Functions(Gpu gpu, List<PtxKernel> kernels) {
        this.gpu = gpu;
        this.kernels = kernels.stream().collect(Collectors.toMap(PtxKernel::name, Function.identity()));
    }

    /** Lets a kernel be launched with dynamic shared memory of that size. To be called before its first launch. */
    void allowShared(String name, int bytes) {
        sharedBytes.put(name, bytes);
    }

    private Compiled compile(String name) {
        PtxKernel kernel = Objects.requireNonNull(kernels.get(name), () -> "there is no kernel " + name);
        Gpu.Module module = gpu.load(PtxKernel.module(List.of(kernel)));
        Gpu.Function function = module.function(name);
        int bytes = sharedBytes.getOrDefault(name, 0);
        if (bytes > USUAL_SHARED) {
            gpu.driver().allowSharedBytes(gpu.context(), function.handle(), bytes);
        }
        return new Compiled(module, function, kernel.threads());
    }

    /** Enqueues a kernel of blocks in one dimension; no launch if {@code blocks} is 0. */
    void launch(Gpu.Stream stream, String name, int blocks, long... arguments) {
        launch(stream, name, blocks, 1, 1, 0, arguments);
    }

    /** Enqueues a kernel, unless it has no blocks. */
    void launch(Gpu.Stream stream, String name, int x, int y, int z, int sharedBytes, long... arguments) {
        if (x > 0 && y > 0 && z > 0) {
            Compiled kernel = compiled.computeIfAbsent(name, this::compile);
            stream.launch(kernel.function, new LaunchShape(x, y, z, kernel.threads, sharedBytes), arguments);
        }
    }

    /** A parameter of fp32. */
    static long argument(float value) {
        return Integer.toUnsignedLong(Float.floatToRawIntBits(value));
    }

    @Override
    public void close() {
        compiled.values().forEach(kernel -> kernel.module.close());
    }
}
