package baton.transfer.mooncake;

import baton.transfer.Range;
import baton.transfer.mooncake.Lane.Piece;
import baton.transfer.mooncake.LocalBuffers.Held;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;

/** Makes requests of ranges: those that follow each other on both sides are joined, and large ones cut, so that several lanes share them. */
final class Pieces {
    /** Bytes of a piece at most. */
    private static final long MOST = 4L << 20;

    private final SegmentDescriptor descriptor;
    private final List<Run> runs = new ArrayList<>();

    /** @param descriptor ranges are joined only within one of its buffers, as a request must be */
    Pieces(SegmentDescriptor descriptor) {
        this.descriptor = descriptor;
    }

    private record Run(Held first, Range range) {}

    /** @param held the range's memory */
    void add(Range range, Held held) {
        if (!runs.isEmpty()) {
            Run last = runs.getLast();
            Range before = last.range;
            if (last.first.buffer() == held.buffer()
                    && before.isContinuedBy(range)
                    && descriptor.holds(before.remote(), before.bytes() + range.bytes())) {
                runs.removeLast();
                runs.add(new Run(last.first, before.with(range)));
                return;
            }
        }
        runs.add(new Run(held, range));
    }

    List<Piece> cut() {
        List<Piece> pieces = new ArrayList<>();
        for (Run run : runs) {
            MemorySegment memory = run.first.buffer().memory(run.range.local(), run.range.bytes());
            for (long at = 0; at < memory.byteSize(); at += MOST) {
                pieces.add(new Piece(
                        memory.asSlice(at, Math.min(MOST, memory.byteSize() - at)), run.range.remote() + at));
            }
        }
        return pieces;
    }
}
