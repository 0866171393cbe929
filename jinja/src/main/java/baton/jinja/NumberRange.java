package baton.jinja;

import java.util.AbstractList;
import java.util.RandomAccess;

/** The numbers of a {@code range}, counted when they are asked for. */
final class NumberRange extends AbstractList<Value> implements RandomAccess {
    final long start;
    final long stop;
    final long step;
    private final int size;

    /** @param step not 0 */
    NumberRange(long start, long stop, long step, int size) {
        this.start = start;
        this.stop = stop;
        this.step = step;
        this.size = size;
    }

    /** How many numbers there are; at most {@link Long#MAX_VALUE}. */
    static long size(long start, long stop, long step) {
        if (step > 0 ? start >= stop : start <= stop) {
            return 0;
        }
        return step > 0 ? (stop - start - 1) / step + 1 : (start - stop - 1) / -step + 1;
    }

    @Override
    public Value get(int index) {
        return Value.of(start + index * step);
    }

    @Override
    public int size() {
        return size;
    }

    @Override
    public String toString() {
        return "range(" + start + ", " + stop + (step == 1 ? "" : ", " + step) + ")";
    }
}
