package baton.kvserver;

/**
 * Which units of a memory are free. A value has as many runs of units as it needs, so that memory is never lost between values. Not
 * thread-safe.
 */
final class Extents {
    private static final int WORD = 64;

    private final long[] used;
    private final int units;
    private int free;

    /** Where the next run is looked for first. */
    private int cursor;

    Extents(int units) {
        this.units = units;
        this.free = units;
        used = new long[Math.ceilDiv(units, WORD)];
        for (int i = units; i < used.length * WORD; i++) {
            used[i >>> 6] |= 1L << i;
        }
    }

    int free() {
        return free;
    }

    int units() {
        return units;
    }

    /** A run of units: its first unit in the upper half, their number in the lower one. */
    static long run(int first, int count) {
        return (long) first << 32 | count;
    }

    static int first(long run) {
        return (int) (run >>> 32);
    }

    static int count(long run) {
        return (int) run;
    }

    /**
     * Takes a run.
     *
     * @param wanted units; the run may have fewer
     * @return 0 if nothing is free
     */
    long take(int wanted) {
        if (free == 0) {
            return 0;
        }
        int first = nextFree(cursor);
        if (first < 0) {
            first = nextFree(0);
        }
        int end = first;
        int most = Math.min(units, first + wanted);
        while (end < most && (used[end >>> 6] >>> end & 1) == 0) {
            used[end >>> 6] |= 1L << end;
            end++;
        }
        free -= end - first;
        cursor = end == units ? 0 : end;
        return run(first, end - first);
    }

    private int nextFree(int from) {
        int word = from >>> 6;
        long zeros = ~used[word] & -1L << from;
        while (zeros == 0) {
            word++;
            if (word == used.length) {
                return -1;
            }
            zeros = ~used[word];
        }
        return word * WORD + Long.numberOfTrailingZeros(zeros);
    }

    void give(long run) {
        int first = first(run);
        for (int unit = first; unit < first + count(run); unit++) {
            used[unit >>> 6] &= ~(1L << unit);
        }
        free += count(run);
        cursor = first;
    }
}
