package baton.messages;

import java.net.InetAddress;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.function.Function;

/**
 * A side channel that answers only peers that {@link PeerAccess} admits.
 *
 * <p>Without a secret the address decides. With a secret, the channel below is sealed, so that only peers with the secret can use it.
 *
 * @param channel closed by this one
 */
public record GuardedSideChannel(SideChannel channel, PeerAccess access) implements AutoCloseable {
    /** The answer to a peer that is not allowed. */
    private static final byte[] REFUSED = "baton-kv-auth/1 REFUSED".getBytes(StandardCharsets.US_ASCII);

    /**
     * Answers questions that arrive at an address until the returned listener is closed.
     *
     * @throws MessageException if the address cannot be had
     */
    public SideChannel.Listener listen(String host, int port, SideChannel.Handler handler) throws MessageException {
        return receive(host, port, _ -> handler);
    }

    /**
     * As {@link #listen}, with a handler for each connection.
     *
     * @param arrived makes it, of the numeric address that the connection comes from
     * @throws MessageException if the address cannot be had
     */
    public SideChannel.Listener receive(String host, int port, Function<String, SideChannel.Handler> arrived)
            throws MessageException {
        access.expectPeers();
        return channel.receive(host, port, from -> {
            return access.admits(from) ? arrived.apply(from.getHostAddress()) : new Refusal(from);
        });
    }

    /** Answers a peer that is not allowed with a refusal. */
    private final class Refusal implements SideChannel.Handler {
        private final InetAddress from;

        private Refusal(InetAddress from) {
            this.from = from;
        }

        @Override
        public List<byte[]> answer(List<byte[]> frames) {
            access.refuse("side channel: " + from.getHostAddress(), "it is " + access.notAllowed());
            return List.of(REFUSED);
        }

        @Override
        public boolean isGreeted() {
            return false;
        }
    }

    /**
     * Asks the peer that listens at an address.
     *
     * @param frames at least one
     * @return the answer, at least one frame; fails with a {@link MessageException}, also if the peer does not have the secret, at the
     *     latest after {@code timeout}
     */
    public CompletableFuture<List<byte[]>> ask(String host, int port, List<byte[]> frames, Duration timeout) {
        if (!access.mayConnect(host)) {
            return CompletableFuture.failedFuture(
                    new MessageException(host + ":" + port + " is " + access.notAllowed()));
        }
        return channel.ask(host, port, frames, timeout)
                .thenCompose(answer -> Arrays.equals(answer.getFirst(), REFUSED)
                        ? CompletableFuture.failedFuture(
                                new MessageException(host + ":" + port + " refuses: this is not a peer allowed there"))
                        : CompletableFuture.completedFuture(answer));
    }

    @Override
    public void close() {
        channel.close();
    }
}
