package baton.pipe;

import baton.kv.Deadline;
import baton.kv.Ticker;
import java.time.Duration;
import java.util.Optional;

/** A lookup buffer without pipes: insertion and lookup use one store. */
final class InProcessLookupBuffer implements LookupBuffer {
    private final Ticker ticker = Ticker.system();
    private final LookupStore store;

    InProcessLookupBuffer(Settings settings) {
        store = new LookupStore(settings, ticker);
    }

    @Override
    public void insert(Entry entry, Duration timeout) throws PipeException {
        store.insert(entry, timeout);
    }

    @Override
    public void insertNever(int[] tokens, boolean[] roi, Duration timeout) throws PipeException {
        store.insertNever(tokens, roi, timeout);
    }

    @Override
    public Optional<Entry> dropSelect(int[] tokens, boolean[] roi, Duration timeout) throws PipeException {
        PendingLookup<LookupStore.Kept> lookup = new PendingLookup<>();
        LookupStore.Waiter waiter = new LookupStore.Waiter(tokens, roi) {
            @Override
            void matched(LookupStore.Kept kept) {
                lookup.complete(kept);
            }

            @Override
            void ended(String reason) {
                lookup.fail(reason);
            }
        };
        store.await(waiter);
        Optional<LookupStore.Kept> matched;
        try {
            matched = lookup.await(Deadline.after(ticker, timeout));
        } catch (PipeException e) {
            if (!store.cancel(waiter)) {
                // Matched just before.
                lookup.whenAnswered(kept -> {
                    store.release(kept);
                    kept.content().ifPresent(Entry::close);
                });
            }
            throw e;
        }
        if (matched.isEmpty() && !store.cancel(waiter)) {
            matched = lookup.await(Deadline.after(ticker, Duration.ZERO));
        }
        LookupStore.Kept kept = matched.orElseThrow(() -> PendingLookup.late(tokens, timeout));
        store.release(kept);
        return kept.content();
    }

    @Override
    public void close() {
        store.end("it was closed");
    }
}
