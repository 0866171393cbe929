package baton.connectors.nixl;

import baton.kv.connector.Rank;
import baton.transfer.TransferException;
import java.time.Duration;

/** The client's side of a handshake. */
@FunctionalInterface
interface PeerHandshake {
    /**
     * Asks a peer's side channel about one of its ranks. Waits; may be called by any thread.
     *
     * @throws TransferException if there is no answer in time, or no valid one, or the peer does not prove that it knows the secret
     */
    RankInfo ask(NixlSettings.Address peer, Rank rank, Duration timeout) throws TransferException;
}
