package baton.connectors.nixl;

import baton.connectors.ConnectorRuntime;
import baton.connectors.SystemRuntime;
import baton.connectors.onesided.PeerHandshake;
import baton.connectors.onesided.TransferMode;
import baton.kv.KvTransferConfig;
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
 * {@link NixlConnector} that pushes blocks which a reference names, too: vLLM's {@code NixlPushConnector}, which only pushes. The decode
 * instance registers where they go.
 */
public final class NixlPushConnector implements KvConnector {
    private final ConnectorRuntime runtime;
    private final UnaryOperator<PeerHandshake> handshakes;

    /** On this machine. */
    public NixlPushConnector() {
        this(new SystemRuntime());
    }

    /** On another runtime, as in a simulation. */
    public NixlPushConnector(ConnectorRuntime runtime) {
        this(runtime, UnaryOperator.identity());
    }

    /** @param handshakes decorates the handshakes with peers, for tests of peers that answer as vLLM does */
    NixlPushConnector(ConnectorRuntime runtime, UnaryOperator<PeerHandshake> handshakes) {
        this.runtime = runtime;
        this.handshakes = handshakes;
    }

    @Override
    public CacheSource source() {
        return CacheSource.P2P;
    }

    @Override
    public Set<String> names() {
        return Set.of("NixlPushConnector");
    }

    @Override
    public List<Setting> settings() {
        return NixlSettings.SETTINGS;
    }

    @Override
    public void check(KvTransferConfig config, int ranks) {
        NixlConnector.checkSettings(config);
    }

    @Override
    public boolean needsHostMemory(KvTransferConfig config) {
        return !config.buffersOnDevice();
    }

    @Override
    public boolean takesGroups(KvTransferConfig config) {
        return NixlConnector.takesGroupsWith(config);
    }

    @Override
    public SchedulerConnector scheduler(ConnectorContext context) {
        return new NixlScheduler(context, NixlConnector.settings(context), runtime, TransferMode.PUSH);
    }

    @Override
    public WorkerConnector worker(ConnectorContext context, Rank rank) {
        NixlSettings settings = NixlConnector.settings(context);
        PeerHandshake handshake =
                handshakes.apply(new HandshakeClient(runtime, settings.access(), settings.vllmRank(context)));
        return new NixlWorker(context, settings, runtime, handshake, rank, TransferMode.PUSH);
    }

    @Override
    public Optional<WarmUpPair> warmUpPair(KvTransferConfig config) {
        return NixlWarmUp.of(new NixlPushConnector(), "NixlPushConnector", config);
    }
}
