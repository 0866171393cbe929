package baton.memory;

import java.util.Arrays;
import java.util.List;

/** Where the ranges of plans are cut into pieces, to be copied at a time: a piece goes from where it begins to where the next does. */
final class PlanPieces {
    private final List<CopyPlan> plans;
    private int size;
    /** By piece: its plan, its first range there, and where it begins in that range. */
    private int[] plan = new int[64];

    private int[] range = new int[64];
    private long[] at = new long[64];

    private PlanPieces(List<CopyPlan> plans) {
        this.plans = plans;
    }

    /** Pieces of at most so many bytes. */
    static PlanPieces of(List<CopyPlan> plans, long most) {
        PlanPieces pieces = new PlanPieces(plans);
        for (int i = 0; i < plans.size(); i++) {
            // A piece is of one plan.
            long room = 0;
            for (int range = 0; range < plans.get(i).size(); range++) {
                long length = plans.get(i).length(range);
                for (long at = 0; at < length; ) {
                    if (room == 0) {
                        pieces.add(i, range, at);
                        room = most;
                    }
                    long take = Math.min(room, length - at);
                    room -= take;
                    at += take;
                }
            }
        }
        return pieces;
    }

    private void add(int inPlan, int first, long begin) {
        if (size == plan.length) {
            plan = Arrays.copyOf(plan, 2 * size);
            range = Arrays.copyOf(range, 2 * size);
            at = Arrays.copyOf(at, 2 * size);
        }
        plan[size] = inPlan;
        range[size] = first;
        at[size] = begin;
        size++;
    }

    int size() {
        return size;
    }

    boolean isDigested() {
        return plans.stream().anyMatch(CopyPlan::isDigested);
    }

    /** Returns how many bytes. */
    long copy(int piece, CopyPlan.Copying by) {
        CopyPlan ranges = plans.get(plan[piece]);
        if (!ranges.isAlive()) {
            throw new IllegalStateException("memory was freed before it was copied");
        }
        boolean isLast = piece + 1 == size || plan[piece + 1] != plan[piece];
        int endRange = isLast ? ranges.size() : range[piece + 1];
        long endAt = isLast ? 0 : at[piece + 1];
        long copied = 0;
        long begin = at[piece];
        for (int i = range[piece]; i < endRange || i == endRange && begin < endAt; i++) {
            long end = i == endRange ? endAt : ranges.length(i);
            ranges.copy(i, begin, end - begin, by);
            copied += end - begin;
            begin = 0;
        }
        return copied;
    }
}
