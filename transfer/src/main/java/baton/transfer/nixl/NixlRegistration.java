package baton.transfer.nixl;

import baton.transfer.TransferAgent;

/** Memory that a {@link NixlAgent} has registered with NIXL. */
final class NixlRegistration implements TransferAgent.Registration {
    private final NixlAgent agent;
    private final NixlMemory memory;

    NixlRegistration(NixlAgent agent, NixlMemory memory) {
        this.agent = agent;
        this.memory = memory;
    }

    NixlMemory memory() {
        return memory;
    }

    /** Whether a transfer moves bytes from or into this memory. */
    boolean isUsedBy(NixlTransfer transfer) {
        return transfer.ranges.stream().anyMatch(range -> memory.contains(range.local(), range.bytes()));
    }

    /** Transfers from or into the memory end as refused, and their connections closed if they are not over in a second. */
    @Override
    public void close() {
        agent.unregister(this);
    }
}
