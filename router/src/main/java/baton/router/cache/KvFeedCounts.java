package baton.router.cache;

import java.util.concurrent.atomic.LongAdder;

/**
 * What came from publishers, all together.
 *
 * @param batches messages
 * @param replayed messages that were missed at first and asked for
 * @param lost times that what was known of a publisher was void
 * @param malformed messages that could not be read
 */
public record KvFeedCounts(LongAdder batches, LongAdder replayed, LongAdder lost, LongAdder malformed) {
    KvFeedCounts() {
        this(new LongAdder(), new LongAdder(), new LongAdder(), new LongAdder());
    }
}
