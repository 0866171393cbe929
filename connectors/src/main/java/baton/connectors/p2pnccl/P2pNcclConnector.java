package baton.connectors.p2pnccl;

import baton.connectors.BuiltInConnector;
import baton.connectors.ConnectorRuntime;
import baton.connectors.SystemRuntime;
import baton.kv.ConfigException;
import baton.kv.FreePorts;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.ListenAddress;
import baton.kv.connector.CacheSource;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.WarmUpPair;
import baton.kv.connector.WorkerConnector;
import baton.messages.MessageException;
import baton.messages.PeerAddress;
import baton.messages.PeerChannel;
import baton.messages.p2p.P2pRequestId;
import baton.pipe.WireTransport;
import baton.pipe.p2p.P2pEndpoint;
import baton.pipe.p2p.P2pSettings;
import baton.pipe.p2p.TensorExchange;
import java.io.IOException;
import java.util.Optional;
import java.util.Set;

/**
 * The prefill instance sends a prompt's KV to the decode instance, a tensor for each layer; the request's id
 * ({@link baton.messages.p2p.P2pRequestId}) contains the addresses of both: vLLM's {@code P2pNcclConnector}. There may be any
 * number of instances, which may start and end at any time.
 *
 * <p>A layer's tensor is {@code [2, blocks, block size, kv heads, head dim]}: the keys of a prompt's tokens, then the values, in
 * the order of vLLM's FlashAttention blocks when it had this connector; the last block is padded with zeros. A receiver reads it
 * as {@code [2, tokens, kv heads, head dim]}, so that block sizes may differ.
 */
public final class P2pNcclConnector extends BuiltInConnector {
    private static final String LOOPBACK = "127.0.0.1";
    private static final long WARM_UP_BYTES = 64L << 20;

    private final ConnectorRuntime runtime;
    private final Exchanges exchanges;

    /** Opens the exchanges with peers. */
    @FunctionalInterface
    public interface Exchanges {
        /**
         * @param transport the setting of that name
         * @throws MessageException if the address cannot be bound
         */
        TensorExchange open(P2pSettings settings, String transport) throws MessageException;
    }

    public P2pNcclConnector() {
        this(new SystemRuntime());
    }

    public P2pNcclConnector(ConnectorRuntime runtime) {
        this(runtime, (settings, transport) -> endpoint(runtime, settings, transport));
    }

    /**
     * With other exchanges than {@link P2pEndpoint}.
     *
     * @param runtime of the threads that load, one for each request, and of the channel to a proxy
     */
    public P2pNcclConnector(ConnectorRuntime runtime, Exchanges exchanges) {
        super(Set.of("P2pNcclConnector"), P2pNcclSettings.SETTINGS, CacheSource.P2P);
        this.runtime = runtime;
        this.exchanges = exchanges;
    }

    private static TensorExchange endpoint(ConnectorRuntime runtime, P2pSettings settings, String transport)
            throws MessageException {
        WireTransport wires =
                runtime.wires("kv_connector_extra_config." + P2pNcclSettings.TRANSPORT, transport, settings.access());
        PeerChannel channel = runtime.peerChannel(settings.access());
        try {
            return P2pEndpoint.open(settings, channel, wires, runtime.ticker());
        } catch (MessageException e) {
            channel.close();
            wires.close();
            throw e;
        }
    }

    @Override
    public void check(KvTransferConfig config, int ranks) {
        P2pNcclSettings.of(config, runtime.ticker());
        for (int rank = 0; rank < ranks && config.port() + rank <= 65_535; rank++) {
            ListenAddress.require("kv_ip", config.ip(), "kv_port", config.port() == 0 ? 0 : config.port() + rank);
        }
    }

    /** NCCL sends tensors from the device's memory. */
    @Override
    public boolean needsHostMemory(KvTransferConfig config) {
        return !config.buffersOnDevice()
                || !P2pNcclSettings.of(config, runtime.ticker()).transport().equals("nccl");
    }

    @Override
    public SchedulerConnector scheduler(ConnectorContext context) {
        context.requireKeysAndValues("P2pNcclConnector");
        return new P2pNcclScheduler(context, settings(context));
    }

    @Override
    public WorkerConnector worker(ConnectorContext context, Rank rank) {
        P2pNcclSettings settings = settings(context);
        try {
            TensorExchange exchange =
                    exchanges.open(settings.endpoint(context.config(), rank.tensor()), settings.transport());
            return new P2pNcclWorker(context, settings, rank, exchange, runtime);
        } catch (MessageException e) {
            throw new ConfigException("kv_port", String.valueOf(e.getMessage()), e);
        }
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
        return P2pNcclSettings.of(context.config(), context.ticker());
    }

    /** A pair over TCP on the loopback interface. */
    @Override
    public Optional<WarmUpPair> warmUpPair(KvTransferConfig config) throws IOException {
        int port = FreePorts.inARow(2);
        PeerAddress prefill = new PeerAddress(LOOPBACK, port);
        PeerAddress decode = new PeerAddress(LOOPBACK, port + 1);
        return Optional.of(new WarmUpPair(
                new P2pNcclConnector(),
                side(KvRole.PRODUCER, prefill),
                side(KvRole.CONSUMER, decode),
                number -> new P2pRequestId(prefill, decode, "%032x".formatted(number)).format(),
                () -> {}));
    }

    private static KvTransferConfig side(KvRole role, PeerAddress self) {
        return KvTransferConfig.builder("P2pNcclConnector", role)
                .ip(self.host())
                .port(self.port())
                .bufferSize(WARM_UP_BYTES)
                .extra(P2pNcclSettings.TRANSPORT, "tcp")
                .build();
    }
}
