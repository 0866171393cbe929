package baton.store.memory;

import baton.kv.BlockHash;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.function.IntPredicate;

/**
 * Adaptive Replacement Cache as in vLLM: values that were stored are in T1, those that were read since in T2. B1 and B2 remember keys that
 * were evicted from them, as many as there are slots each. A key that comes back from B1 makes the room of T1 larger, one from B2 smaller.
 * T1 gives when it has its room or more, otherwise T2.
 *
 * @see Eviction#ARC
 */
final class ArcPolicy implements EvictionPolicy {
    private static final int T1 = FREE + 1;
    private static final int T2 = FREE + 2;

    /** The number of {@link NodeLists}, with that of free slots. */
    static final int LISTS = 3;

    // Lists of ghosts.
    private static final int UNUSED = 0;
    private static final int B1 = 1;
    private static final int B2 = 2;
    private static final int GHOST_LISTS = 3;

    private static final ValueLayout.OfDouble DOUBLE = ValueLayout.JAVA_DOUBLE;
    private static final long TARGET_BYTES = Geometry.ALIGNMENT;

    private final int slots;
    private final NodeLists lists;
    private final KeyIndex keys;
    /** How many slots T1 is to have. */
    private final MemorySegment target;

    private final KeyIndex ghosts;
    private final NodeLists ghostLists;

    /**
     * @param lists of slots
     * @param keys of slots
     * @param memory of {@link #bytes}
     */
    ArcPolicy(int slots, NodeLists lists, KeyIndex keys, MemorySegment memory) {
        this.slots = slots;
        this.lists = lists;
        this.keys = keys;
        int count = ghosts(slots);
        target = memory.asSlice(0, TARGET_BYTES);
        long at = TARGET_BYTES;
        MemorySegment records = memory.asSlice(at, count * KeyIndex.KEY_BYTES);
        at += records.byteSize();
        ghosts = new KeyIndex(memory.asSlice(at, KeyIndex.bytes(count)), records, KeyIndex.KEY_BYTES);
        at += KeyIndex.bytes(count);
        ghostLists = new NodeLists(memory.asSlice(at, NodeLists.bytes(count, GHOST_LISTS)), count, GHOST_LISTS);
    }

    static long bytes(int slots) {
        int count = ghosts(slots);
        return TARGET_BYTES + count * KeyIndex.KEY_BYTES + KeyIndex.bytes(count) + NodeLists.bytes(count, GHOST_LISTS);
    }

    private static int ghosts(int slots) {
        return 2 * slots;
    }

    @Override
    public void insert(int slot) {
        lists.addLast(T1, slot);
        int ghost = ghosts.find(keys.key(slot));
        if (ghost != KeyIndex.NONE) {
            drop(ghost);
        }
    }

    private void drop(int ghost) {
        ghosts.remove(ghost);
        ghostLists.moveLast(UNUSED, ghost);
    }

    @Override
    public void remove(int slot) {
        lists.remove(slot);
    }

    @Override
    public void use(int slot, boolean isFilled) {
        lists.moveLast(isFilled ? T2 : lists.listOf(slot), slot);
    }

    @Override
    public void miss(BlockHash key) {
        int ghost = ghosts.find(key);
        if (ghost == KeyIndex.NONE) {
            return;
        }
        double in1 = ghostLists.size(B1);
        double in2 = ghostLists.size(B2);
        if (ghostLists.listOf(ghost) == B1) {
            setTarget(Math.min(target() + Math.max(1, in2 / in1), slots));
        } else {
            setTarget(Math.max(target() - Math.max(1, in1 / in2), 0));
        }
    }

    double target() {
        return target.get(DOUBLE, 0);
    }

    private void setTarget(double value) {
        target.set(DOUBLE, 0, value);
    }

    /** Sizes of T1, T2, B1 and B2. */
    int[] sizes() {
        return new int[] {lists.size(T1), lists.size(T2), ghostLists.size(B1), ghostLists.size(B2)};
    }

    @Override
    public long state() {
        return Double.doubleToRawLongBits(target());
    }

    @Override
    public void restore(long state) {
        setTarget(Double.longBitsToDouble(state));
    }

    @Override
    public int select(int count, IntPredicate take, int[] victims) {
        int in1 = lists.size(T1);
        int least = (int) target();
        Candidates first = new Candidates(T1, take);
        Candidates second = new Candidates(T2, take);
        int found = 0;
        while (found < count) {
            int slot = in1 >= least ? first.next() : NodeLists.NONE;
            boolean isFirst = slot != NodeLists.NONE;
            if (!isFirst) {
                slot = second.next();
            }
            if (slot == NodeLists.NONE) {
                slot = first.next();
                isFirst = true;
            }
            if (slot == NodeLists.NONE) {
                return found;
            }
            in1 -= isFirst ? 1 : 0;
            victims[found++] = slot;
        }
        return found;
    }

    /** Slots of a list that can go, in order. */
    private final class Candidates {
        private final IntPredicate take;
        private int slot;

        private Candidates(int list, IntPredicate take) {
            this.take = take;
            this.slot = lists.first(list);
        }

        private int next() {
            while (slot != NodeLists.NONE) {
                int candidate = slot;
                slot = lists.next(candidate);
                if (take.test(candidate)) {
                    return candidate;
                }
            }
            return NodeLists.NONE;
        }
    }

    @Override
    public void evict(int slot) {
        int list = lists.listOf(slot) == T1 ? B1 : B2;
        lists.remove(slot);
        if (ghostLists.size(list) == slots) {
            drop(ghostLists.first(list));
        }
        int ghost = ghostLists.removeFirst(UNUSED);
        ghosts.add(ghost, keys.key(slot));
        ghostLists.addLast(list, ghost);
    }

    @Override
    public boolean isConsistent() {
        if (!ghostLists.isConsistent() || !(target() >= 0 && target() <= slots)) {
            return false;
        }
        for (int ghost = 0; ghost < ghosts(slots); ghost++) {
            if (ghostLists.listOf(ghost) != UNUSED && ghosts.find(ghosts.key(ghost)) != ghost) {
                return false;
            }
        }
        return ghosts.size() == ghostLists.size(B1) + ghostLists.size(B2);
    }

    @Override
    public void forget() {
        setTarget(0);
        ghosts.clear();
        ghostLists.clear();
        for (int ghost = 0; ghost < ghosts(slots); ghost++) {
            ghostLists.addLast(UNUSED, ghost);
        }
    }
}
