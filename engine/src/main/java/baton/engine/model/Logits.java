package baton.engine.model;

import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/** Logits of a batch: {@code [rows, vocabulary]} in fp32, in native memory that lives until {@link #close}. */
public interface Logits extends AutoCloseable {
    int rows();

    int vocabularySize();

    /** Says that rows will be asked for, so that they are brought to host memory together. */
    default void fetch(int... rows) {}

    /** The row's logits, {@code vocabularySize()} floats in native byte order. May be changed in place. */
    MemorySegment row(int row);

    /** The id of the row's greatest logit, the smallest id among equals, as computed when the batch ran. */
    int argmax(int row);

    /** Whether the row's greatest logit is finite. A hidden state with NaN or infinity makes all logits of its row NaN or infinite. */
    default boolean isFinite(int row) {
        return Float.isFinite(row(row).getAtIndex(ValueLayout.JAVA_FLOAT, argmax(row)));
    }

    @Override
    void close();
}
