package baton.connectors.p2pnccl;

import baton.kv.ConfigException;
import baton.kv.FreePorts;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.ListenAddress;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.KvConnector;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.WarmUpPair;
import baton.kv.connector.WorkerConnector;
import baton.messages.MessageException;
import baton.messages.PeerAddress;
import baton.messages.PeerChannel;
import baton.messages.p2p.P2pRequestId;
import baton.messages.zeromq.ZeroMqPeerChannel;
import baton.pipe.WireTransport;
import baton.pipe.p2p.P2pEndpoint;
import baton.pipe.p2p.P2pSettings;
import baton.pipe.p2p.TensorExchange;
import baton.pipe.select.WireTransports;
import java.io.IOException;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ThreadFactory;
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
    private static final String LOOPBACK = "127.0.0.1";
    private static final long WARM_UP_BYTES = 64L << 20;

    private final Supplier<PeerChannel> channels;
    private final Opening opening;
    private final ThreadFactory threads;

    /** Makes a rank's end of the exchange. */
    @FunctionalInterface
    public interface Opening {
        /**
         * @param transport the setting of that name
         * @throws MessageException if the address cannot be had
         */
        TensorExchange open(P2pSettings settings, String transport) throws MessageException;
    }

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
        this(
                channels,
                (settings, name) -> {
                    WireTransport transport = transports.apply(name);
                    PeerChannel channel = channels.get();
                    try {
                        return P2pEndpoint.open(settings, channel, transport);
                    } catch (MessageException e) {
                        channel.close();
                        transport.close();
                        throw e;
                    }
                },
                Thread.ofVirtual().factory());
    }

    /**
     * Over another exchange.
     *
     * @param channels of the registrations with a proxy
     * @param threads that wait for tensors, one for each request
     */
    public P2pNcclConnector(Supplier<PeerChannel> channels, Opening opening, ThreadFactory threads) {
        this.channels = channels;
        this.opening = opening;
        this.threads = threads;
    }

    @Override
    public Set<String> names() {
        return Set.of("P2pNcclConnector");
    }

    @Override
    public Optional<Set<String>> settingNames() {
        return Optional.of(P2pNcclSettings.NAMES);
    }

    @Override
    public void check(KvTransferConfig config, int ranks) {
        P2pNcclSettings.of(config);
        for (int rank = 0; rank < ranks && config.port() + rank <= 65_535; rank++) {
            ListenAddress.require("kv_ip", config.ip(), "kv_port", config.port() == 0 ? 0 : config.port() + rank);
        }
    }

    @Override
    public SchedulerConnector scheduler(ConnectorContext context) {
        return new P2pNcclScheduler(context, settings(context));
    }

    @Override
    public WorkerConnector worker(ConnectorContext context, Rank rank) {
        P2pNcclSettings settings = settings(context);
        try {
            TensorExchange exchange =
                    opening.open(settings.endpoint(context.config(), rank.tensor()), settings.transport());
            return new P2pNcclWorker(context, settings, rank, exchange, channels, threads);
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
        return P2pNcclSettings.of(context.config());
    }

    /** Over TCP on the loopback interface. */
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
