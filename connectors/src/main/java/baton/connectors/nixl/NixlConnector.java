package baton.connectors.nixl;

import baton.connectors.ConnectorRuntime;
import baton.connectors.SystemRuntime;
import baton.connectors.onesided.PeerHandshake;
import baton.connectors.onesided.TransferMode;
import baton.kv.KvTransferConfig;
import baton.kv.ListenAddress;
import baton.kv.Setting;
import baton.kv.connector.CacheSource;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.KvConnector;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.WarmUpPair;
import baton.kv.connector.WorkerConnector;
import java.util.List;
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
public final class NixlConnector implements KvConnector {
    private final ConnectorRuntime runtime;
    private final UnaryOperator<PeerHandshake> handshakes;

    /** On this machine. */
    public NixlConnector() {
        this(new SystemRuntime());
    }

    /** On another runtime, as in a simulation. */
    public NixlConnector(ConnectorRuntime runtime) {
        this(runtime, UnaryOperator.identity());
    }

    /** @param handshakes decorates the handshakes with peers, for tests of peers that answer as vLLM does */
    NixlConnector(ConnectorRuntime runtime, UnaryOperator<PeerHandshake> handshakes) {
        this.runtime = runtime;
        this.handshakes = handshakes;
    }

    @Override
    public CacheSource source() {
        return CacheSource.P2P;
    }

    @Override
    public Set<String> names() {
        return Set.of("NixlConnector", "NixlPullConnector");
    }

    @Override
    public List<Setting> settings() {
        return NixlSettings.SETTINGS;
    }

    @Override
    public void check(KvTransferConfig config, int ranks) {
        checkSettings(config);
    }

    @Override
    public SchedulerConnector scheduler(ConnectorContext context) {
        return new NixlScheduler(context, settings(context), runtime, TransferMode.PULL);
    }

    @Override
    public WorkerConnector worker(ConnectorContext context, Rank rank) {
        NixlSettings settings = settings(context);
        PeerHandshake handshake =
                handshakes.apply(new HandshakeClient(runtime, settings.access(), settings.vllmRank(context)));
        return new NixlWorker(context, settings, runtime, handshake, rank, TransferMode.PULL);
    }

    @Override
    public Optional<WarmUpPair> warmUpPair(KvTransferConfig config) {
        return NixlWarmUp.of(new NixlConnector(), "NixlConnector", config);
    }

    @Override
    public boolean needsHostMemory(KvTransferConfig config) {
        return !config.buffersOnDevice();
    }

    @Override
    public boolean takesGroups(KvTransferConfig config) {
        return takesGroupsWith(config);
    }

    /** For Baton's peers only: vLLM's hybrid transfers, which are for GPUs, are untested. */
    static boolean takesGroupsWith(KvTransferConfig config) {
        NixlSettings settings = NixlSettings.of(config.extra(), System.getenv());
        return settings.vllm().isEmpty() && !settings.mirrorsVllm() && !settings.bidirectional();
    }

    static void checkSettings(KvTransferConfig config) {
        NixlSettings settings = NixlSettings.of(config.extra(), System.getenv());
        ListenAddress.require(
                config.extra().field(NixlSettings.HOST),
                settings.host(),
                config.extra().field(NixlSettings.PORT),
                settings.port());
    }

    static NixlSettings settings(ConnectorContext context) {
        return NixlSettings.of(context.config().extra(), System.getenv());
    }
}
