package baton.connectors.nixl;

import baton.connectors.BuiltInConnector;
import baton.connectors.ConnectorRuntime;
import baton.connectors.SystemRuntime;
import baton.connectors.onesided.PeerHandshake;
import baton.connectors.onesided.TransferMode;
import baton.kv.KvTransferConfig;
import baton.kv.ListenAddress;
import baton.kv.connector.CacheSource;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.WarmUpPair;
import baton.kv.connector.WorkerConnector;
import java.util.Optional;
import java.util.Set;
import java.util.function.UnaryOperator;

/**
 * Blocks come from the prefill instance by one-sided transfer: vLLM's {@code NixlConnector}, which is its {@code NixlPullConnector}.
 * A decode request's reference ({@link baton.connectors.onesided.RemoteBlocks}) decides which side moves them. Blocks that it names, as
 * the prefill instance's answer does, are read. A reference that names only the prefill instance came at the same time as the prefill
 * request: the prefill instance then pushes each layer as soon as it is computed. Either way the blocks are compared with their
 * checksums ({@link baton.connectors.onesided.BlockChecksums}).
 */
public sealed class NixlConnector extends BuiltInConnector permits NixlPushConnector {
    private final TransferMode mode;
    private final ConnectorRuntime runtime;
    private final UnaryOperator<PeerHandshake> handshakes;

    /** Makes a connector on this machine. */
    public NixlConnector() {
        this(new SystemRuntime());
    }

    /** Makes a connector on another runtime, as in a simulation. */
    public NixlConnector(ConnectorRuntime runtime) {
        this(runtime, UnaryOperator.identity());
    }

    /** @param handshakes decorates the handshakes with peers, for tests of peers that answer as vLLM does */
    NixlConnector(ConnectorRuntime runtime, UnaryOperator<PeerHandshake> handshakes) {
        this(TransferMode.PULL, runtime, handshakes);
    }

    NixlConnector(TransferMode mode, ConnectorRuntime runtime, UnaryOperator<PeerHandshake> handshakes) {
        super(
                mode == TransferMode.PUSH ? Set.of("NixlPushConnector") : Set.of("NixlConnector", "NixlPullConnector"),
                NixlSettings.SETTINGS,
                CacheSource.P2P);
        this.mode = mode;
        this.runtime = runtime;
        this.handshakes = handshakes;
    }

    @Override
    public void check(KvTransferConfig config, int ranks) {
        NixlSettings settings = settings(config);
        ListenAddress.require(
                config.extra().field(NixlSettings.HOST),
                settings.host(),
                config.extra().field(NixlSettings.PORT),
                settings.port());
    }

    @Override
    public SchedulerConnector scheduler(ConnectorContext context) {
        return new NixlScheduler(context, settings(context.config()), runtime, mode);
    }

    @Override
    public WorkerConnector worker(ConnectorContext context, Rank rank) {
        NixlSettings settings = settings(context.config());
        PeerHandshake handshake =
                handshakes.apply(new HandshakeClient(runtime, settings.access(), settings.vllmRank(context)));
        return new NixlWorker(context, settings, runtime, handshake, rank, mode);
    }

    @Override
    public Optional<WarmUpPair> warmUpPair(KvTransferConfig config) {
        return mode == TransferMode.PUSH
                ? NixlWarmUp.of(new NixlPushConnector(), "NixlPushConnector", config)
                : NixlWarmUp.of(new NixlConnector(), "NixlConnector", config);
    }

    @Override
    public boolean needsHostMemory(KvTransferConfig config) {
        return !config.buffersOnDevice();
    }

    /** Takes groups of layers with Baton's peers only: vLLM's hybrid transfers, which are for GPUs, are untested. */
    @Override
    public boolean takesGroups(KvTransferConfig config) {
        NixlSettings settings = settings(config);
        return settings.vllm().isEmpty() && !settings.mirrorsVllm() && !settings.bidirectional();
    }

    private static NixlSettings settings(KvTransferConfig config) {
        return NixlSettings.of(config.extra(), System.getenv());
    }
}
