package baton.cuda.sim;

import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;

/** Copies that {@code cp.async} has begun in a warp. They are done as late as they may be, when a lane waits for their group. */
final class AsyncCopies {
    private final List<Copy> copies = new ArrayList<>();
    /** For each lane the number of groups that it has committed. */
    private final int[] committed = new int[Warp.LANES];

    /** @param from bytes from which {@code fromFirst[lane]} and as many as {@code bytes[lane]} are copied, then zeros up to the size */
    record Copy(Allocation[] from, int[] fromFirst, int[] toFirst, int[] bytes, int size, int[] group, int[] lanes) {}

    void begin(Allocation[] from, int[] fromFirst, int[] toFirst, int[] bytes, int size, int lanes) {
        copies.add(new Copy(from, fromFirst, toFirst, bytes, size, committed.clone(), new int[] {lanes}));
    }

    void commit(int lanes) {
        for (int left = lanes; left != 0; left &= left - 1) {
            committed[Integer.numberOfTrailingZeros(left)]++;
        }
    }

    /** Ends copies of all groups but the last ones. */
    void await(Warp warp, int lanes, int pendingGroups) {
        BlockMemory shared = warp.block.shared;
        for (Iterator<Copy> all = copies.iterator(); all.hasNext(); ) {
            Copy copy = all.next();
            for (int left = lanes & copy.lanes[0]; left != 0; left &= left - 1) {
                int lane = Integer.numberOfTrailingZeros(left);
                if (copy.group[lane] >= committed[lane] - pendingGroups) {
                    continue;
                }
                int to = copy.toFirst[lane];
                int bytes = copy.bytes[lane];
                if (bytes > 0) {
                    System.arraycopy(copy.from[lane].content.bytes, copy.fromFirst[lane], shared.bytes, to, bytes);
                }
                java.util.Arrays.fill(shared.bytes, to + bytes, to + copy.size, (byte) 0);
                shared.arrived(warp, lane, to, copy.size);
                copy.lanes[0] &= ~(1 << lane);
            }
            if (copy.lanes[0] == 0) {
                all.remove();
            }
        }
    }

    boolean isEmpty() {
        return copies.isEmpty();
    }

    void clear() {
        copies.clear();
        java.util.Arrays.fill(committed, 0);
    }
}
