package baton.memory;

import java.util.List;

/**
 * The ranges of several memories, cut into pieces to be copied at a time. A piece has a section of each memory's ranges: as each memory has
 * its part of each value, in the same order, neighbouring bytes on the other side are copied together.
 */
final class CopySections {
    /** Ranges of more are cut, to multiples of {@link #CUT}. */
    private static final long UNCUT = 256L << 10;

    private static final long CUT = 64L << 10;
    /** The number of ranges for each piece from which on pieces are even enough without cutting a range. */
    private static final int MANY = 4;

    private final List<? extends CopyRanges> sources;
    private final int pieces;
    /** For each source and piece, the section's first range, and its beginning in that. */
    private final int[][] first;

    private final long[][] at;

    /** @param bytes of all ranges, about */
    CopySections(List<? extends CopyRanges> sources, long bytes, long most) {
        this.sources = sources;
        this.pieces = Math.toIntExact(Math.max(1, Math.ceilDiv(bytes, most)));
        first = new int[sources.size()][pieces + 1];
        at = new long[sources.size()][pieces + 1];
        for (int i = 0; i < first.length; i++) {
            CopyRanges source = sources.get(i);
            if (source.size() >= (long) MANY * pieces) {
                for (int piece = 0; piece <= pieces; piece++) {
                    first[i][piece] = Math.toIntExact((long) source.size() * piece / pieces);
                }
            } else {
                cut(source, first[i], at[i]);
            }
        }
    }

    private void cut(CopyRanges source, int[] ranges, long[] ats) {
        long bytes = 0;
        for (int range = 0; range < source.size(); range++) {
            bytes += source.bytes(range);
        }
        int range = 0;
        long before = 0;
        for (int piece = 0; piece < pieces; piece++) {
            // Whole numbers of bytes, so that the first piece begins with the first range.
            long target = bytes / pieces * piece;
            while (range < source.size() && before + source.bytes(range) <= target) {
                before += source.bytes(range);
                range++;
            }
            ranges[piece] = range;
            ats[piece] = range < source.size() && source.bytes(range) > UNCUT ? (target - before) / CUT * CUT : 0;
        }
        ranges[pieces] = source.size();
    }

    int pieces() {
        return pieces;
    }

    /** The state of a thread that copies pieces. */
    final class Copying {
        private final CopyPlan[] plans;
        private final CopyPlan.Copying by;

        Copying(CopyPlan.Copying by) {
            this.plans = sources.stream().map(CopyRanges::newPlan).toArray(CopyPlan[]::new);
            this.by = by;
        }

        void copy(int piece) {
            for (int i = 0; i < plans.length; i++) {
                CopyPlan plan = plans[i];
                plan.clear();
                add(plan, sources.get(i), first[i], at[i], piece);
                plan.copy(by);
            }
        }

        private void add(CopyPlan plan, CopyRanges source, int[] ranges, long[] ats, int piece) {
            int end = ranges[piece + 1];
            long begin = ats[piece];
            for (int range = ranges[piece]; range <= end && range < source.size(); range++) {
                long until = range == end ? ats[piece + 1] : source.bytes(range);
                if (begin < until) {
                    source.addTo(plan, range, begin, until - begin);
                }
                begin = 0;
            }
        }
    }
}
