package baton.cuda.model;

import baton.connectors.SystemRuntime;
import baton.connectors.p2pnccl.P2pNcclConnector;
import baton.kv.KvTransferConfig;
import baton.kv.Setting;
import baton.kv.Ticker;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.KvConnector;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.WorkerConnector;
import baton.messages.zeromq.ZeroMqPeerChannel;
import baton.pipe.memory.MemoryTransport;
import baton.pipe.p2p.P2pEndpoint;
import java.util.List;
import java.util.Set;

/** P2pNcclConnector for one pair of instances in this process, with wires that play NCCL's. */
public final class WiredP2pConnector implements KvConnector {
    static final String NAME = "WiredP2pConnector";

    private static final MemoryTransport WIRES =
            new MemoryTransport(device -> device.kind().equals("cuda"));

    private final P2pNcclConnector inner = new P2pNcclConnector(
            new SystemRuntime(),
            (settings, _) -> P2pEndpoint.open(settings, new ZeroMqPeerChannel(), WIRES, Ticker.system()));

    /** Bytes that went from and to a device's memory. */
    static long deviceBytes() {
        return WIRES.deviceBytes();
    }

    @Override
    public Set<String> names() {
        return Set.of(NAME);
    }

    @Override
    public List<Setting> settings() {
        return inner.settings();
    }

    @Override
    public boolean needsHostMemory(KvTransferConfig config) {
        return inner.needsHostMemory(config);
    }

    @Override
    public SchedulerConnector scheduler(ConnectorContext context) {
        return inner.scheduler(context);
    }

    @Override
    public WorkerConnector worker(ConnectorContext context, Rank rank) {
        return inner.worker(context, rank);
    }
}
