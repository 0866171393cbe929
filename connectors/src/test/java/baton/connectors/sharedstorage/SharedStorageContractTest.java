package baton.connectors.sharedstorage;

import baton.kv.DType;
import baton.kv.KvLayout;
import baton.kv.KvTransferConfig;
import baton.testkit.ConnectorContract;
import java.nio.file.Path;
import org.junit.jupiter.api.io.TempDir;

/** Two instances that share a directory. */
class SharedStorageContractTest extends ConnectorContract {
    @TempDir
    Path root;

    KvLayout layout() {
        return new KvLayout(3, 2, 8, 16, DType.BF16);
    }

    @Override
    protected Instances instances() {
        return new Pair(
                layout(),
                SharedStorageConnector::new,
                role -> KvTransferConfig.builder("SharedStorageConnector", role)
                        .extra("shared_storage_path", root)
                        .build());
    }
}
