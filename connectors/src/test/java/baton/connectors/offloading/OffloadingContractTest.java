package baton.connectors.offloading;

import baton.connectors.bykey.MapStores;
import baton.kv.DType;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.testkit.ConnectorContract;
import java.util.List;
import java.util.Map;

/** Two instances with memory of their own, and a store that both have behind it. */
class OffloadingContractTest extends ConnectorContract {
    KvLayout layout() {
        return new KvLayout(3, 2, 8, 16, DType.BF16);
    }

    @Override
    protected Instances instances() {
        MapStores stores = new MapStores();
        return new Pair(
                layout(),
                () -> new OffloadingConnector(stores),
                _ -> KvTransferConfig.builder("OffloadingConnector", KvRole.BOTH)
                        .extra("cpu_bytes_to_use", 1_000_000)
                        .extra("secondary_tiers", List.of(Map.of("type", "fs", "root_dir", "unused")))
                        .build());
    }
}
