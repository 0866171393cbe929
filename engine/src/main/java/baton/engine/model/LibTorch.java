package baton.engine.model;

import baton.engine.model.Weights.Owned;
import baton.kv.DType;
import baton.memory.Platform;
import java.lang.foreign.MemorySegment;
import java.util.OptionalInt;
import org.bytedeco.javacpp.Loader;
import org.bytedeco.javacpp.Pointer;
import org.bytedeco.pytorch.MemoryFormatOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptions;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Loading LibTorch, and tensors over memory that Java allocated. Without its jars no class that uses it can be loaded either. */
final class LibTorch {
    private static final Logger LOG = LoggerFactory.getLogger(LibTorch.class);

    private LibTorch() {}

    /**
     * Loads the native library, unless it is loaded already, and sets the number of threads it computes with, which is the process's, not the
     * caller's.
     *
     * @param purpose that it is loaded for, as the log says
     * @return that number
     * @throws IllegalStateException if it cannot be loaded here, naming the missing requirement
     */
    static int load(String purpose, OptionalInt threads) {
        HugePages.adviseHugePagesToLibTorch();
        HugePages.keepFreedMemory();
        // Without the properties JavaCPP reads /proc and may collect garbage in an allocation. Memory is freed by
        // scope.
        setUnlessSet("org.bytedeco.javacpp.nopointergc", "true");
        setUnlessSet("org.bytedeco.javacpp.maxbytes", "0");
        setUnlessSet("org.bytedeco.javacpp.maxphysicalbytes", "0");
        try {
            boolean isFirst = !Loader.getLoadedLibraries().containsKey("jnitorch");
            Loader.load(torch.class);
            if (isFirst) {
                LOG.info("LibTorch is loaded: {}", purpose);
            }
            torch.set_num_threads(threads.orElse(Runtime.getRuntime().availableProcessors()));
            return torch.get_num_threads();
        } catch (LinkageError e) {
            throw new IllegalStateException(
                    "LibTorch cannot be loaded (" + purpose + "): it needs " + needs(Platform.current())
                            + " on the class path, and room for 450 MB in ~/.javacpp/cache or"
                            + " -Dorg.bytedeco.javacpp.cachedir: "
                            + e.getMessage(),
                    e);
        }
    }

    private static String needs(Platform platform) {
        return platform.isMacOs()
                ? "macOS 15 or newer on Apple silicon, its jar for macosx-arm64"
                : "Linux on x86_64 with glibc 2.35 and libstdc++ 12 or newer (Debian 12, Ubuntu 22.04), its jar for linux-x86_64";
    }

    static ScalarType scalarType(DType dtype) {
        return switch (dtype) {
            case BF16 -> ScalarType.BFloat16;
            case F16 -> ScalarType.Half;
            case F32 -> ScalarType.Float;
            case F8_E4M3 -> ScalarType.Float8_e4m3fn;
        };
    }

    /**
     * Of a tensor of floating-point numbers.
     *
     * @throws IllegalArgumentException if it has others
     */
    static DType dtype(Tensor tensor) {
        ScalarType type = tensor.scalar_type().intern();
        return switch (type) {
            case BFloat16 -> DType.BF16;
            case Half -> DType.F16;
            case Float -> DType.F32;
            default ->
                throw new IllegalArgumentException("a tensor is of " + type + ", must be of BFloat16, Half or Float");
        };
    }

    /** Has the object live until {@code owned} is closed, and so longer than the scope that it may have been made in. */
    static <P extends Pointer> P keep(P pointer, Owned owned) {
        pointer.retainReference();
        owned.add(pointer::close);
        return pointer;
    }

    /** The matrix' memory, as a tensor of the caller's {@link org.bytedeco.javacpp.PointerScope}. */
    static Tensor tensor(Matrix matrix) {
        Tensor whole = over(matrix.memory(), scalarType(matrix.type()), matrix.rows(), matrix.stride());
        return matrix.stride() == matrix.columns() ? whole : whole.narrow(1, 0, matrix.columns());
    }

    /** The tensor's memory, valid as long as the tensor; elements of a row are side by side. */
    static Matrix matrix(Tensor tensor) {
        int rows = Math.toIntExact(tensor.size(0));
        int columns = Math.toIntExact(tensor.size(1));
        long stride = rows > 1 ? tensor.stride(0) : columns;
        DType type = dtype(tensor);
        return new Matrix(memory(tensor, Matrix.bytes(rows, columns, stride, type)), rows, columns, stride, type);
    }

    /** A dense tensor that is the segment's memory, which must outlive it. */
    static Tensor over(MemorySegment memory, ScalarType type, long... shape) {
        try (TensorOptions options = new TensorOptions(type);
                Address address = new Address(memory.address())) {
            return torch.from_blob(address, shape, options);
        }
    }

    static Tensor empty(ScalarType type, long... shape) {
        try (TensorOptions options = new TensorOptions(type);
                MemoryFormatOptional dense = new MemoryFormatOptional()) {
            return torch.empty(shape, options, dense);
        }
    }

    /** The first bytes of a tensor's memory. Valid as long as the tensor. */
    static MemorySegment memory(Tensor tensor, long bytes) {
        try (Pointer data = tensor.data_ptr()) {
            return MemorySegment.ofAddress(data.address()).reinterpret(bytes);
        }
    }

    private static void setUnlessSet(String property, String value) {
        if (System.getProperty(property) == null) {
            System.setProperty(property, value);
        }
    }

    private static final class Address extends Pointer {
        Address(long address) {
            super((Pointer) null);
            this.address = address;
        }
    }
}
