package baton.connectors.onesided;

import baton.connectors.ConnectorRuntime;
import baton.kv.KvCache;
import baton.kv.Ticker;
import baton.transfer.TransferAgent;

/**
 * The state that all transfers of one rank share.
 *
 * @param self the rank's description for peers
 * @param cache the rank's pool, registered with {@code agent}
 * @param wake makes the engine poll the results soon; called by any thread
 */
public record RankContext(
        RankInfo self,
        KvCache cache,
        TransferAgent agent,
        ConnectorRuntime runtime,
        PeerHandshake handshake,
        NotificationCodec codec,
        OneSidedSettings settings,
        TransferStats stats,
        Ticker ticker,
        Runnable wake) {
    Background background() {
        return new Background(runtime.background(), wake);
    }
}
