package baton.engine.kernel;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.List;
import java.util.Optional;

/**
 * The scores by which queries weigh positions.
 *
 * @param scale factor of the products of queries and keys
 * @param cap bound of scores: {@code cap * tanh(score / cap)}
 * @param sinks by layer, for each query head the score of a position that has no value; an empty list: there are none
 */
public record AttentionScores(double scale, Optional<Double> cap, List<float[]> sinks) {
    /** Without cap and sinks. */
    public AttentionScores(double scale) {
        this(scale, Optional.empty(), List.of());
    }

    /** The factor of queries: weights are powers of two, not of e. */
    float factor() {
        return (float) (scale / Math.log(2));
    }

    public boolean hasSinks() {
        return !sinks.isEmpty();
    }

    /** A query's largest score before any position is seen. */
    float firstLargest(int layer, int head) {
        return hasSinks() ? (float) (sinks.get(layer)[head] / Math.log(2)) : PagedAttention.NO_SCORE;
    }

    /** A query's sum of weights before any position is seen. */
    float firstSum() {
        return hasSinks() ? 1 : 0;
    }

    /** The last argument of {@link AttentionCode#cap}; empty if there is no cap. */
    MemorySegment capFactors(Arena arena) {
        if (cap.isEmpty()) {
            return MemorySegment.NULL;
        }
        double bound = cap.get() / Math.log(2);
        double[] factors = {2 / cap.get(), -2 * bound, bound};
        int lanes = AttentionCode.CAP_FACTOR / Float.BYTES;
        MemorySegment memory = arena.allocate((long) factors.length * AttentionCode.CAP_FACTOR, 64);
        for (int i = 0; i < factors.length * lanes; i++) {
            memory.setAtIndex(ValueLayout.JAVA_FLOAT, i, (float) factors[i / lanes]);
        }
        return memory;
    }
}
