package baton.pipe.p2p;

import java.util.EnumMap;
import java.util.Map;
import java.util.concurrent.atomic.LongAdder;

/** The counters of an endpoint. */
public final class P2pStats {
    private final Map<Count, LongAdder> counts = new EnumMap<>(Count.class);

    /** A counter. */
    public enum Count {
        SENT_TENSORS,
        SENT_BYTES,
        RECEIVED_TENSORS,
        RECEIVED_BYTES,
        /** Received tensors that were stored in the pool because the buffer was full. */
        SPILLED_TENSORS,
        SPILLED_BYTES,
        /** Tensors that were not sent. */
        SEND_FAILURES,
        /** Tensors that a peer announced and that there was no memory for. */
        OUT_OF_MEMORY,
        /** Tensors that were not taken in time. */
        EXPIRED,
        /** Tensors that were evicted for later ones before their peer requested them. */
        EVICTED,
        /** Tensors that were not sent because their peer was slow and there was no room for other peers' ones. */
        PUSHED_OUT,
        /** Received tensors of forgotten groups. */
        UNWANTED,
        /** Invalid control messages. */
        MALFORMED,
        /** Peers with addresses that are not allowed, or without the secret. */
        REFUSED_PEERS,
        /** Transfers that ended in the middle. */
        BROKEN,
        /** Received tensors that do not have the peer's checksum. */
        CORRUPT,
        /** Received tensors of peers that send no checksums. */
        UNCHECKED_TENSORS
    }

    public P2pStats() {
        for (Count count : Count.values()) {
            counts.put(count, new LongAdder());
        }
    }

    /** Adds to a counter. */
    public void add(Count count, long value) {
        adder(count).add(value);
    }

    /** The count since the start, or since {@link #take}. */
    public long get(Count count) {
        return adder(count).sum();
    }

    /** The count, which starts at 0 again. */
    public long take(Count count) {
        return adder(count).sumThenReset();
    }

    private LongAdder adder(Count count) {
        return counts.getOrDefault(count, new LongAdder());
    }
}
