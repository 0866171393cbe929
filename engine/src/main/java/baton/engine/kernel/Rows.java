package baton.engine.kernel;

import baton.kv.DType;
import java.lang.foreign.MemorySegment;

/**
 * Rows of a matrix.
 *
 * @param memory where the first row begins
 * @param stride bytes from a row to the next one
 * @param type fp32 or bf16
 */
public record Rows(MemorySegment memory, long stride, DType type) {
    /** Address of a row's first element. */
    long address(int row) {
        return memory.address() + row * stride;
    }

    boolean isNarrow() {
        return type == DType.BF16;
    }
}
