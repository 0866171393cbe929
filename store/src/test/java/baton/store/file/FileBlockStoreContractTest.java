package baton.store.file;

import baton.kv.Ticker;
import baton.store.BlockStore;
import baton.store.BlockStoreContract;
import baton.store.StoreFormat;
import java.nio.file.Path;
import org.junit.jupiter.api.io.TempDir;

class FileBlockStoreContractTest extends BlockStoreContract {
    @TempDir
    Path root;

    @Override
    protected Medium medium() {
        return new Medium() {
            @Override
            public BlockStore open(StoreFormat format) {
                return FileBlockStore.open(FileStoreSettings.of("root_dir", root), format, Ticker.system());
            }

            @Override
            public boolean isDurable() {
                return true;
            }
        };
    }
}
