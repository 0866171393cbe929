package baton.transfer.nixl;

import baton.transfer.TransferAgent;
import java.lang.foreign.MemorySegment;

/** Memory that a {@link NixlAgent} has registered with NIXL. */
final class NixlRegistration implements TransferAgent.Registration {
    private final NixlAgent agent;
    private final long address;
    private final long bytes;

    NixlRegistration(NixlAgent agent, MemorySegment memory) {
        this.agent = agent;
        address = memory.address();
        bytes = memory.byteSize();
    }

    long address() {
        return address;
    }

    long bytes() {
        return bytes;
    }

    boolean contains(long start, long length) {
        return start >= address && length <= bytes && start - address <= bytes - length;
    }

    /** Whether a transfer moves bytes from or into this memory. */
    boolean isUsedBy(NixlTransfer transfer) {
        return transfer.ranges.stream().anyMatch(range -> contains(range.local(), range.bytes()));
    }

    /** Transfers from or into the memory end as refused, and their connections closed if they are not over in a second. */
    @Override
    public void close() {
        agent.unregister(this);
    }
}
