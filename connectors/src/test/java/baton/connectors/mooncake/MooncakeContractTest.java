package baton.connectors.mooncake;

import baton.kv.DType;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.testkit.ConnectorContract;

/** Two instances with a registry, channels and Mooncake's TCP transport between them. */
class MooncakeContractTest extends ConnectorContract {
    KvLayout layout() {
        return new KvLayout(3, 2, 4, 4, DType.F32);
    }

    KvTransferConfig.Builder config(KvRole role) {
        return KvTransferConfig.builder("MooncakeConnector", role)
                .extra("mooncake_protocol", "tcp")
                .extra("bootstrap_port", 0)
                .extra("handshake_timeout", 2)
                .extra("abort_request_timeout", 1)
                .extra("transfer_timeout", 1);
    }

    @Override
    protected Instances instances() {
        return new Pair(layout(), MooncakeConnector::new, role -> config(role).build()) {
            @Override
            public int roundsWithoutReader() {
                return 100;
            }
        };
    }
}
