package baton.store.memory;

import baton.kv.BlockHash;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.List;

/**
 * Finds nodes by their keys: open addressing with linear probing. Keys lie in records, one for each node; the index has their numbers. Keys
 * are digests, so a part of one is its hash.
 *
 * <p>One thread changes it at a time. {@link #find} may run beside a change: it ends then, and finds nothing or a node, the key of which may
 * change before it returns. Numbers that no node has, as a damaged file may hold, are passed over; a change that cannot be made because
 * of such damage ends with an {@link IndexOutOfBoundsException}.
 */
final class KeyIndex {
    static final int NONE = -1;
    static final long KEY_BYTES = 4L * Long.BYTES;

    private static final ValueLayout.OfInt INT = ValueLayout.JAVA_INT;
    private static final ValueLayout.OfLong LONG = ValueLayout.JAVA_LONG;
    /** 2^64 over the golden ratio: spreads keys that a test counts up. */
    private static final long SPREAD = 0x9E3779B97F4A7C15L;

    private static final int LEAST = 16;

    /** Node + 1; 0 where there is none. */
    private final MemorySegment places;

    private final int mask;
    private final MemorySegment records;
    private final long recordBytes;
    private final int nodes;

    /**
     * @param places of {@link #bytes}
     * @param records each begins with a key
     */
    KeyIndex(MemorySegment places, MemorySegment records, long recordBytes) {
        this.places = places;
        this.mask = Math.toIntExact(places.byteSize() / Integer.BYTES) - 1;
        this.records = records;
        this.recordBytes = recordBytes;
        this.nodes = Math.toIntExact(records.byteSize() / recordBytes);
    }

    /** The bytes of an index of {@code nodes} nodes. */
    static long bytes(int nodes) {
        long places = Long.highestOneBit(Math.max(LEAST, 2L * nodes - 1)) * 2;
        return places * Integer.BYTES;
    }

    int find(BlockHash key) {
        int place = home(key.a());
        for (int i = 0; i <= mask; i++) {
            int node = at(place) - 1;
            if (node < 0) {
                return NONE;
            }
            if (node < nodes && isKey(node, key)) {
                return node;
            }
            place = place + 1 & mask;
        }
        return NONE;
    }

    /**
     * Where {@link #find} begins for each of many keys: a node that may or may not have the key. Without a branch, so that the look-ups
     * wait for memory at the same time, not one after the other.
     *
     * @return with the first word of each node's key in {@code firstWords}
     */
    int[] firstTries(List<BlockHash> keys, long[] firstWords) {
        int[] tries = new int[firstWords.length];
        for (int i = 0; i < tries.length; i++) {
            tries[i] = Math.min(Math.max(at(home(keys.get(i).a())) - 1, 0), nodes - 1);
        }
        for (int i = 0; i < tries.length; i++) {
            firstWords[i] = records.get(LONG, tries[i] * recordBytes);
        }
        return tries;
    }

    boolean isKey(int node, BlockHash key) {
        long at = node * recordBytes;
        return records.get(LONG, at) == key.a()
                && records.get(LONG, at + 8) == key.b()
                && records.get(LONG, at + 16) == key.c()
                && records.get(LONG, at + 24) == key.d();
    }

    BlockHash key(int node) {
        long at = node * recordBytes;
        return new BlockHash(
                records.get(LONG, at),
                records.get(LONG, at + 8),
                records.get(LONG, at + 16),
                records.get(LONG, at + 24));
    }

    /** The number of entries. */
    int size() {
        int size = 0;
        for (int place = 0; place <= mask; place++) {
            size += at(place) != 0 ? 1 : 0;
        }
        return size;
    }

    /** Gives a node that is not in the index its key, and adds it. */
    void add(int node, BlockHash key) {
        long at = node * recordBytes;
        records.set(LONG, at, key.a());
        records.set(LONG, at + 8, key.b());
        records.set(LONG, at + 16, key.c());
        records.set(LONG, at + 24, key.d());
        add(node);
    }

    /** Adds a node by the key that it has. */
    void add(int node) {
        int place = home(node);
        for (int i = 0; at(place) != 0; i++) {
            if (i == mask) {
                throw new IndexOutOfBoundsException("no place is left for node " + node + " in the index");
            }
            place = place + 1 & mask;
        }
        put(place, node + 1);
    }

    /** Removes a node; its key is still there. */
    void remove(int node) {
        int gap = home(node);
        for (int i = 0; at(gap) != node + 1; i++) {
            if (at(gap) == 0 || i == mask) {
                throw new IndexOutOfBoundsException("node " + node + " is not in the index");
            }
            gap = gap + 1 & mask;
        }
        int removed = gap;
        // The entries that follow move up, unless one would be before its home.
        for (int place = gap + 1 & mask; at(place) != 0 && place != removed; place = place + 1 & mask) {
            int home = home(at(place) - 1);
            if ((place - home & mask) >= (place - gap & mask)) {
                put(gap, at(place));
                gap = place;
            }
        }
        put(gap, 0);
    }

    void clear() {
        places.fill((byte) 0);
    }

    private int home(int node) {
        return home(records.get(LONG, node * recordBytes));
    }

    private int home(long firstOfKey) {
        return (int) (firstOfKey * SPREAD >>> 32) & mask;
    }

    private int at(int place) {
        return places.get(INT, (long) place * Integer.BYTES);
    }

    private void put(int place, int node) {
        places.set(INT, (long) place * Integer.BYTES, node);
    }
}
