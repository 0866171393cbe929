package baton.connectors.onesided;

import baton.kv.connector.Rank;
import java.time.Duration;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Optional;
import java.util.Set;

/*
 *   peer ----> arrival ----> check ----> over
 *     |           |            |          ^
 *     +-----------+------------+----------+  cancelled, too late, failed, refused
 *
 * Each phase is left only when nothing that was begun in it can touch the blocks any more.
 */

/**
 * One load: waits for the peer that has the blocks, then for the blocks, then for their check. A connector's protocol is a subclass. A
 * load is over only when nothing writes to its blocks or reads them any more; blocks with other content than promised are invalid then.
 */
public abstract class Load {
    /** Types of failures, in the terms of vLLM's log. */
    protected static final String NO_HANDSHAKE = "handshake_failed";

    protected static final String NO_SETUP = "transfer_setup_failed";
    private static final String NO_TRANSFER = "transfer_failed";

    private final int[] blocks;
    private final Rank rank;
    private final TransferStats stats;
    private final long since;
    private final long deadline;
    private final Set<Integer> invalid = new LinkedHashSet<>();
    private Optional<Arrival> arrival = Optional.empty();
    private Optional<LoadCheck> check = Optional.empty();
    private long connected;
    private Duration arrived = Duration.ZERO;
    private boolean cancelled;
    private boolean over;

    /**
     * @param blocks to be filled
     * @param rank that loads
     * @param since when it begins
     * @param timeout from then to its end
     */
    protected Load(int[] blocks, Rank rank, TransferStats stats, long since, Duration timeout) {
        this.blocks = blocks;
        this.rank = rank;
        this.stats = stats;
        this.since = since;
        this.deadline = since + timeout.toNanos();
    }

    /**
     * Finds the peer and begins the arrival. Empty as long as the peer is not known, and if the load has ended by {@link #fail} or
     * {@link #reject}.
     */
    protected abstract Optional<? extends Arrival> connect(long now);

    /** Cancelled before the peer was known. */
    protected void unwanted() {}

    /** Begins the check of the blocks, which are here. Empty if the load has ended by {@link #fail} or {@link #reject}. */
    protected abstract Optional<? extends LoadCheck> check(long now);

    /** All blocks are as promised. */
    protected void isGood() {}

    /** Counts and logs blocks that are not as promised. */
    protected abstract void onWrong(Map<Integer, Rejection> wrong);

    /** Logs that blocks are refused. */
    protected abstract void onRejected(Rejection cause, String why);

    /** Counts and logs a failure. */
    protected abstract void onFailed(String type, String message, long now);

    /** Why the load ends at its deadline, if it is not to end otherwise. */
    protected abstract Optional<String> late(boolean isConnected);

    /** The load is over and is forgotten. */
    protected void settle(long now) {}

    /** Whether the engine waits for its end. */
    protected boolean isReported() {
        return true;
    }

    public final void cancel() {
        cancelled = true;
        check.ifPresent(LoadCheck::cancel);
    }

    final boolean isOver() {
        return over;
    }

    /** Blocks without the promised content. */
    final Set<Integer> invalid() {
        return invalid;
    }

    /** Whether it came well, and its blocks could not be compared with digests. */
    final boolean isUnverified() {
        return check.filter(done -> over && !done.isVerified()).isPresent();
    }

    /** When it began. */
    protected final long since() {
        return since;
    }

    /** The time left for the load. */
    protected final Duration remaining(long now) {
        return Duration.ofNanos(Math.max(1, deadline - now));
    }

    /** Whether blocks may still arrive. */
    protected final boolean isArriving() {
        return arrival.isPresent() && check.isEmpty() && !over;
    }

    /** Ends the load: its blocks are refused. */
    protected final void reject(Rejection cause, String why) {
        stats.add(cause.measurement(1));
        onRejected(cause, why);
        allInvalid();
    }

    /** Ends the load: it has failed. */
    protected final void fail(String type, String message, long now) {
        onFailed(type, message, now);
        allInvalid();
    }

    private void allInvalid() {
        for (int block : blocks) {
            invalid.add(block);
        }
        over = true;
    }

    /** True if it has come to another phase. */
    final boolean advance(long now) {
        if (over) {
            return false;
        }
        if (check.isPresent()) {
            verify(check.get(), now);
            return over;
        }
        return arrival.isPresent() ? receive(arrival.get(), now) : find(now);
    }

    private boolean find(long now) {
        if (cancelled) {
            unwanted();
            over = true;
            return true;
        }
        arrival = connect(now).map(found -> found);
        if (arrival.isPresent()) {
            connected = now;
            stats.handover("handshake", Duration.ofNanos(now - since));
        } else if (!over) {
            lateReason(now, false).ifPresent(why -> fail(NO_HANDSHAKE, why, now));
        }
        return over || arrival.isPresent();
    }

    private Optional<String> lateReason(long now, boolean isConnected) {
        return now - deadline >= 0 ? late(isConnected) : Optional.empty();
    }

    private boolean receive(Arrival coming, long now) {
        Optional<String> stop = cancelled ? Optional.of("cancelled") : lateReason(now, true);
        if (!coming.advance(stop, now)) {
            return false;
        }
        if (cancelled || !isReported()) {
            over = true;
        } else if (coming.failure().isPresent()) {
            fail(NO_TRANSFER, coming.failure().get(), now);
        } else {
            arrived = Duration.ofNanos(now - connected);
            check = check(now).map(begun -> begun);
        }
        return true;
    }

    private void verify(LoadCheck running, long now) {
        if (!running.advance()) {
            return;
        }
        over = true;
        invalid.addAll(running.wrong().keySet());
        if (running.failure().isPresent()) {
            if (!cancelled) {
                fail(NO_TRANSFER, running.failure().get(), now);
            }
        } else if (!invalid.isEmpty()) {
            onWrong(running.wrong());
        } else {
            // All ranks of an instance load from the same instance: one of them counts.
            if (!running.isVerified() && rank.equals(Rank.FIRST)) {
                stats.count("baton:kv_unverified_loads");
            }
            stats.handover("blocks", arrived);
            running.durations().forEach(stats::handover);
            isGood();
        }
    }

    /** Returns when nothing reads the pool any more. The agent is closed. */
    final void await() {
        arrival.ifPresent(Arrival::await);
        check.ifPresent(LoadCheck::await);
    }
}
