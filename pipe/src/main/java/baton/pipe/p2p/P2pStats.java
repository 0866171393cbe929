package baton.pipe.p2p;

import java.util.EnumMap;
import java.util.Map;
import java.util.concurrent.atomic.LongAdder;

/** Counts what an endpoint does. */
public final class P2pStats {
    private final Map<Count, LongAdder> counts = new EnumMap<>(Count.class);

    /** What is counted. */
    public enum Count {
        SENT_TENSORS,
        SENT_BYTES,
        RECEIVED_TENSORS,
        RECEIVED_BYTES,
        /** Received tensors that went to the pool, as the buffer was full. */
        SPILLED_TENSORS,
        SPILLED_BYTES,
        /** Tensors that were not sent. */
        SEND_FAILURES,
        /** Tensors that a peer wanted to put and there was no memory for. */
        OUT_OF_MEMORY,
        /** Tensors that nobody took in time. */
        EXPIRED,
        /** Tensors that had to make room for later ones before they were got. */
        EVICTED,
        /** Tensors that were not sent, as their peer was slow and there was no room for those of others. */
        PUSHED_OUT,
        /** Tensors of what nobody wants any more. */
        UNWANTED,
        /** Control messages that are none. */
        MALFORMED,
        /** Peers whose addresses are not allowed. */
        REFUSED_PEERS,
        /** Transfers that broke in the middle. */
        BROKEN
    }

    public P2pStats() {
        for (Count count : Count.values()) {
            counts.put(count, new LongAdder());
        }
    }

    /** Counts. */
    public void add(Count count, long value) {
        adder(count).add(value);
    }

    /** Since the beginning, or since {@link #take}. */
    public long get(Count count) {
        return adder(count).sum();
    }

    /** And begins at 0 again. */
    public long take(Count count) {
        return adder(count).sumThenReset();
    }

    private LongAdder adder(Count count) {
        return counts.getOrDefault(count, new LongAdder());
    }
}
