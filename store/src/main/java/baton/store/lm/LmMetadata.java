package baton.store.lm;

import java.util.ArrayList;
import java.util.List;

/**
 * The metadata that a server keeps beside a value and sends with it: codes of LMCache's {@code lmcache.v1.protocol} and {@code MemoryFormat}, which no
 * server looks into.
 *
 * @param format code of the memory format: 1 {@code KV_2LTD}, 5 {@code BINARY_BUFFER}, ...
 * @param dtype code of the element type: 2 float16, 3 bfloat16, 4 float32, 6 uint8, ...
 * @param shape0 first dimension
 * @param shape1 second dimension; 0 if there is none, as the next two
 * @param shape2 third dimension
 * @param shape3 fourth dimension
 */
public record LmMetadata(int format, int dtype, int shape0, int shape1, int shape2, int shape3) {
    /** Code of {@code MemoryFormat.BINARY_BUFFER}. */
    public static final int BINARY_BUFFER = 5;

    /** Code of {@code torch.uint8}. */
    public static final int UINT8 = 6;

    /** The most dimensions that the protocol has. */
    private static final int DIMENSIONS = 4;

    /** Of requests and replies without a value: format 1, float16, no shape. */
    public static final LmMetadata NONE = new LmMetadata(1, 2, 0, 0, 0, 0);

    /**
     * With a shape of one to four dimensions.
     *
     * @throws IllegalArgumentException if it has another number of dimensions
     */
    public static LmMetadata of(int format, int dtype, List<Integer> shape) {
        if (shape.isEmpty() || shape.size() > DIMENSIONS) {
            throw new IllegalArgumentException(
                    "shape=%s has %d dimensions, must have 1 to %d".formatted(shape, shape.size(), DIMENSIONS));
        }
        List<Integer> padded = new ArrayList<>(shape);
        while (padded.size() < DIMENSIONS) {
            padded.add(0);
        }
        return new LmMetadata(format, dtype, padded.get(0), padded.get(1), padded.get(2), padded.get(3));
    }

    /** Of bytes that LMCache does not interpret. */
    public static LmMetadata bytes(int length) {
        return new LmMetadata(BINARY_BUFFER, UINT8, length, 0, 0, 0);
    }
}
