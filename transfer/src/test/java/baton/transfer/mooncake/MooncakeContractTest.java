package baton.transfer.mooncake;

import baton.transfer.Region;
import baton.transfer.TransferAgent;
import baton.transfer.TransferAgentContract;
import baton.transfer.TransferException;
import java.lang.foreign.Arena;
import java.util.Optional;

/** The contract of every agent, over Mooncake's protocols with peers that are asked for their descriptors. */
class MooncakeContractTest extends TransferAgentContract {
    @Override
    protected TransferAgent open(String prefix) throws TransferException {
        return MooncakeAgent.open(MooncakeAgentSettings.at("127.0.0.1"));
    }

    @Override
    protected Region allocate(Arena arena, long bytes) {
        return new Region(arena.allocate(bytes, 64), Optional.empty());
    }
}
