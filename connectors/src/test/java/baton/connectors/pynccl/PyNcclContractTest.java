package baton.connectors.pynccl;

import baton.connectors.DelegatingRuntime;
import baton.kv.DType;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.ModelFingerprint;
import baton.kv.Ticker;
import baton.kv.connector.ConnectorContext;
import baton.pipe.memory.MemoryTransport;
import baton.testkit.ConnectorContract;
import baton.testkit.FakeEngine;

/** Two instances with wires in memory. */
class PyNcclContractTest extends ConnectorContract {
    @Override
    protected Instances instances() {
        MemoryTransport wires = new MemoryTransport();
        return new Instances() {
            @Override
            public FakeEngine startPrefill() {
                return engine(KvRole.PRODUCER);
            }

            @Override
            public FakeEngine startDecode() {
                return engine(KvRole.CONSUMER);
            }

            private FakeEngine engine(KvRole role) {
                KvTransferConfig config = KvTransferConfig.builder("PyNcclConnector", role)
                        .parallelSize(2)
                        .extra("connect_wait_seconds", 3)
                        .extra("lookup_timeout_seconds", 3)
                        .build();
                return new FakeEngine(
                        new PyNcclConnector(DelegatingRuntime.over(new Borrowed(wires))),
                        new ConnectorContext(
                                config,
                                new ModelFingerprint("fake", "00"),
                                new KvLayout(3, 2, 4, 4, DType.BF16),
                                Ticker.system()),
                        64,
                        pools);
            }

            @Override
            public void close() {
                wires.close();
            }
        };
    }
}
