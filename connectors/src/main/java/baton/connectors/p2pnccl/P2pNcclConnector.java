package baton.connectors.p2pnccl;

import baton.kv.ConfigException;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.KvConnector;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.WorkerConnector;
import baton.messages.PeerChannel;
import baton.messages.zeromq.ZeroMqPeerChannel;
import baton.pipe.WireTransport;
import baton.pipe.WireTransports;
import java.util.Set;
import java.util.function.Function;
import java.util.function.Supplier;

/**
 * The prefill instance sends a prompt's KV to the decode instance, a tensor for each layer; both know of each other by the request's id
 * ({@link baton.messages.p2p.P2pRequestId}): vLLM's {@code P2pNcclConnector}. Any number of either kind, coming and going.
 *
 * <p>A layer's tensor is {@code [2, blocks, block size, kv heads, head dim]}: the keys of a prompt's tokens, then the values, in the order
 * of vLLM's FlashAttention blocks when it had this connector; the last block is filled up with zeros. A receiver reads it as
 * {@code [2, tokens, kv heads, head dim]}, so that block sizes may differ.
 */
public final class P2pNcclConnector implements KvConnector {
    private final Supplier<PeerChannel> channels;
    private final Function<String, WireTransport> transports;

    /** Over this machine's network. */
    public P2pNcclConnector() {
        this(ZeroMqPeerChannel::new, name -> WireTransports.named("kv_connector_extra_config.transport", name));
    }

    /**
     * Over others.
     *
     * @param transports makes the one that is called so
     */
    public P2pNcclConnector(Supplier<PeerChannel> channels, Function<String, WireTransport> transports) {
        this.channels = channels;
        this.transports = transports;
    }

    @Override
    public Set<String> names() {
        return Set.of("P2pNcclConnector");
    }

    @Override
    public SchedulerConnector scheduler(ConnectorContext context) {
        return new P2pNcclScheduler(context, settings(context));
    }

    @Override
    public WorkerConnector worker(ConnectorContext context, Rank rank) {
        return new P2pNcclWorker(context, settings(context), rank, channels, transports);
    }

    private static P2pNcclSettings settings(ConnectorContext context) {
        if (context.pipelineParallelSize() > 1) {
            throw new ConfigException(
                    "pipeline_parallel_size",
                    "is " + context.pipelineParallelSize()
                            + ", must be 1 with P2pNcclConnector: its messages name no stages");
        }
        if (context.config().port() == 0 && context.tensorParallelSize() > 1) {
            throw new ConfigException("kv_port", "is 0, must be a port: peers find rank i at kv_port + i");
        }
        return P2pNcclSettings.of(context.config());
    }
}
