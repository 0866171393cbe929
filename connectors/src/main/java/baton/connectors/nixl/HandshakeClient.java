package baton.connectors.nixl;

import baton.connectors.ConnectorRuntime;
import baton.connectors.onesided.PeerHandshake;
import baton.kv.InvalidFieldException;
import baton.kv.connector.Rank;
import baton.messages.GuardedSideChannel;
import baton.messages.PeerAccess;
import baton.messages.PeerAddress;
import baton.transfer.TransferException;
import java.time.Duration;
import java.util.List;
import java.util.OptionalDouble;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * Asks with vLLM's handshake messages, over a side channel of its own for each question.
 *
 * @param vllm reads the answers of vLLM instances
 */
record HandshakeClient(ConnectorRuntime runtime, PeerAccess access, VllmRank vllm) implements PeerHandshake {
    /** The channel's own deadline comes first. */
    private static final long GRACE_MILLIS = 1000;

    @Override
    public Answer ask(PeerAddress peer, Rank rank, Duration timeout) throws TransferException {
        try (GuardedSideChannel channel = runtime.sideChannel(access)) {
            long asked = runtime.ticker().nanos();
            List<byte[]> answer = channel.ask(peer.host(), peer.port(), List.of(NixlHandshake.question(rank)), timeout)
                    .get(timeout.toMillis() + GRACE_MILLIS, TimeUnit.MILLISECONDS);
            double midpoint = (asked + (runtime.ticker().nanos() - asked) / 2) / 1e9;
            return new Answer(
                    NixlHandshake.read(answer.getFirst(), rank, access.secret(), vllm),
                    answer.size() > 1 ? offset(answer.get(1), midpoint) : OptionalDouble.empty());
        } catch (ExecutionException | TimeoutException | InvalidFieldException e) {
            Throwable cause = e instanceof ExecutionException && e.getCause() != null ? e.getCause() : e;
            throw new TransferException("the side channel at " + peer + ": " + cause.getMessage(), cause);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new TransferException("interrupted", e);
        }
    }

    /** The peer's clock less this one, in seconds; empty if the frame is no clock, which only the check of an expiry time needs. */
    private static OptionalDouble offset(byte[] clock, double own) {
        try {
            return OptionalDouble.of(NixlHandshake.readClock(clock) - own);
        } catch (InvalidFieldException _) {
            return OptionalDouble.empty();
        }
    }
}
