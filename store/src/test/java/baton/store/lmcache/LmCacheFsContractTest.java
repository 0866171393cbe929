package baton.store.lmcache;

import baton.kv.Ticker;
import baton.store.FileOperations;
import baton.store.SystemIoThreads;
import java.nio.file.Path;
import java.util.List;
import org.junit.jupiter.api.io.TempDir;

class LmCacheFsContractTest extends LmCacheStoreContract {
    @TempDir
    private Path directory;

    @Override
    String prefix() {
        return "org/model";
    }

    @Override
    ObjectTransport transport(long objectBytes) {
        return new FsTransport(
                List.of(directory.resolve("a"), directory.resolve("b")),
                true,
                FileOperations.SYSTEM,
                new SystemIoThreads(),
                Ticker.system());
    }
}
