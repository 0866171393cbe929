package baton.kv.safetensors;

import java.util.List;

/**
 * One tensor of a file.
 *
 * @param dtype safetensors' name of the element type, e.g. {@code BF16}
 * @param shape its dimensions, outermost first
 * @param begin offset of its first byte, counted from the start of the file's data
 * @param end offset after its last byte
 */
public record TensorInfo(String dtype, List<Long> shape, long begin, long end) {
    public TensorInfo {
        shape = List.copyOf(shape);
    }

    public long bytes() {
        return end - begin;
    }

    public long elements() {
        long elements = 1;
        for (long size : shape) {
            elements = Math.multiplyExact(elements, size);
        }
        return elements;
    }

    /** Bytes of an element of that type, or 0 if the type is unknown. */
    public static int elementBytes(String dtype) {
        return switch (dtype) {
            case "F64", "I64", "U64" -> 8;
            case "F32", "I32", "U32" -> 4;
            case "F16", "BF16", "I16", "U16" -> 2;
            case "I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0" -> 1;
            default -> 0;
        };
    }
}
