package baton.connectors.mooncake;

import baton.kv.DType;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.ModelFingerprint;
import baton.kv.Ticker;
import baton.kv.connector.ConnectorContext;
import baton.testkit.ConnectorContract;
import baton.testkit.FakeEngine;

/** Two instances with a registry, channels and Mooncake's TCP transport between them. */
class MooncakeContractTest extends ConnectorContract {
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

            @Override
            public int roundsWithoutReader() {
                return 100;
            }

            private FakeEngine engine(KvRole role) {
                return new FakeEngine(
                        new MooncakeConnector(),
                        new ConnectorContext(
                                config(role),
                                new ModelFingerprint("fake", "digest"),
                                new KvLayout(3, 2, 4, 4, DType.F32),
                                Ticker.system()),
                        64,
                        pools);
            }
        };
    }

    private static KvTransferConfig config(KvRole role) {
        return KvTransferConfig.builder("MooncakeConnector", role)
                .extra("mooncake_protocol", "tcp")
                .extra("bootstrap_port", 0)
                .extra("handshake_timeout", 2)
                .extra("abort_request_timeout", 1)
                .extra("transfer_timeout", 1)
                .build();
    }
}
