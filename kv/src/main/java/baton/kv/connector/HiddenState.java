package baton.kv.connector;

import baton.kv.DType;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * The hidden state of one token before the final norm: all that is needed to choose the next token.
 *
 * @param data hidden size elements, in native byte order
 */
public record HiddenState(DType dtype, MemorySegment data) {
    /** A copy that lives as long as it is used. */
    public HiddenState copy() {
        return new HiddenState(
                dtype,
                MemorySegment.ofArray(data.toArray(ValueLayout.JAVA_BYTE)).asReadOnly());
    }
}
