package baton.connectors.nixl;

import baton.connectors.ConnectorRuntime;
import baton.connectors.SystemRuntime;
import baton.connectors.onesided.PeerHandshake;
import baton.connectors.onesided.TransferMode;
import java.util.function.UnaryOperator;

/**
 * {@link NixlConnector} that pushes blocks which a reference names, too: vLLM's {@code NixlPushConnector}, which only pushes. The decode
 * instance registers where they go.
 */
public final class NixlPushConnector extends NixlConnector {
    /** Makes a connector on this machine. */
    public NixlPushConnector() {
        this(new SystemRuntime());
    }

    /** Makes a connector on another runtime, as in a simulation. */
    public NixlPushConnector(ConnectorRuntime runtime) {
        this(runtime, UnaryOperator.identity());
    }

    /** @param handshakes decorates the handshakes with peers, for tests of peers that answer as vLLM does */
    NixlPushConnector(ConnectorRuntime runtime, UnaryOperator<PeerHandshake> handshakes) {
        super(TransferMode.PUSH, runtime, handshakes);
    }
}
