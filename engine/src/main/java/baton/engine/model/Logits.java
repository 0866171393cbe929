package baton.engine.model;

import java.lang.foreign.MemorySegment;

/** Logits of a batch: {@code [rows, vocabulary]} in fp32, in native memory that lives until {@link #close}. */
public interface Logits extends AutoCloseable {
    int rows();

    int vocabularySize();

    /** The row's logits, {@code vocabularySize()} floats in native byte order. May be changed in place. */
    MemorySegment row(int row);

    /** The id of the row's greatest logit, the smallest id among equals, as computed when the batch ran. */
    int argmax(int row);

    @Override
    void close();
}
