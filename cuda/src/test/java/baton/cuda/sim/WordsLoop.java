package baton.cuda.sim;

import java.lang.invoke.MethodHandles;

/** A template that {@link LaneLoop} copies, for functions of 32 bits. */
final class WordsLoop implements LaneLoop {
    private static final Plan PLAN = LaneLoop.plan(MethodHandles.lookup());
    private static final LaneFunction.Words FUNCTION = (LaneFunction.Words) PLAN.function();
    private static final boolean TEST = PLAN.test();

    WordsLoop() {}

    @Override
    public void run(Warp warp, int d, int a, int b, int c, int lanes) {
        int[] words = warp.words;
        int held = 0;
        if (lanes == Warp.ALL) {
            for (int lane = 0; lane < Warp.LANES; lane++) {
                int result = FUNCTION.apply(words[a + lane], words[b + lane], words[c + lane]);
                if (TEST) {
                    held |= result << lane;
                } else {
                    words[d + lane] = result;
                }
            }
        } else {
            for (int left = lanes; left != 0; left &= left - 1) {
                int lane = Integer.numberOfTrailingZeros(left);
                int result = FUNCTION.apply(words[a + lane], words[b + lane], words[c + lane]);
                if (TEST) {
                    held |= result << lane;
                } else {
                    words[d + lane] = result;
                }
            }
        }
        if (TEST) {
            warp.predicates[d] = warp.predicates[d] & ~lanes | held;
        }
    }
}
