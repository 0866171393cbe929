package baton.transfer.embedded;

import static org.assertj.core.api.Assertions.assertThat;

import baton.transfer.Region;
import baton.transfer.TransferAgent;
import baton.transfer.TransferAgentContract;
import baton.transfer.TransferException;
import java.lang.foreign.Arena;
import java.util.Optional;
import org.junit.jupiter.api.Test;

/** The embedded agent between hosts. */
class TcpAgentTest extends TransferAgentContract {
    @Override
    protected TransferAgent open(String prefix) throws TransferException {
        return EmbeddedAgent.open(
                prefix, EmbeddedAgent.Settings.at("127.0.0.1").withTransport(EmbeddedAgent.Transport.TCP));
    }

    @Override
    protected Region allocate(Arena arena, long bytes) {
        return new Region(arena.allocate(bytes, 64), Optional.empty());
    }

    @Test
    void nothingIsShared() {
        assertThat(peer).hasToString(there.name() + " over TCP");
    }
}
