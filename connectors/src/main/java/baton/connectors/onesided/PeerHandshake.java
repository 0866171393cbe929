package baton.connectors.onesided;

import baton.kv.connector.Rank;
import baton.messages.PeerAddress;
import baton.transfer.TransferException;
import java.time.Duration;

/** The client's side of a handshake; a connector implements it with its own messages. */
@FunctionalInterface
public interface PeerHandshake {
    /**
     * Asks a peer's side channel about one of its ranks. Waits; may be called by any thread.
     *
     * @throws TransferException if there is no answer in time, or no valid one, or the peer does not prove that it knows the secret
     */
    RankInfo ask(PeerAddress peer, Rank rank, Duration timeout) throws TransferException;
}
