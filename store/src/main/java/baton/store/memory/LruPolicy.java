package baton.store.memory;

import baton.kv.BlockHash;
import java.util.function.IntPredicate;

/** Evicts the least recently used value. */
record LruPolicy(NodeLists lists) implements EvictionPolicy {
    private static final int USED = FREE + 1;

    /** The number of {@link NodeLists}, with that of free slots. */
    static final int LISTS = 2;

    @Override
    public void insert(int slot) {
        lists.addLast(USED, slot);
    }

    @Override
    public void remove(int slot) {
        lists.remove(slot);
    }

    @Override
    public void use(int slot, boolean isFilled) {
        lists.moveLast(USED, slot);
    }

    @Override
    public void miss(BlockHash key) {}

    @Override
    public long state() {
        return 0;
    }

    @Override
    public void restore(long state) {}

    @Override
    public int select(int count, IntPredicate take, int[] victims) {
        int found = 0;
        for (int slot = lists.first(USED); slot != NodeLists.NONE && found < count; slot = lists.next(slot)) {
            if (take.test(slot)) {
                victims[found++] = slot;
            }
        }
        return found;
    }

    @Override
    public void evict(int slot) {
        lists.remove(slot);
    }

    @Override
    public boolean isConsistent() {
        return true;
    }

    @Override
    public void forget() {}
}
