package baton.transfer;

import java.util.List;

/**
 * One piece of a transfer.
 *
 * @param local address in this process
 * @param remote address in the peer's process
 * @param bytes its length; positive
 */
public record Range(long local, long remote, long bytes) {
    public Range {
        if (bytes <= 0) {
            throw new IllegalArgumentException("bytes=" + bytes + " must be positive");
        }
    }

    /** Whether another range begins where this one ends, on both sides. */
    public boolean isContinuedBy(Range next) {
        return local + bytes == next.local && remote + bytes == next.remote;
    }

    /** This range with one that continues it. */
    public Range with(Range next) {
        return new Range(local, remote, bytes + next.bytes);
    }

    /** Adds a range to others; one that continues the last is joined with it. */
    public static void append(List<Range> ranges, Range next) {
        if (!ranges.isEmpty() && ranges.getLast().isContinuedBy(next)) {
            ranges.add(ranges.removeLast().with(next));
        } else {
            ranges.add(next);
        }
    }
}
