package baton.engine.model;

import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.SymbolLookup;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.util.NoSuchElementException;
import java.util.Optional;
import java.util.function.Supplier;
import org.bytedeco.pytorch.Tensor;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * OpenBLAS, by which LibTorch multiplies fp32. It has threads of its own beside OpenMP's. Attention shares its heads out among
 * OpenMP's threads, and when each of these asks OpenBLAS to share out one more product, they wait for each other: several times the
 * time of one thread each. So OpenBLAS has one thread, and more only within the products of weights.
 */
record Blas(Optional<MethodHandle> setThreads, int threads) {
    private static final Logger LOG = LoggerFactory.getLogger(Blas.class);

    /**
     * The library that LibTorch has loaded, from here on with one thread.
     *
     * @param threads for products of weights
     */
    static Blas loaded(int threads) {
        Blas blas = new Blas(find(), threads);
        blas.set(1);
        return blas;
    }

    private static Optional<MethodHandle> find() {
        try {
            return Optional.of(Linker.nativeLinker()
                    .downcallHandle(
                            // The process's own, whatever its file is called: LibTorch's JNI library depends on it.
                            SymbolLookup.loaderLookup().findOrThrow("openblas_set_num_threads"),
                            FunctionDescriptor.ofVoid(ValueLayout.JAVA_INT)));
        } catch (NoSuchElementException e) {
            LOG.info("OpenBLAS keeps its number of threads: {}", e.getMessage());
            return Optional.empty();
        }
    }

    /** A product of weights with all threads. */
    Tensor product(Supplier<Tensor> product) {
        set(threads);
        try {
            return product.get();
        } finally {
            set(1);
        }
    }

    private void set(int number) {
        if (setThreads.isEmpty()) {
            return;
        }
        try {
            setThreads.get().invokeExact(number);
        } catch (RuntimeException | Error e) {
            throw e;
        } catch (Throwable e) {
            throw new AssertionError("C throws nothing", e);
        }
    }
}
