package baton.transfer.embedded;

import baton.transfer.Transfer.Cause;
import baton.transfer.TransferAgent.Permit;
import baton.transfer.TransferAgent.Span;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.lang.foreign.MemorySegment;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.NavigableMap;
import java.util.TreeMap;

/** Lets peers that name its token write to some memory of this process, until it is closed: an rkey in RDMA's words. */
final class WriteGrant implements Permit {
    private final MemoryRegistry registry;
    private final long token;
    /** Where pieces of memory end, by where they begin; no two touch. */
    private final NavigableMap<Long, Long> ends;

    @GuardedBy("registry")
    private long writes;

    WriteGrant(MemoryRegistry registry, long token, List<Span> memory) {
        this.registry = registry;
        this.token = token;
        this.ends = new TreeMap<>();
        memory.stream().sorted(Comparator.comparingLong(Span::address)).forEach(each -> {
            Map.Entry<Long, Long> before = ends.lastEntry();
            boolean joins = before != null && before.getValue() >= each.address();
            ends.merge(joins ? before.getKey() : each.address(), each.address() + each.bytes(), Math::max);
        });
    }

    /** Whether all of some memory may be written to by it. */
    boolean holds(MemorySegment memory) {
        Map.Entry<Long, Long> piece = ends.floorEntry(memory.address());
        return piece != null && memory.address() + memory.byteSize() <= piece.getValue();
    }

    /** Counts a write that names it and begins. */
    void countWrite() {
        synchronized (registry) {
            writes++;
        }
    }

    @Override
    public long writes() {
        synchronized (registry) {
            return writes;
        }
    }

    @Override
    public long token() {
        return token;
    }

    @Override
    public void close() {
        registry.remove(this);
        registry.endAll(transfer -> transfer.touches(this), Cause.NOT_PERMITTED, "the permit was closed");
    }
}
