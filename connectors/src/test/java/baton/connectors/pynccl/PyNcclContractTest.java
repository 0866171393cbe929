package baton.connectors.pynccl;

import baton.connectors.WiredRuntime;
import baton.kv.DType;
import baton.kv.KvLayout;
import baton.kv.KvTransferConfig;
import baton.pipe.memory.MemoryTransport;
import baton.testkit.ConnectorContract;
import baton.testkit.RefusingMemory;

/** Two instances with wires in memory, which reach the pools of a device. */
class PyNcclContractTest extends ConnectorContract {
    @Override
    protected Instances instances() {
        MemoryTransport wires = new MemoryTransport(RefusingMemory::is);
        return new Pair(
                new KvLayout(3, 2, 4, 4, DType.BF16),
                () -> new PyNcclConnector(new WiredRuntime(Borrowed.of(wires))),
                role -> KvTransferConfig.builder("PyNcclConnector", role)
                        .parallelSize(2)
                        .bufferDevice("cuda")
                        .bufferSize(1 << 20)
                        .extra("transport", "nccl")
                        .extra("connect_wait_seconds", 3)
                        .extra("lookup_timeout_seconds", 3)
                        .build()) {
            @Override
            public void close() {
                wires.close();
            }
        };
    }
}
