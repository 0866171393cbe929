package baton.store.remote;

import baton.kv.BlockHash;
import baton.store.BatchRanges;
import baton.store.ValueRanges;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import org.jspecify.annotations.Nullable;

/**
 * The values of a batch on their way from a server. A value is read straight into its ranges if they are all of it, and verified there.
 * Otherwise it is read into memory of its own, and copied to them when it has been verified. Each value is of one thread.
 */
public final class ArrivingValues {
    private final ValueHeader header;
    private final List<BlockHash> keys;
    private final BatchRanges ranges;

    /** Headers, one after the other. */
    private final MemorySegment heads;

    /** Values that are not read straight into their ranges. */
    private final @Nullable MemorySegment[] scratch;

    private final ValueHeader.@Nullable Checksum[] checksums;

    public ArrivingValues(ValueHeader header, List<BlockHash> keys, List<ValueRanges> to) {
        this.header = header;
        this.keys = List.copyOf(keys);
        ranges = new BatchRanges(to, keys.size(), header.valueBytes());
        heads = MemorySegment.ofArray(new byte[keys.size() * ValueHeader.BYTES]);
        scratch = new MemorySegment[keys.size()];
        checksums = new ValueHeader.Checksum[keys.size()];
    }

    private MemorySegment head(int key) {
        return heads.asSlice((long) key * ValueHeader.BYTES, ValueHeader.BYTES);
    }

    /** Where a value of the right length goes, with its header. */
    public Destination place(int key) {
        List<MemorySegment> memories = new ArrayList<>();
        memories.add(head(key));
        ranges.pieces(key, header.valueBytes()).ifPresentOrElse(memories::addAll, () -> {
            MemorySegment own = MemorySegment.ofArray(new byte[Math.toIntExact(header.valueBytes())]);
            scratch[key] = own;
            memories.add(own);
        });
        ValueHeader.Checksum checksum = new ValueHeader.Checksum();
        checksums[key] = checksum;
        return new Destination(memories, header.storedBytes()) {
            private int headBytes;

            @Override
            protected void placed(int index, MemorySegment bytes) {
                if (index > 0) {
                    checksum.value(bytes);
                    return;
                }
                headBytes += (int) bytes.byteSize();
                if (headBytes == ValueHeader.BYTES) {
                    checksum.header(head(key));
                }
            }
        };
    }

    /** Where the header goes of a value that has another length. */
    public Destination headOnly(int key, long storedBytes) {
        return new Destination(List.of(head(key)), Math.min(ValueHeader.BYTES, storedBytes));
    }

    /** The failure of a value that has another length, once its header has arrived. */
    public Failure wrongLength(int key, long storedBytes) {
        return header.checkFields(head(key).asSlice(0, Math.min(ValueHeader.BYTES, storedBytes)), keys.get(key))
                .orElse(Failure.LENGTH);
    }

    /** Verifies a value that has arrived, and lets it be in its ranges if nothing is wrong with it. */
    public Optional<Failure> verify(int key) {
        Optional<Failure> failure = header.check(head(key), Objects.requireNonNull(checksums[key]), keys.get(key));
        MemorySegment own = scratch[key];
        if (failure.isEmpty() && own != null) {
            ranges.scatter(key, 0, own, header.valueBytes());
        }
        scratch[key] = null;
        return failure;
    }
}
