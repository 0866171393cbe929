package baton.connectors.mooncakestore;

import baton.connectors.bykey.MapStores;
import baton.kv.DType;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.testkit.ConnectorContract;
import java.util.Map;

/** Two instances with memory of their own, and a store that both have behind it. */
class MooncakeStoreContractTest extends ConnectorContract {
    KvLayout layout() {
        return new KvLayout(3, 2, 8, 16, DType.BF16);
    }

    @Override
    protected Instances instances() {
        MapStores stores = new MapStores();
        return new Pair(
                layout(),
                () -> new MooncakeStoreConnector(stores, Map.of()),
                _ -> KvTransferConfig.builder("MooncakeStoreConnector", KvRole.BOTH)
                        .extra("store_rest_url", "http://127.0.0.1:1")
                        .extra("local_buffer_size", "1mb")
                        .build());
    }
}
