package baton.store.lm;

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

    /** The metadata of requests and replies without a value: format 1, float16, no shape. */
    public static final LmMetadata NONE = new LmMetadata(1, 2, 0, 0, 0, 0);

    /** The metadata of bytes that LMCache does not interpret. */
    public static LmMetadata bytes(int length) {
        return new LmMetadata(BINARY_BUFFER, UINT8, length, 0, 0, 0);
    }
}
