package baton.connectors.onesided;

import java.util.Optional;

/*
 *   waiting (for the prompt and the reader) ----> writing ----> ending ----> over
 *     |                                             |             ^
 *     +---------------------------------------------+-------------+  gone, too late, cancelled, given up
 *
 * A push ends only when none of its writes is under way. The first reason for which it failed counts.
 */

/**
 * One reader's blocks of a prompt, on their way: waits for the prompt and for the connection to the reader, writes, and notifies the
 * reader of the end when no write is under way. A connector's protocol is a subclass.
 */
public abstract class Push {
    private final long deadline;
    private Optional<String> failure = Optional.empty();
    private boolean over;

    /** @param deadline when it fails, if it has not ended ({@link #late}) */
    protected Push(long deadline) {
        this.deadline = deadline;
    }

    /** Why the reader needs nothing more, if it does not. */
    protected abstract Optional<String> lost(long now);

    /** Why the push fails after its deadline. Empty if it is to end otherwise. */
    protected abstract Optional<String> late();

    /**
     * Writes the complete blocks, if the prompt is here and the reader is connected. True if nothing is left to write. May fail the push.
     */
    protected abstract boolean write(long now);

    /** Asks for the end of the writes that are under way. */
    protected abstract void cancelWrites();

    /** True if no write is under way, and nothing reads the blocks. May fail the push. */
    protected abstract boolean isQuiet(long now);

    /** Notifies the reader of the end, good or bad. False if that is to be tried again. */
    protected abstract boolean end(long now);

    public final Optional<String> failure() {
        return failure;
    }

    public final boolean hasFailed() {
        return failure.isPresent();
    }

    /** Has it fail, unless it has failed already. */
    public final void fail(String why) {
        if (failure.isEmpty()) {
            failure = Optional.of(why);
            cancelWrites();
        }
    }

    protected final boolean isLate(long now) {
        return now - deadline >= 0;
    }

    /** Goes on as far as possible. True if it is over. */
    public final boolean advance(long now) {
        if (over) {
            return true;
        }
        lost(now).ifPresent(this::fail);
        if (isLate(now)) {
            late().ifPresent(this::fail);
        }
        boolean written = failure.isEmpty() && write(now);
        if (isQuiet(now) && (failure.isPresent() || written)) {
            over = end(now);
        }
        return over;
    }
}
