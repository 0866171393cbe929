package baton.store.memory;

import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.kv.Ticker;
import baton.memory.MappableMemory;
import baton.store.BlockStore;
import baton.store.BlockStoreContract;
import baton.store.StoreFormat;
import java.io.IOException;
import java.nio.file.Path;
import java.util.Optional;
import org.junit.jupiter.api.io.TempDir;

/** The contract of block stores, by values in memory that outlives the store. */
class SharedMemoryContractTest extends BlockStoreContract {
    @TempDir
    private Path directory;

    @Override
    protected Medium medium() {
        assumeTrue(
                MappableMemory.whyNone().isEmpty(),
                () -> MappableMemory.whyNone().orElse(""));
        return new Medium() {
            @Override
            public BlockStore open(StoreFormat format) throws IOException {
                return HostMemoryStore.open(
                        format,
                        HostMemorySettings.of(600 * format.valueBytes())
                                .withEviction(Eviction.ARC)
                                .withShared(Optional.of(new SharedMemory(directory, "contract"))),
                        Ticker.system());
            }

            @Override
            public boolean isDurable() {
                return true;
            }
        };
    }
}
