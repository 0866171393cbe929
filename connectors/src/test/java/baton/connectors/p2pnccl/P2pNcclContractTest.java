package baton.connectors.p2pnccl;

import baton.connectors.WiredRuntime;
import baton.kv.DType;
import baton.kv.FreePorts;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.messages.PeerAddress;
import baton.messages.p2p.P2pRequestId;
import baton.pipe.memory.MemoryTransport;
import baton.testkit.ConnectorContract;
import baton.testkit.RefusingMemory;
import java.io.IOException;

/** Two instances with real channels between them, and wires in memory, which reach the pools of a device. */
class P2pNcclContractTest extends ConnectorContract {
    private static final String HOST = "127.0.0.1";

    @Override
    protected Instances instances() throws IOException {
        MemoryTransport wires = new MemoryTransport(RefusingMemory::is);
        KvTransferConfig prefill = config(KvRole.PRODUCER);
        KvTransferConfig decode = config(KvRole.CONSUMER);
        return new Pair(
                new KvLayout(3, 2, 4, 4, DType.F32),
                () -> new P2pNcclConnector(new WiredRuntime(wires)),
                role -> role == KvRole.PRODUCER ? prefill : decode) {
            @Override
            public String requestId(int number) {
                P2pRequestId shared = new P2pRequestId(
                        new PeerAddress(HOST, prefill.port()),
                        new PeerAddress(HOST, decode.port()),
                        "%032x".formatted(number));
                return "cmpl-" + shared.format() + "-0";
            }
        };
    }

    private static KvTransferConfig config(KvRole role) throws IOException {
        return KvTransferConfig.builder("P2pNcclConnector", role)
                .ip(HOST)
                .port(FreePorts.inARow(2))
                .bufferDevice("cuda")
                .extra("transport", "nccl")
                .extra("mem_pool_size_gb", 1)
                .extra("exchange_timeout", 3)
                .extra("transfer_timeout", 3)
                .extra("load_timeout", 3)
                .build();
    }
}
