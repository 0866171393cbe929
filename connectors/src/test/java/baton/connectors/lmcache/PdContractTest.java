package baton.connectors.lmcache;

import baton.kv.DType;
import baton.kv.FreePorts;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.testkit.ConnectorContract;
import java.io.IOException;
import java.util.Map;

/** A sender and a receiver, with real messages and an agent that maps memory between them. */
class PdContractTest extends ConnectorContract {
    @Override
    protected Instances instances() throws IOException {
        int port = FreePorts.inARow(1);
        return new Pair(
                new KvLayout(3, 2, 4, 4, DType.F32),
                () -> LmCacheConnector.withEnvironment(Map.of()),
                role -> KvTransferConfig.builder("LMCacheConnectorV1", role)
                        .extra("lmcache.enable_pd", true)
                        .extra("lmcache.pd_role", role == KvRole.PRODUCER ? "sender" : "receiver")
                        .extra("lmcache.pd_buffer_size", 1 << 20)
                        .extra("lmcache.pd_buffer_device", "cpu")
                        .extra("lmcache.pd_peer_host", "127.0.0.1")
                        .extra("lmcache.pd_peer_init_port", port)
                        .extra("lmcache.blocking_timeout_secs", 1)
                        .build());
    }
}
