package baton.connectors.mooncakestore;

import baton.kv.DType;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.ModelFingerprint;
import baton.kv.Ticker;
import baton.kv.connector.ConnectorContext;
import baton.testkit.ConnectorContract;
import baton.testkit.FakeEngine;
import java.util.Map;

/** Two instances with memory of their own, and a store that both have behind it. */
class MooncakeStoreContractTest extends ConnectorContract {
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
                KvTransferConfig config = KvTransferConfig.builder("MooncakeStoreConnector", KvRole.BOTH)
                        .extra("store_rest_url", "http://127.0.0.1:1")
                        .extra("local_buffer_size", "1mb")
                        .build();
                return new FakeEngine(
                        new MooncakeStoreConnector(stores, Map.of()),
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
