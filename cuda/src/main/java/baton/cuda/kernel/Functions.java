package baton.cuda.kernel;

import baton.cuda.driver.Driver.LaunchShape;
import baton.cuda.driver.Gpu;
import baton.cuda.ptx.PtxKernel;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.stream.Collectors;

/** The kernels of a module by name. */
final class Functions implements AutoCloseable {
    /** Bytes of shared memory that a kernel may have without being allowed more. */
    private static final int USUAL_SHARED = 48 << 10;

    private final Gpu gpu;
    private final Gpu.Module module;
    private final Map<String, Compiled> compiled;

    private record Compiled(Gpu.Function function, int threads) {}

    Functions(Gpu gpu, List<PtxKernel> kernels) {
        this.gpu = gpu;
        this.module = gpu.load(PtxKernel.module(kernels));
        this.compiled = kernels.stream()
                .collect(Collectors.toMap(
                        PtxKernel::name, kernel -> new Compiled(module.function(kernel.name()), kernel.threads())));
    }

    /** Lets a kernel be launched with dynamic shared memory of that size. */
    void allowShared(String name, int bytes) {
        if (bytes > USUAL_SHARED) {
            gpu.driver().allowSharedBytes(gpu.context(), find(name).function.handle(), bytes);
        }
    }

    /** Enqueues a kernel of blocks in one dimension, unless these are none. */
    void launch(Gpu.Stream stream, String name, int blocks, long... arguments) {
        launch(stream, name, blocks, 1, 1, 0, arguments);
    }

    /** Enqueues a kernel, unless it has no blocks. */
    void launch(Gpu.Stream stream, String name, int x, int y, int z, int sharedBytes, long... arguments) {
        if (x > 0 && y > 0 && z > 0) {
            Compiled kernel = find(name);
            stream.launch(kernel.function, new LaunchShape(x, y, z, kernel.threads, sharedBytes), arguments);
        }
    }

    private Compiled find(String name) {
        return Objects.requireNonNull(compiled.get(name), () -> "there is no kernel " + name);
    }

    /** A parameter of fp32. */
    static long argument(float value) {
        return Integer.toUnsignedLong(Float.floatToRawIntBits(value));
    }

    @Override
    public void close() {
        module.close();
    }
}
