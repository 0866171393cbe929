package baton.transfer.nixl;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.abort;

import baton.transfer.Region;
import baton.transfer.Transfer.State;
import baton.transfer.TransferAgent;
import baton.transfer.TransferAgent.Operation;
import baton.transfer.TransferAgentContract;
import baton.transfer.TransferException;
import java.lang.foreign.Arena;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.junit.jupiter.api.Nested;
import org.junit.jupiter.api.Test;

/** What holds for every agent, over NIXL's UCX. Needs NIXL's library. */
class NixlContractTest {
    /** What UCX takes by itself: through the kernel on one host. */
    @Nested
    class SameHost extends OverUcx {
        SameHost() {
            super(Map.of());
        }
    }

    @Nested
    class Tcp extends OverUcx {
        Tcp() {
            super(Map.of("engine_config", "TLS=tcp"));
        }
    }

    abstract static class OverUcx extends TransferAgentContract {
        private final NixlAgent.Settings settings;

        OverUcx(Map<String, String> parameters) {
            settings = new NixlAgent.Settings(List.of("UCX"), Map.of("UCX", parameters));
        }

        @Override
        protected TransferAgent open(String prefix) throws TransferException {
            return switch (NixlLibrary.find(Optional.empty())) {
                case NixlLibrary.Found library -> NixlAgent.open(library, prefix, settings);
                case NixlLibrary.Absent absent -> abort(absent.reason());
            };
        }

        @Override
        protected Region allocate(Arena arena, long bytes) {
            return new Region(arena.allocate(bytes, 64), Optional.empty());
        }

        /** NIXL cannot call back what a peer has loaded already; who connects after the end does not find the memory. */
        @Override
        @Test
        protected void memoryIsOutOfReachOnceItsRegistrationIsClosed() throws TransferException {
            assertThat(finish(start(Operation.READ, range(0, 0, 100)))).isInstanceOf(State.Done.class);
            ofTheirs.close();
            peer.close();
            peer = here.connect(there.metadata(), LONG);
            assertThat(finish(start(Operation.WRITE, range(0, 0, 100)))).isInstanceOf(State.Failed.class);
        }
    }
}
