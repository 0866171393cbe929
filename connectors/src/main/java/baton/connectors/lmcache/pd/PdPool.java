package baton.connectors.lmcache.pd;

import baton.kv.BlockHash;
import baton.store.StoreFormat;
import baton.store.ValueCache;
import baton.transfer.Region;
import baton.transfer.TransferAgent;
import baton.transfer.TransferException;
import java.util.zip.CRC32C;

/**
 * An instance's buffer of blocks, and the agent by which blocks are read from one into another.
 *
 * @param memory closed by its store
 */
public record PdPool(ValueCache memory, TransferAgent agent) implements AutoCloseable {
    /** Has the agent reach the buffer. */
    public static PdPool of(ValueCache memory, TransferAgent agent) throws TransferException {
        // Closing the agent ends the registration.
        TransferAgent.Registration _ = agent.register(new Region(memory.memory(), memory.file()));
        return new PdPool(memory, agent);
    }

    StoreFormat format() {
        return memory.format();
    }

    long address(int slot) {
        return memory.memory().address() + memory.offset(slot);
    }

    /** CRC32C of a block's hash and bytes, so that intact bytes under another block's hash are found. */
    int checksum(BlockHash block, long offset) {
        CRC32C crc = new CRC32C();
        crc.update(block.toBytes());
        crc.update(memory.memory().asSlice(offset, format().valueBytes()).asByteBuffer());
        return (int) crc.getValue();
    }

    @Override
    public void close() {
        agent.close();
    }
}
