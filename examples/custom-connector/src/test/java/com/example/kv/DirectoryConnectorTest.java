package com.example.kv;

import baton.kv.DType;
import baton.kv.KvLayout;
import baton.kv.KvTransferConfig;
import baton.testkit.ConnectorContract;
import java.nio.file.Path;
import org.junit.jupiter.api.io.TempDir;

/** What an engine relies on, checked with two instances that share a directory. */
class DirectoryConnectorTest extends ConnectorContract {
    @TempDir
    Path directory;

    @Override
    protected Instances instances() {
        return new Pair(
                new KvLayout(3, 2, 8, 16, DType.BF16),
                DirectoryConnector::new,
                role -> KvTransferConfig.builder("DirectoryConnector", role)
                        .extra("directory", directory)
                        .build());
    }
}
