package baton.connectors.sharedstorage;

import baton.kv.DType;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.ModelFingerprint;
import baton.kv.Ticker;
import baton.kv.connector.ConnectorContext;
import baton.testkit.ConnectorContract;
import baton.testkit.FakeEngine;
import java.nio.file.Path;
import org.junit.jupiter.api.io.TempDir;

/** Two instances that share a directory. */
class SharedStorageContractTest extends ConnectorContract {
    @TempDir
    Path root;

    @Override
    protected Instances instances() {
        return new Instances() {
            @Override
            public FakeEngine startPrefill() {
                return engine(KvRole.PRODUCER);
            }

            @Override
            public FakeEngine startDecode() {
                return engine(KvRole.CONSUMER);
            }

            private FakeEngine engine(KvRole role) {
                KvTransferConfig config = KvTransferConfig.builder("SharedStorageConnector", role)
                        .extra("shared_storage_path", root)
                        .build();
                return new FakeEngine(
                        new SharedStorageConnector(),
                        new ConnectorContext(
                                config,
                                new ModelFingerprint("tiny", "feed"),
                                new KvLayout(3, 2, 8, 16, DType.BF16),
                                Ticker.system()),
                        64,
                        pools);
            }
        };
    }
}
