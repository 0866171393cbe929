package baton.transfer.embedded;

import baton.memory.MappableMemory;
import baton.transfer.Region;
import baton.transfer.TransferAgent;
import baton.transfer.TransferAgentContract;
import baton.transfer.TransferException;
import java.lang.foreign.Arena;
import java.util.Optional;

/** Reads by shared memory from a peer that cannot map this process's memory, so that writes are requested again over TCP. */
class UnmappableWriteTest extends TransferAgentContract {
    @Override
    protected TransferAgent open(String prefix) throws TransferException {
        EmbeddedAgent.Settings settings = EmbeddedAgent.Settings.at("127.0.0.1");
        return EmbeddedAgent.open(
                prefix, prefix.equals("there") ? settings.withTransport(EmbeddedAgent.Transport.TCP) : settings);
    }

    @Override
    protected Region allocate(Arena arena, long bytes) {
        MappableMemory memory = MappableMemory.allocate(arena, bytes, "a test");
        return new Region(memory.memory(), Optional.of(memory.file()));
    }
}
