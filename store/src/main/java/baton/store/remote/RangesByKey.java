package baton.store.remote;

import baton.store.ValueRanges;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Optional;
import java.util.stream.IntStream;

/** The ranges of a batch, found by their key. */
public final class RangesByKey {
    private final List<ValueRanges> memories;

    /** By key: index of its first entry in the two below; one more for the end. */
    private final int[] starts;

    private final int[] memory;
    private final int[] range;

    public RangesByKey(int keys, List<ValueRanges> memories) {
        this.memories = List.copyOf(memories);
        starts = new int[keys + 2];
        for (ValueRanges ranges : memories) {
            for (int i = 0; i < ranges.size(); i++) {
                starts[ranges.key(i) + 2]++;
            }
        }
        for (int i = 2; i < starts.length; i++) {
            starts[i] += starts[i - 1];
        }
        // Each start is moved to the next key's while entries are put in: starts[key + 1] becomes the end of key, as
        // needed.
        memory = new int[starts[keys + 1]];
        range = new int[memory.length];
        for (int m = 0; m < memories.size(); m++) {
            ValueRanges ranges = memories.get(m);
            for (int i = 0; i < ranges.size(); i++) {
                int entry = starts[ranges.key(i) + 1]++;
                memory[entry] = m;
                range[entry] = i;
            }
        }
    }

    /**
     * Of whole values.
     *
     * @throws IllegalArgumentException if the ranges of a key do not have the bytes of a value
     */
    public static RangesByKey ofValues(int keys, List<ValueRanges> memories, long valueBytes) {
        RangesByKey ranges = new RangesByKey(keys, memories);
        for (int key = 0; key < keys; key++) {
            if (ranges.bytes(key) != valueBytes) {
                throw new IllegalArgumentException(
                        "ranges of key %d have %d bytes, a value has %d".formatted(key, ranges.bytes(key), valueBytes));
            }
        }
        return ranges;
    }

    /** Sum of the lengths of a key's ranges. */
    public long bytes(int key) {
        long sum = 0;
        for (int i = starts[key]; i < starts[key + 1]; i++) {
            sum += memories.get(memory[i]).bytes(range[i]);
        }
        return sum;
    }

    /**
     * The memory of a key's ranges in the order of the value.
     *
     * @throws IllegalArgumentException if they do not follow each other without gaps from the value's beginning
     */
    public List<MemorySegment> inOrder(int key) {
        return whole(key, bytes(key))
                .orElseThrow(() -> new IllegalArgumentException("ranges of key " + key + " overlap or have gaps"));
    }

    /** The memory of a key's ranges in the order of the value, if they are all of it, each byte once. */
    public Optional<List<MemorySegment>> whole(int key, long valueBytes) {
        int[] entries = IntStream.range(starts[key], starts[key + 1])
                .boxed()
                .sorted(Comparator.comparingLong(i -> memories.get(memory[i]).valueOffset(range[i])))
                .mapToInt(i -> i)
                .toArray();
        List<MemorySegment> pieces = new ArrayList<>(entries.length);
        long end = 0;
        for (int i : entries) {
            ValueRanges in = memories.get(memory[i]);
            if (in.valueOffset(range[i]) != end) {
                return Optional.empty();
            }
            pieces.add(in.memory().asSlice(in.memoryOffset(range[i]), in.bytes(range[i])));
            end += in.bytes(range[i]);
        }
        return end == valueBytes ? Optional.of(pieces) : Optional.empty();
    }

    /** Where a key's value lies in one piece, if it does. */
    public Optional<MemorySegment> inOnePiece(int key, long valueBytes) {
        if (starts[key + 1] - starts[key] != 1) {
            return Optional.empty();
        }
        ValueRanges of = memories.get(memory[starts[key]]);
        int at = range[starts[key]];
        return of.bytes(at) == valueBytes
                ? Optional.of(of.memory().asSlice(of.memoryOffset(at), valueBytes))
                : Optional.empty();
    }

    /** Copies a key's ranges out of their memories, into a value that begins there. */
    public void gather(int key, MemorySegment value, long start) {
        for (int i = starts[key]; i < starts[key + 1]; i++) {
            ValueRanges from = memories.get(memory[i]);
            int at = range[i];
            MemorySegment.copy(
                    from.memory(), from.memoryOffset(at), value, start + from.valueOffset(at), from.bytes(at));
        }
    }

    /** Copies a key's ranges of a value that begins there into their memories. */
    public void scatter(int key, MemorySegment value, long start) {
        for (int i = starts[key]; i < starts[key + 1]; i++) {
            ValueRanges to = memories.get(memory[i]);
            int at = range[i];
            MemorySegment.copy(value, start + to.valueOffset(at), to.memory(), to.memoryOffset(at), to.bytes(at));
        }
    }
}
