package baton.store;

import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;

/** The ranges of a batch's values, in whatever memories they are, by key and then by their place in the value. Immutable. */
public final class BatchRanges {
    /**
     * The bits of a range's number in a key for sorting: enough for a value's ranges, and the rest for offsets in values of half a
     * terabyte.
     */
    private static final int PLACE_BITS = 24;

    /** Range {@code i} is the {@code index[i]}th of {@code from[i]}. */
    private final ValueRanges[] from;

    private final int[] index;

    /** Where the ranges of each key begin, and the end of the last one's. */
    private final int[] first;

    /** @throws IllegalArgumentException if a range is not within a value of a key of the batch */
    public BatchRanges(List<ValueRanges> memories, int keys, long valueBytes) {
        first = new int[keys + 1];
        for (ValueRanges ranges : memories) {
            for (int i = 0; i < ranges.size(); i++) {
                int key = ranges.key(i);
                if (key < 0
                        || key >= keys
                        || ranges.valueOffset(i) < 0
                        || ranges.bytes(i) > valueBytes - ranges.valueOffset(i)) {
                    throw new IllegalArgumentException(
                            "key=%d of %d, valueOffset=%d length=%d are not within a value of %d bytes"
                                    .formatted(key, keys, ranges.valueOffset(i), ranges.bytes(i), valueBytes));
                }
                first[key + 1]++;
            }
        }
        for (int key = 0; key < keys; key++) {
            first[key + 1] += first[key];
        }
        from = new ValueRanges[first[keys]];
        index = new int[first[keys]];
        int[] filled = new int[keys];
        for (ValueRanges ranges : memories) {
            for (int i = 0; i < ranges.size(); i++) {
                int at = first[ranges.key(i)] + filled[ranges.key(i)]++;
                from[at] = ranges;
                index[at] = i;
            }
        }
        for (int key = 0; key < keys; key++) {
            sort(first[key], first[key + 1]);
        }
    }

    private void sort(int begin, int end) {
        int ordered = begin + 1;
        while (ordered < end && valueOffset(ordered - 1) <= valueOffset(ordered)) {
            ordered++;
        }
        if (ordered >= end) {
            return;
        }
        long[] order = new long[end - begin];
        for (int i = 0; i < order.length; i++) {
            order[i] = valueOffset(begin + i) << PLACE_BITS | i;
        }
        Arrays.sort(order);
        ValueRanges[] unsortedFrom = Arrays.copyOfRange(from, begin, end);
        int[] unsortedIndex = Arrays.copyOfRange(index, begin, end);
        for (int i = 0; i < order.length; i++) {
            int place = (int) order[i] & (1 << PLACE_BITS) - 1;
            from[begin + i] = unsortedFrom[place];
            index[begin + i] = unsortedIndex[place];
        }
    }

    private long valueOffset(int i) {
        return from[i].valueOffset(index[i]);
    }

    private long end(int i) {
        return valueOffset(i) + from[i].bytes(index[i]);
    }

    /**
     * Ranges that are whole values, each byte once.
     *
     * @throws IllegalArgumentException if they are not
     */
    public static BatchRanges ofValues(List<ValueRanges> memories, int keys, long valueBytes) {
        BatchRanges ranges = new BatchRanges(memories, keys, valueBytes);
        for (int key = 0; key < keys; key++) {
            if (ranges.pieces(key, valueBytes).isEmpty()) {
                throw new IllegalArgumentException(
                        "the ranges of key %d are not a value of %d bytes".formatted(key, valueBytes));
            }
        }
        return ranges;
    }

    /** The memory of a key's ranges in the order of the value, if they are all of it, each byte once. */
    public Optional<List<MemorySegment>> pieces(int key, long valueBytes) {
        List<MemorySegment> pieces = new ArrayList<>(first[key + 1] - first[key]);
        long end = 0;
        for (int i = first[key]; i < first[key + 1]; i++) {
            if (valueOffset(i) != end) {
                return Optional.empty();
            }
            pieces.add(from[i].memory().asSlice(from[i].memoryOffset(index[i]), from[i].bytes(index[i])));
            end = end(i);
        }
        return end == valueBytes ? Optional.of(pieces) : Optional.empty();
    }

    /** The value's memory, if it is one range. */
    public Optional<MemorySegment> whole(int key, long valueBytes) {
        int i = first[key];
        return first[key + 1] == i + 1 && from[i].bytes(index[i]) == valueBytes
                ? Optional.of(from[i].memory().asSlice(from[i].memoryOffset(index[i]), valueBytes))
                : Optional.empty();
    }

    /** Copies a piece of a value from its ranges. */
    public void gather(int key, long offset, MemorySegment piece, long bytes) {
        copy(key, offset, piece, bytes, true);
    }

    /** Copies a piece of a value to those ranges that have parts of it. */
    public void scatter(int key, long offset, MemorySegment piece, long bytes) {
        copy(key, offset, piece, bytes, false);
    }

    private void copy(int key, long offset, MemorySegment piece, long bytes, boolean toPiece) {
        for (int i = first[key]; i < first[key + 1] && valueOffset(i) < offset + bytes; i++) {
            long begin = Math.max(offset, valueOffset(i));
            long length = Math.min(offset + bytes, end(i)) - begin;
            if (length > 0) {
                MemorySegment memory = from[i].memory();
                long inMemory = from[i].memoryOffset(index[i]) + begin - valueOffset(i);
                if (toPiece) {
                    MemorySegment.copy(memory, inMemory, piece, begin - offset, length);
                } else {
                    MemorySegment.copy(piece, begin - offset, memory, inMemory, length);
                }
            }
        }
    }
}
