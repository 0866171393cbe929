package baton.connectors.offloading;

import baton.kv.DType;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.ModelFingerprint;
import baton.kv.Ticker;
import baton.kv.connector.ConnectorContext;
import baton.testkit.ConnectorContract;
import baton.testkit.FakeEngine;
import java.util.List;
import java.util.Map;

/** Two instances with memory of their own, and a store that both have behind it. */
class OffloadingContractTest extends ConnectorContract {
    @Override
    protected Instances instances() {
        TestStores stores = new TestStores();
        return new Instances() {
            @Override
            public FakeEngine startPrefill() {
                return engine();
            }

            @Override
            public FakeEngine startDecode() {
                return engine();
            }

            private FakeEngine engine() {
                KvTransferConfig config = KvTransferConfig.builder("OffloadingConnector", KvRole.BOTH)
                        .extra("cpu_bytes_to_use", 1_000_000)
                        .extra("secondary_tiers", List.of(Map.of("type", "fs", "root_dir", "unused")))
                        .build();
                return new FakeEngine(
                        new OffloadingConnector(stores),
                        new ConnectorContext(
                                config,
                                new ModelFingerprint("tiny", "feed"),
                                new KvLayout(3, 2, 8, 16, DType.BF16),
                                Ticker.system()),
                        64,
                        pools);
            }
        };
    }
}
