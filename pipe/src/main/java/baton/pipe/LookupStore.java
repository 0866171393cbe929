package baton.pipe;

import baton.kv.Deadline;
import baton.kv.Ticker;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.Iterator;
import java.util.List;
import java.util.Optional;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Entries and waiting lookups, both in the order of their arrival. No stored entry matches a waiting lookup: a new one of either
 * kind is compared with those of the other kind first.
 */
final class LookupStore {
    private static final Logger LOG = LoggerFactory.getLogger(LookupStore.class);

    private final LookupBuffer.Settings settings;
    private final Ticker ticker;

    @GuardedBy("this")
    private final Deque<Kept> kept = new ArrayDeque<>();

    @GuardedBy("this")
    private final Deque<Waiter> waiters = new ArrayDeque<>();

    /** The bytes of stored entries and of matched entries that are not yet released. */
    @GuardedBy("this")
    private long bytes;

    @GuardedBy("this")
    private @Nullable String ended;

    LookupStore(LookupBuffer.Settings settings, Ticker ticker) {
        this.settings = settings;
        this.ticker = ticker;
    }

    /**
     * An inserted entry.
     *
     * @param content empty if the producer says that it will never come
     * @param bytes that it counts for
     * @param since its insertion on the ticker's clock, in nanoseconds
     */
    record Kept(int[] tokens, boolean[] roi, Optional<LookupBuffer.Entry> content, long bytes, long since) {
        private void free() {
            content.ifPresent(LookupBuffer.Entry::close);
        }
    }

    /** A lookup that waits for an entry. */
    abstract static class Waiter {
        final int[] tokens;
        final boolean[] roi;

        Waiter(int[] tokens, boolean[] roi) {
            if (tokens.length != roi.length) {
                throw new IllegalArgumentException(
                        "tokens.length=%d roi.length=%d must be equal".formatted(tokens.length, roi.length));
            }
            this.tokens = tokens.clone();
            this.roi = roi.clone();
        }

        /** Called once, with the store's monitor held; must not wait. Takes the entry over, which counts until it is {@link #release}d. */
        abstract void matched(Kept kept);

        /** Called instead of {@link #matched} when the buffer has ended. */
        abstract void ended(String reason);
    }

    /**
     * Whether an entry matches a lookup: the shorter one of both is a prefix of the other; a lookup without tokens matches any
     * entry.
     */
    static boolean matches(int[] asked, boolean[] askedRoi, int[] tokens, boolean[] roi) {
        if (asked.length == 0) {
            return true;
        }
        int shorter = Math.min(asked.length, tokens.length);
        for (int i = 0; i < shorter; i++) {
            if (asked[i] != tokens[i] || askedRoi[i] != roi[i]) {
                return false;
            }
        }
        return shorter > 0;
    }

    void insert(LookupBuffer.Entry entry, Duration timeout) throws PipeException {
        try {
            reserve(entry.bytes(), timeout);
        } catch (PipeException | RuntimeException e) {
            entry.close();
            throw e;
        }
        add(new Kept(entry.tokens(), entry.roi(), Optional.of(entry), entry.bytes(), ticker.nanos()));
    }

    void insertNever(int[] tokens, boolean[] roi, Duration timeout) throws PipeException {
        long cost = 5L * tokens.length;
        reserve(cost, timeout);
        add(new Kept(tokens.clone(), roi.clone(), Optional.empty(), cost, ticker.nanos()));
    }

    private synchronized void reserve(long cost, Duration timeout) throws PipeException {
        if (cost > settings.bytes()) {
            throw new PipeException("an entry of %d bytes, the buffer holds %d".formatted(cost, settings.bytes()));
        }
        Deadline deadline = Deadline.after(ticker, timeout);
        try {
            while (ended == null && bytes + cost > settings.bytes()) {
                Duration untilOldest = dropOld(cost);
                if (bytes + cost <= settings.bytes()) {
                    break;
                }
                if (deadline.isOver()) {
                    throw new PipeException(
                            "consumers took too few of the %d bytes in the buffer within %d ms: no room for %d within %d"
                                    .formatted(bytes, timeout.toMillis(), cost, settings.bytes()));
                }
                boolean _ = deadline.atMost(untilOldest).awaitNotify(this);
            }
            failIfEnded();
            bytes += cost;
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new PipeException("interrupted while waiting for room", e);
        }
    }

    /**
     * Makes room by dropping entries that were not taken in time.
     *
     * @return the time until the next one may be dropped
     */
    @GuardedBy("this")
    private Duration dropOld(long cost) {
        long keep = settings.keep().toNanos();
        while (!kept.isEmpty() && bytes + cost > settings.bytes()) {
            long age = ticker.nanos() - kept.getFirst().since();
            if (age < keep) {
                return Duration.ofNanos(keep - age);
            }
            Kept old = kept.removeFirst();
            LOG.warn(
                    "dropped an entry that no consumer took for {}: {} tokens, {} bytes",
                    settings.keep(),
                    old.tokens().length,
                    old.bytes());
            bytes -= old.bytes();
            old.free();
        }
        return Deadline.LONGEST;
    }

    private synchronized void add(Kept one) throws PipeException {
        if (ended != null) {
            one.free();
            failIfEnded();
        }
        for (Iterator<Waiter> all = waiters.iterator(); all.hasNext(); ) {
            Waiter waiter = all.next();
            if (matches(waiter.tokens, waiter.roi, one.tokens(), one.roi())) {
                all.remove();
                waiter.matched(one);
                return;
            }
        }
        kept.add(one);
    }

    /** Gives the lookup the oldest entry that matches, now or later. */
    synchronized void await(Waiter waiter) {
        if (ended != null) {
            waiter.ended(ended);
            return;
        }
        for (Iterator<Kept> all = kept.iterator(); all.hasNext(); ) {
            Kept one = all.next();
            if (matches(waiter.tokens, waiter.roi, one.tokens(), one.roi())) {
                all.remove();
                waiter.matched(one);
                return;
            }
        }
        waiters.add(waiter);
    }

    /** @return whether it was still waiting: then none of its methods is called any more */
    synchronized boolean cancel(Waiter waiter) {
        return waiters.remove(waiter);
    }

    /** A matched entry no longer counts. */
    synchronized void release(Kept matched) {
        bytes -= matched.bytes();
        notifyAll();
    }

    @GuardedBy("this")
    private void failIfEnded() throws PipeException {
        if (ended != null) {
            throw new PipeException("the lookup buffer has ended: " + ended);
        }
    }

    void end(String reason) {
        List<Waiter> told;
        synchronized (this) {
            if (ended != null) {
                return;
            }
            ended = reason;
            told = new ArrayList<>(waiters);
            waiters.clear();
            kept.forEach(Kept::free);
            bytes -= kept.stream().mapToLong(Kept::bytes).sum();
            kept.clear();
            notifyAll();
        }
        told.forEach(waiter -> waiter.ended(reason));
    }
}
