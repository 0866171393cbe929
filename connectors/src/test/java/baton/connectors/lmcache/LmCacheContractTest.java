package baton.connectors.lmcache;

import baton.connectors.bykey.MapStores;
import baton.kv.DType;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.testkit.ConnectorContract;
import java.util.Map;

/** Two instances with memory of their own, and a store that both have behind it. */
class LmCacheContractTest extends ConnectorContract {
    @Override
    protected Instances instances() {
        MapStores stores = new MapStores();
        return new Pair(
                new KvLayout(3, 2, 8, 16, DType.BF16),
                () -> new LmCacheConnector(stores, Map.of()),
                _ -> KvTransferConfig.builder("LMCacheConnectorV1", KvRole.BOTH)
                        .extra("lmcache.chunk_size", 16)
                        .extra("lmcache.remote_url", "lm://127.0.0.1:1")
                        .build());
    }
}
