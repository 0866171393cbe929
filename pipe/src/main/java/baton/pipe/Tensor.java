package baton.pipe;

import java.lang.foreign.MemorySegment;
import java.util.Arrays;
import java.util.List;

/**
 * Elements in row-major order.
 *
 * @param shape sizes of the dimensions, outermost first; a tensor without dimensions has one element
 * @param data exactly the elements
 * @param free frees their memory
 */
public record Tensor(Type type, List<Long> shape, TensorBytes data, Runnable free) implements AutoCloseable {
    /** Dimensions that a tensor has at most. */
    public static final int MAX_DIMENSIONS = 8;

    /** @throws IllegalArgumentException if the data's size is not that of the type and the shape */
    public Tensor {
        shape = List.copyOf(shape);
        long bytes = bytes(type, shape);
        if (data.byteSize() != bytes) {
            throw new IllegalArgumentException(
                    "data.byteSize=%d must be %d for %s%s".formatted(data.byteSize(), bytes, type.torchName(), shape));
        }
    }

    /** A tensor in native memory of the host; the caller frees the memory. */
    public Tensor(Type type, List<Long> shape, MemorySegment data) {
        this(type, shape, new TensorBytes.Host(data), () -> {});
    }

    /** Frees the memory; called once. */
    @Override
    public void close() {
        free.run();
    }

    /** Element types, by torch's names. */
    public enum Type {
        BF16("bfloat16", 2),
        F16("float16", 2),
        F32("float32", 4),
        I64("int64", 8),
        U8("uint8", 1),
        BOOL("bool", 1),
        F8_E4M3("float8_e4m3fn", 1);

        private final String torchName;
        private final int bytes;

        Type(String torchName, int bytes) {
            this.torchName = torchName;
            this.bytes = bytes;
        }

        /** The type's name as torch prints it after {@code torch.}. */
        public String torchName() {
            return torchName;
        }

        /** Bytes of one element. */
        public int bytes() {
            return bytes;
        }

        /** @throws IllegalArgumentException if there is none of that name */
        public static Type named(String torchName) {
            return Arrays.stream(values())
                    .filter(type -> type.torchName.equals(torchName))
                    .findFirst()
                    .orElseThrow(() -> new IllegalArgumentException("dtype '" + torchName + "' is none of "
                            + Arrays.stream(values()).map(Type::torchName).toList()));
        }
    }

    /**
     * The size of such a tensor in bytes.
     *
     * @throws IllegalArgumentException if the shape is invalid: too many dimensions, a negative one, or a size of more than a long
     */
    public static long bytes(Type type, List<Long> shape) {
        if (shape.size() > MAX_DIMENSIONS) {
            throw new IllegalArgumentException("shape has " + shape.size() + " dimensions, at most " + MAX_DIMENSIONS);
        }
        long bytes = type.bytes();
        for (long size : shape) {
            if (size < 0) {
                throw new IllegalArgumentException("shape " + shape + " has a negative size");
            }
            try {
                bytes = Math.multiplyExact(bytes, size);
            } catch (ArithmeticException e) {
                throw new IllegalArgumentException("shape " + shape + " is too large", e);
            }
        }
        return bytes;
    }
}
