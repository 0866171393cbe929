package baton.connectors.onesided;

import baton.kv.connector.Rank;
import baton.messages.PeerAddress;
import baton.transfer.TransferException;
import java.time.Duration;
import java.util.OptionalDouble;

/** The client's side of a handshake; a connector implements it with its own messages. */
@FunctionalInterface
public interface PeerHandshake {
    /**
     * A peer's answer.
     *
     * @param clockOffset seconds by which the peer's clock is ahead of this instance's, to within half the answer's round trip; empty if
     *     the peer did not send its clock
     */
    record Answer(RankInfo info, OptionalDouble clockOffset) {}

    /**
     * Asks a peer's side channel about one of its ranks. Waits; may be called by any thread.
     *
     * @throws TransferException if there is no answer in time, or no valid one, or the peer does not prove that it knows the secret
     */
    Answer ask(PeerAddress peer, Rank rank, Duration timeout) throws TransferException;
}
