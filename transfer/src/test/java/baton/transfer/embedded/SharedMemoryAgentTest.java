package baton.transfer.embedded;

import static org.assertj.core.api.Assertions.assertThat;

import baton.transfer.MappableMemory;
import baton.transfer.Region;
import baton.transfer.TransferAgent;
import baton.transfer.TransferAgentContract;
import baton.transfer.TransferException;
import java.lang.foreign.Arena;
import java.util.Optional;
import org.junit.jupiter.api.Test;

/** The embedded agent between processes of one host. */
class SharedMemoryAgentTest extends TransferAgentContract {
    @Override
    protected TransferAgent open(String prefix) throws TransferException {
        return EmbeddedAgent.open(prefix, EmbeddedAgent.Settings.at("127.0.0.1"));
    }

    @Override
    protected Region allocate(Arena arena, long bytes) {
        MappableMemory memory = MappableMemory.allocate(arena, bytes, "a test");
        return new Region(memory.memory(), Optional.of(memory.file()));
    }

    @Test
    void memoryIsShared() {
        assertThat(peer).hasToString(there.name() + " by shared memory");
    }
}
