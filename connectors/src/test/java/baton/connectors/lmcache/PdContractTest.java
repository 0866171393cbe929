package baton.connectors.lmcache;

import baton.kv.DType;
import baton.kv.FreePorts;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.ModelFingerprint;
import baton.kv.Ticker;
import baton.kv.connector.ConnectorContext;
import baton.testkit.ConnectorContract;
import baton.testkit.FakeEngine;
import java.io.IOException;
import java.util.Map;

/** A sender and a receiver, with real messages and an agent that maps memory between them. */
class PdContractTest extends ConnectorContract {
    @Override
    protected Instances instances() throws IOException {
        int port = FreePorts.inARow(1);
        return new Instances() {
            @Override
            public FakeEngine startPrefill() {
                return engine(KvRole.PRODUCER, "sender");
            }

            @Override
            public FakeEngine startDecode() {
                return engine(KvRole.CONSUMER, "receiver");
            }

            private FakeEngine engine(KvRole role, String pdRole) {
                KvTransferConfig config = KvTransferConfig.builder("LMCacheConnectorV1", role)
                        .extra("lmcache.enable_pd", true)
                        .extra("lmcache.pd_role", pdRole)
                        .extra("lmcache.pd_buffer_size", 1 << 20)
                        .extra("lmcache.pd_buffer_device", "cpu")
                        .extra("lmcache.pd_peer_host", "127.0.0.1")
                        .extra("lmcache.pd_peer_init_port", port)
                        .extra("lmcache.blocking_timeout_secs", 1)
                        .build();
                return new FakeEngine(
                        LmCacheConnector.withEnvironment(Map.of()),
                        new ConnectorContext(
                                config,
                                new ModelFingerprint("fake", "digest"),
                                new KvLayout(3, 2, 4, 4, DType.F32),
                                Ticker.system()),
                        64,
                        pools);
            }
        };
    }
}
