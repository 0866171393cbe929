package baton.cuda.sim;

import java.lang.invoke.MethodHandles;

/** A template that {@link LaneLoop} copies, for functions with operands of 64 bits. */
final class WideLoop implements LaneLoop {
    private static final Plan PLAN = LaneLoop.plan(MethodHandles.lookup());
    private static final LaneFunction.Wide FUNCTION = (LaneFunction.Wide) PLAN.function();
    private static final boolean TEST = PLAN.test();
    private static final boolean WIDE_RESULT = PLAN.wideResult();
    private static final boolean WIDE_A = PLAN.wideA();
    private static final boolean WIDE_B = PLAN.wideB();
    private static final boolean WIDE_C = PLAN.wideC();

    WideLoop() {}

    @Override
    public void run(Warp warp, int d, int a, int b, int c, int lanes) {
        int[] words = warp.words;
        long[] longs = warp.longs;
        int held = 0;
        if (lanes == Warp.ALL) {
            for (int lane = 0; lane < Warp.LANES; lane++) {
                held |= step(words, longs, d, a, b, c, lane) << lane;
            }
        } else {
            for (int left = lanes; left != 0; left &= left - 1) {
                int lane = Integer.numberOfTrailingZeros(left);
                held |= step(words, longs, d, a, b, c, lane) << lane;
            }
        }
        if (TEST) {
            warp.predicates[d] = warp.predicates[d] & ~lanes | held;
        }
    }

    private static int step(int[] words, long[] longs, int d, int a, int b, int c, int lane) {
        long result = FUNCTION.apply(
                WIDE_A ? longs[a + lane] : words[a + lane],
                WIDE_B ? longs[b + lane] : words[b + lane],
                WIDE_C ? longs[c + lane] : words[c + lane]);
        if (TEST) {
            return (int) result;
        }
        if (WIDE_RESULT) {
            longs[d + lane] = result;
        } else {
            words[d + lane] = (int) result;
        }
        return 0;
    }
}
