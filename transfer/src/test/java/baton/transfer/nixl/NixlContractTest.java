package baton.transfer.nixl;

import static org.junit.jupiter.api.Assumptions.abort;

import baton.transfer.Region;
import baton.transfer.TransferAgent;
import baton.transfer.TransferAgentContract;
import baton.transfer.TransferException;
import java.lang.foreign.Arena;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.junit.jupiter.api.Nested;

/** The contract of every agent, over NIXL's UCX. Needs NIXL's library. */
class NixlContractTest {
    /** UCX's own choice: through the kernel on one host. */
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
    }
}
