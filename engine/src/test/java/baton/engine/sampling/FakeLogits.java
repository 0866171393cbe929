package baton.engine.sampling;

import baton.engine.model.Logits;
import java.lang.foreign.MemorySegment;

/** Logits from arrays, on the heap. */
record FakeLogits(float[][] values) implements Logits {
    static FakeLogits of(float... row) {
        return new FakeLogits(new float[][] {row});
    }

    @Override
    public int rows() {
        return values.length;
    }

    @Override
    public int vocabularySize() {
        return values[0].length;
    }

    @Override
    public MemorySegment row(int row) {
        return MemorySegment.ofArray(values[row]);
    }

    /** The greatest logit; NaN counts as the greatest, as in LibTorch. */
    @Override
    public int argmax(int row) {
        float[] logits = values[row];
        int best = 0;
        for (int i = 0; i < logits.length; i++) {
            if (logits[i] > logits[best] || (Float.isNaN(logits[i]) && !Float.isNaN(logits[best]))) {
                best = i;
            }
        }
        return best;
    }

    @Override
    public void close() {}
}
