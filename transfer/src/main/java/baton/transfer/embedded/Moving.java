package baton.transfer.embedded;

import baton.transfer.Transfer.Cause;
import baton.transfer.Transfer.State;
import baton.transfer.Transfer.State.Done;
import baton.transfer.Transfer.State.Failed;
import java.lang.foreign.MemorySegment;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.List;
import java.util.Set;
import org.jspecify.annotations.Nullable;

/**
 * Ranges on their way, ours or a peer's. It is a gate: whoever touches their memory is between {@link #enter} and {@link #exit}, for
 * a piece at a time and never waiting for anybody. So it is over, with nobody inside, soon after it is ended.
 */
abstract class Moving {
    private static final Duration LONGEST = Duration.ofDays(1);

    private final long begun;
    private final long deadline;
    /** What it touches: {@link EmbeddedAgent.Registered}, {@link PeerMemory.Mapped} and {@link Permits.Given}. */
    private final Set<Object> memory;

    private final long bytes;
    private int inside;
    private @Nullable State end;
    private boolean over;

    /**
     * @param begun when, in the system's nanoseconds
     * @param timeout after it, {@link #endIfLate} ends it
     */
    Moving(Set<Object> memory, long bytes, long begun, Duration timeout) {
        this.begun = begun;
        this.deadline = begun + (timeout.compareTo(LONGEST) > 0 ? LONGEST : timeout).toNanos();
        this.memory = memory;
        this.bytes = bytes;
    }

    /** Called once, when nothing touches the memory any more. */
    abstract void over(State end);

    final void endIfLate() {
        if (deadline - System.nanoTime() <= 0) {
            fail(
                    Cause.TIMEOUT,
                    "not done after %d ms"
                            .formatted(Duration.ofNanos(deadline - begun).toMillis()));
        }
    }

    /** Until its deadline. */
    final Duration timeLeft() {
        return Duration.ofNanos(Math.max(0, deadline - System.nanoTime()));
    }

    final long bytes() {
        return bytes;
    }

    final boolean touches(Object part) {
        return memory.contains(part);
    }

    /** @return false if it has been ended; otherwise {@link #exit} must follow */
    final synchronized boolean enter() {
        if (end != null) {
            return false;
        }
        inside++;
        return true;
    }

    final void exit() {
        State last;
        synchronized (this) {
            inside--;
            last = lastOne();
        }
        if (last != null) {
            over(last);
        }
    }

    final synchronized boolean ended() {
        return end != null;
    }

    final void succeed() {
        end(new Done(bytes, Duration.ofNanos(System.nanoTime() - begun)));
    }

    final void fail(Cause cause, String message) {
        end(new Failed(cause, message));
    }

    private void end(State state) {
        State last;
        synchronized (this) {
            if (end != null) {
                return;
            }
            end = state;
            last = lastOne();
        }
        if (last != null) {
            over(last);
        }
    }

    private @Nullable State lastOne() {
        if (end == null || inside > 0 || over) {
            return null;
        }
        over = true;
        notifyAll();
        return end;
    }

    /** Waits until nobody is inside; it has been ended. */
    final void awaitOver() {
        boolean interrupted = false;
        synchronized (this) {
            while (!over) {
                try {
                    wait();
                } catch (InterruptedException _) {
                    interrupted = true;
                }
            }
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    /** Where a stream is in its ranges. One thread uses it. */
    static final class Cursor {
        private static final int MOST_BUFFERS = 256;

        private final List<MemorySegment> ranges;
        private int range;
        private long offset;
        private long left;

        Cursor(List<MemorySegment> ranges) {
            this.ranges = ranges;
            for (MemorySegment each : ranges) {
                left += each.byteSize();
            }
        }

        long left() {
            return left;
        }

        /** The next bytes, or fewer if they are many ranges, after {@code first}. */
        ByteBuffer[] next(long most, ByteBuffer... first) {
            int count = first.length;
            long bytes = 0;
            for (int i = range; i < ranges.size() && bytes < most && count < MOST_BUFFERS; i++, count++) {
                bytes += ranges.get(i).byteSize() - (i == range ? offset : 0);
            }
            ByteBuffer[] buffers = new ByteBuffer[count];
            System.arraycopy(first, 0, buffers, 0, first.length);
            long wanted = most;
            for (int i = range, at = first.length; at < count; i++, at++) {
                long from = i == range ? offset : 0;
                long length = Math.min(wanted, ranges.get(i).byteSize() - from);
                buffers[at] = ranges.get(i).asSlice(from, length).asByteBuffer();
                wanted -= length;
            }
            return buffers;
        }

        void advance(long bytes) {
            left -= bytes;
            long more = bytes;
            while (more > 0) {
                long here = Math.min(more, ranges.get(range).byteSize() - offset);
                offset += here;
                more -= here;
                if (offset == ranges.get(range).byteSize()) {
                    range++;
                    offset = 0;
                }
            }
        }
    }
}
