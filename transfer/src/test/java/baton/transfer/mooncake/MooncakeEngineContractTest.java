package baton.transfer.mooncake;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.abort;

import baton.transfer.Range;
import baton.transfer.Region;
import baton.transfer.Transfer.State;
import baton.transfer.TransferAgent;
import baton.transfer.TransferAgent.Operation;
import baton.transfer.TransferAgent.Peer;
import baton.transfer.TransferAgentContract;
import baton.transfer.TransferException;
import java.lang.foreign.Arena;
import java.util.List;
import java.util.Optional;
import org.junit.jupiter.api.Test;

/** The contract of every agent, over Mooncake's library with TCP. Needs the library, which {@code BATON_MOONCAKE_LIBRARY} names. */
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

    @Test
    void theAgentInJavaExchangesBytesWithTheLibrarys() throws TransferException {
        try (MooncakeAgent java = MooncakeAgent.open(MooncakeAgentSettings.at("127.0.0.1"));
                Arena memory = Arena.ofShared()) {
            Region region = allocate(memory, 1 << 20);
            java.register(region);
            fill(region.memory(), 51);
            Peer ofJava = here.connect(java.metadata(), LONG);
            assertThat(finish(here.start(
                            Operation.READ,
                            ofJava,
                            List.of(new Range(mine.address(), region.memory().address(), 1 << 20)),
                            Optional.empty(),
                            LONG)))
                    .isInstanceOf(State.Done.class);
            assertThat(mine.mismatch(region.memory())).isEqualTo(-1);
            fill(region.memory(), 52);
            assertThat(finish(java.start(
                            Operation.WRITE,
                            java.connect(there.metadata(), LONG),
                            List.of(new Range(region.memory().address(), remoteMemory.address(), 1 << 20)),
                            Optional.of(text("written")),
                            LONG)))
                    .isInstanceOf(State.Done.class);
            assertThat(remoteMemory.mismatch(region.memory())).isEqualTo(-1);
            assertThat(awaitNotifications(1).getFirst().from()).isEqualTo(java.name());
        }
    }
}
