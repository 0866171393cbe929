package baton.connectors.sglang;

import baton.kv.DType;
import baton.kv.KvLayout;
import baton.kv.KvTransferConfig;
import baton.testkit.ConnectorContract;

/** Two instances with a registry, one-way messages and Mooncake's TCP transport between them. */
class SglangContractTest extends ConnectorContract {
    @Override
    protected Instances instances() {
        return new Pair(
                new KvLayout(3, 2, 4, 4, DType.F32),
                SglangConnector::new,
                role -> KvTransferConfig.builder("SglangConnector", role)
                        .extra("bootstrap_port", 0)
                        .extra("handshake_timeout", 2)
                        .extra("bootstrap_timeout", 1)
                        .extra("waiting_timeout", 2)
                        .extra("transfer_timeout", 1)
                        .extra("release_timeout", 1)
                        .build()) {
            @Override
            public int roundsWithoutReader() {
                return 100;
            }
        };
    }
}
