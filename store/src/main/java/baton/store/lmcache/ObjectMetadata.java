package baton.store.lmcache;

import baton.kv.DType;
import baton.store.lm.LmMetadata;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.ByteOrder;

/**
 * The metadata that LMCache stores beside a chunk's bytes (lmcache/v1/protocol.py:RemoteMetadata), of a model with one group of layers: seven int32,
 * little-endian: length, format, dtype, four dimensions.
 *
 * @param length bytes of the chunk
 */
record ObjectMetadata(int length, LmMetadata chunk) {
    static final int BYTES = 28;

    /** Code of {@code MemoryFormat.KV_2LTD}. */
    private static final int KV_2LTD = 1;

    private static final ValueLayout.OfInt INT = ValueLayout.JAVA_INT_UNALIGNED.withOrder(ByteOrder.LITTLE_ENDIAN);

    /** The metadata of a chunk {@code [2, layers, tokens, hidden]}. */
    static ObjectMetadata of(int layers, int tokens, int hidden, DType dtype) {
        return new ObjectMetadata(
                Math.toIntExact(2L * layers * tokens * hidden * dtype.bytes()),
                new LmMetadata(KV_2LTD, code(dtype), 2, layers, tokens, hidden));
    }

    private static int code(DType dtype) {
        return switch (dtype) {
            case F16 -> 2;
            case BF16 -> 3;
            case F32 -> 4;
            // vLLM's fp8 caches are bytes to torch.
            case F8_E4M3 -> 6;
        };
    }

    /** The name of a type in LMCache's keys (lmcache/utils.py:TORCH_DTYPE_TO_STR_DTYPE). */
    static String name(DType dtype) {
        return switch (dtype) {
            case F16 -> "half";
            case BF16 -> "bfloat16";
            case F32 -> "float";
            case F8_E4M3 -> "uint8";
        };
    }

    void write(MemorySegment to) {
        int[] numbers = {
            length, chunk.format(), chunk.dtype(), chunk.shape0(), chunk.shape1(), chunk.shape2(), chunk.shape3()
        };
        for (int i = 0; i < numbers.length; i++) {
            to.set(INT, 4L * i, numbers[i]);
        }
    }

    static ObjectMetadata read(MemorySegment from) {
        return new ObjectMetadata(
                from.get(INT, 0),
                new LmMetadata(
                        from.get(INT, 4),
                        from.get(INT, 8),
                        from.get(INT, 12),
                        from.get(INT, 16),
                        from.get(INT, 20),
                        from.get(INT, 24)));
    }

    /** Whether it says the same of a chunk: torch's {@code half} has two codes, 1 and 2. */
    boolean matches(ObjectMetadata other) {
        return length == other.length && normal(chunk).equals(normal(other.chunk));
    }

    private static LmMetadata normal(LmMetadata of) {
        return of.dtype() == 1
                ? new LmMetadata(of.format(), 2, of.shape0(), of.shape1(), of.shape2(), of.shape3())
                : of;
    }
}
