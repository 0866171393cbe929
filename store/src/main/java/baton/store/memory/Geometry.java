package baton.store.memory;

import baton.store.StoreFormat;
import java.lang.foreign.MemorySegment;

/**
 * Where things are in the memory of a store.
 *
 * @param slots number of values
 * @param slotBytes of a value, with padding that aligns the next one
 */
record Geometry(int slots, long slotBytes, Eviction eviction) {
    /** The alignment of slots, as the copying kernel takes them. */
    static final long ALIGNMENT = 64;

    private static final int MOST_SLOTS = 1 << 28;
    /** The first part of the tables: a counter of changes. */
    private static final long CHANGES_BYTES = ALIGNMENT;

    /**
     * Of values of a format.
     *
     * @throws IllegalArgumentException if there is no room for one
     */
    static Geometry of(StoreFormat format, long capacityBytes, Eviction eviction) {
        long slotBytes = aligned(format.valueBytes());
        long slots = capacityBytes / slotBytes;
        if (slots == 0) {
            throw new IllegalArgumentException(
                    "capacityBytes=%d has no room for a value of %d bytes (%d tokens); it has to be at least %d"
                            .formatted(capacityBytes, format.valueBytes(), format.tokens(), slotBytes));
        }
        return new Geometry(Math.toIntExact(Math.min(slots, MOST_SLOTS)), slotBytes, eviction);
    }

    private static long aligned(long bytes) {
        return Math.ceilDiv(bytes, ALIGNMENT) * ALIGNMENT;
    }

    long slotsBytes() {
        return slots * slotBytes;
    }

    private long recordsBytes() {
        return slots * SlotTable.RECORD;
    }

    private long indexBytes() {
        return aligned(KeyIndex.bytes(slots));
    }

    private long listsBytes() {
        return aligned(NodeLists.bytes(slots, lists()));
    }

    private int lists() {
        return switch (eviction) {
            case LRU -> LruPolicy.LISTS;
            case ARC -> ArcPolicy.LISTS;
        };
    }

    private long policyBytes() {
        return switch (eviction) {
            case LRU -> 0;
            case ARC -> aligned(ArcPolicy.bytes(slots));
        };
    }

    private long policyAt() {
        return CHANGES_BYTES + recordsBytes() + indexBytes() + listsBytes();
    }

    long tableBytes() {
        return policyAt() + policyBytes();
    }

    MemorySegment changes(MemorySegment tables) {
        return tables.asSlice(0, CHANGES_BYTES);
    }

    SlotTable table(MemorySegment tables) {
        long index = CHANGES_BYTES + recordsBytes();
        return new SlotTable(
                tables.asSlice(CHANGES_BYTES, recordsBytes()), tables.asSlice(index, KeyIndex.bytes(slots)));
    }

    NodeLists lists(MemorySegment tables) {
        long at = CHANGES_BYTES + recordsBytes() + indexBytes();
        return new NodeLists(tables.asSlice(at, NodeLists.bytes(slots, lists())), slots, lists());
    }

    EvictionPolicy policy(NodeLists lists, KeyIndex keys, MemorySegment tables) {
        return switch (eviction) {
            case LRU -> new LruPolicy(lists);
            case ARC -> new ArcPolicy(slots, lists, keys, tables.asSlice(policyAt(), policyBytes()));
        };
    }
}
