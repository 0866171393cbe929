package baton.store.memory;

import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/** Doubly linked lists of numbered nodes, in memory. A node is in one list or none. One thread uses them at a time. */
final class NodeLists {
    static final int NONE = -1;

    private static final ValueLayout.OfInt INT = ValueLayout.JAVA_INT;
    /** {@code [previous | next | list]}, and of a list {@code [first | last | size]}. */
    private static final long ENTRY = 3L * Integer.BYTES;

    private final MemorySegment lists;
    private final MemorySegment nodes;
    private final int count;
    private final int nodeCount;

    /** @param memory of {@link #bytes} */
    NodeLists(MemorySegment memory, int nodes, int lists) {
        this.count = lists;
        this.nodeCount = nodes;
        this.lists = memory.asSlice(0, lists * ENTRY);
        this.nodes = memory.asSlice(lists * ENTRY, nodes * ENTRY);
    }

    static long bytes(int nodes, int lists) {
        return ((long) nodes + lists) * ENTRY;
    }

    /** Empties all lists. */
    void clear() {
        for (int list = 0; list < count; list++) {
            setList(list, 0, NONE);
            setList(list, 1, NONE);
            setList(list, 2, 0);
        }
        nodes.fill((byte) 0xff);
    }

    /**
     * Whether nodes that follow each other agree, each list has as many as it says, and each node is in a list.
     *
     * @throws IndexOutOfBoundsException if a number is not one of a node, which says the same
     */
    boolean isConsistent() {
        int inLists = 0;
        for (int list = 0; list < count; list++) {
            int size = 0;
            int previous = NONE;
            for (int node = first(list); node != NONE; node = next(node)) {
                if (get(node, 0) != previous || listOf(node) != list || ++size > size(list)) {
                    return false;
                }
                previous = node;
            }
            if (size != size(list) || lists.get(INT, list * ENTRY + Integer.BYTES) != previous) {
                return false;
            }
            inLists += size;
        }
        return inLists == nodeCount;
    }

    int size(int list) {
        return lists.get(INT, list * ENTRY + 2 * Integer.BYTES);
    }

    int first(int list) {
        return lists.get(INT, list * ENTRY);
    }

    /** The node after one in its list. */
    int next(int node) {
        return get(node, 1);
    }

    /** The list that a node is in. */
    int listOf(int node) {
        return get(node, 2);
    }

    void addLast(int list, int node) {
        int last = lists.get(INT, list * ENTRY + Integer.BYTES);
        set(node, 0, last);
        set(node, 1, NONE);
        set(node, 2, list);
        if (last == NONE) {
            setList(list, 0, node);
        } else {
            set(last, 1, node);
        }
        setList(list, 1, node);
        setList(list, 2, size(list) + 1);
    }

    /** Takes a node out of its list, if it is in one. */
    void remove(int node) {
        int list = listOf(node);
        if (list == NONE) {
            return;
        }
        int previous = get(node, 0);
        int next = get(node, 1);
        if (previous == NONE) {
            setList(list, 0, next);
        } else {
            set(previous, 1, next);
        }
        if (next == NONE) {
            setList(list, 1, previous);
        } else {
            set(next, 0, previous);
        }
        set(node, 2, NONE);
        setList(list, 2, size(list) - 1);
    }

    void moveLast(int list, int node) {
        remove(node);
        addLast(list, node);
    }

    /** Takes the first node of a list that has one. */
    int removeFirst(int list) {
        int first = first(list);
        remove(first);
        return first;
    }

    private int get(int node, int field) {
        return nodes.get(INT, node * ENTRY + (long) field * Integer.BYTES);
    }

    private void set(int node, int field, int value) {
        nodes.set(INT, node * ENTRY + (long) field * Integer.BYTES, value);
    }

    private void setList(int list, int field, int value) {
        lists.set(INT, list * ENTRY + (long) field * Integer.BYTES, value);
    }
}
