package baton.engine.kernel;

import static baton.engine.kernel.TestKernels.FLOAT;
import static baton.engine.kernel.TestKernels.floats;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.within;

import baton.memory.Assembler.Width;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.Arrays;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Weights are powers of two of scores less their maximum, or zero, and none is so small that arithmetic with it is slow. */
class SoftmaxTest {
    private static final int POSITIONS = 128;
    private static final int HEAD_DIM = 8;
    private static final double LEAST = Math.scalb(1.0, -100);

    @ParameterizedTest
    @EnumSource(names = {"YMM", "ZMM"})
    void weightsArePowersOfTwoOrZero(Width width) {
        Kernels kernels = TestKernels.kernels(width);
        int lanes = kernels.panelWidth();
        try (Arena arena = Arena.ofConfined()) {
            float[] scores = new float[POSITIONS * lanes];
            for (int i = 0; i < scores.length; i++) {
                // The largest score of a lane comes last; the others are up to 250 below it.
                int below = POSITIONS - 1 - i / lanes;
                scores[i] = 7 - below * (1.9f + i % lanes / 500f);
            }
            MemorySegment weights = floats(arena, scores);
            float[] before = new float[2 * lanes];
            Arrays.fill(before, 0, lanes, PagedAttention.NO_SCORE);
            MemorySegment state = floats(arena, before);
            MemorySegment sums = floats(arena, new float[HEAD_DIM * lanes]);
            kernels.get(Kernel.SOFTMAX)
                    .call(weights.address(), POSITIONS, state.address(), state.address(), sums.address(), HEAD_DIM);
            for (int lane = 0; lane < lanes; lane++) {
                double sum = 0;
                for (int position = 0; position < POSITIONS; position++) {
                    int at = position * lanes + lane;
                    double power = Math.pow(2, scores[at] - 7.0);
                    double expected = Math.max(0, power - LEAST);
                    float weight = weights.getAtIndex(FLOAT, at);
                    // A score has 24 bits, of which the integer takes up to eight.
                    assertThat((double) weight)
                            .as("position %d lane %d", position, lane)
                            .isCloseTo(expected, within(1e-5 * power));
                    assertThat(weight == 0 || weight >= Float.MIN_NORMAL)
                            .as("position %d lane %d, %s is not subnormal", position, lane, weight)
                            .isTrue();
                    sum += expected;
                }
                assertThat(state.getAtIndex(FLOAT, lane)).isEqualTo(7);
                assertThat((double) state.getAtIndex(FLOAT, lanes + lane)).isCloseTo(sum, within(1e-5 * sum));
            }
        }
    }
}
