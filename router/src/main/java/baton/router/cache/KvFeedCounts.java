package baton.router.cache;

import java.util.concurrent.atomic.LongAdder;

/**
 * The counts of all publishers' messages together.
 *
 * @param batches messages
 * @param replayed messages that were missed at first and asked for
 * @param lost times that a publisher's known blocks were dropped
 * @param malformed messages that could not be read
 */
public record KvFeedCounts(LongAdder batches, LongAdder replayed, LongAdder lost, LongAdder malformed) {
    KvFeedCounts() {
        this(new LongAdder(), new LongAdder(), new LongAdder(), new LongAdder());
    }
}
