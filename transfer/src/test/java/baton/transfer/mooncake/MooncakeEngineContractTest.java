package baton.transfer.mooncake;

import static org.junit.jupiter.api.Assumptions.abort;

import baton.transfer.Region;
import baton.transfer.TransferAgent;
import baton.transfer.TransferAgentContract;
import baton.transfer.TransferException;
import java.lang.foreign.Arena;
import java.util.Optional;

/** What holds for every agent, over Mooncake's library with TCP. Needs the library, which {@code BATON_MOONCAKE_LIBRARY} names. */
class MooncakeEngineContractTest extends TransferAgentContract {
    @Override
    protected TransferAgent open(String prefix) throws TransferException {
        return switch (MooncakeLibrary.find(Optional.empty())) {
            case MooncakeLibrary.Found library -> MooncakeEngineAgent.open(library, EngineSettings.at("127.0.0.1"));
            case MooncakeLibrary.Absent absent -> abort(absent.reason());
        };
    }

    @Override
    protected Region allocate(Arena arena, long bytes) {
        return new Region(arena.allocate(bytes, 64), Optional.empty());
    }
}
