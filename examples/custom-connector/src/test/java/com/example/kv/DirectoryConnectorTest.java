package com.example.kv;

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

/** What an engine relies on, checked with two instances that share a directory. */
class DirectoryConnectorTest extends ConnectorContract {
    @TempDir
    Path directory;

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
                KvTransferConfig config = KvTransferConfig.builder("DirectoryConnector", role)
                        .extra("directory", directory)
                        .build();
                return new FakeEngine(
                        new DirectoryConnector(),
                        new ConnectorContext(
                                config,
                                new ModelFingerprint("fake", "00"),
                                new KvLayout(3, 2, 8, 16, DType.BF16),
                                Ticker.system()),
                        64,
                        pools);
            }
        };
    }
}
