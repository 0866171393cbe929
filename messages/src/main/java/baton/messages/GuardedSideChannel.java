package baton.messages;

import java.net.InetAddress;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.function.Function;

/**
 * A side channel that answers only peers that {@link PeerAccess} admits.
 *
 * <p>Without a secret, questions and answers of allowed peers go through unchanged. With one, the asking side sends a hello
 * first; the question has a proof behind its last frame, valid for this question on this connection, and so has the answer. A
 * side that has the secret neither answers a peer that has none nor accepts its answers.
 */
public final class GuardedSideChannel implements AutoCloseable {
    private static final String PURPOSE = "side channel";

    private final SideChannel channel;
    private final PeerAccess access;

    /** @param channel is closed by this one */
    public GuardedSideChannel(SideChannel channel, PeerAccess access) {
        this.channel = channel;
        this.access = access;
    }

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
            if (!access.admits(from)) {
                return new Refusal(from);
            }
            SideChannel.Handler handler = arrived.apply(from.getHostAddress());
            return access.secret()
                    .<SideChannel.Handler>map(secret -> new Guard(secret, from, handler))
                    .orElseGet(() -> frames ->
                            PeerProof.Kind.HELLO.read(frames.getFirst()).isPresent()
                                    ? refuse(from, "it asks for a proof, but there is no kv_auth_secret_file here")
                                    : handler.answer(frames));
        });
    }

    /** A refused peer learns no more than that it is refused, and which setting it may lack. */
    private List<byte[]> refuse(InetAddress from, String why) {
        access.refuse("side channel: " + from.getHostAddress(), why);
        return List.of(PeerProof.refusal(
                access.secret().isPresent()
                        ? "peers have to show that they know the secret: kv_auth_secret_file"
                        : "not a peer that is allowed here, or it asks for a proof where there is no secret"));
    }

    /** Answers a peer that is not allowed with a refusal. */
    private final class Refusal implements SideChannel.Handler {
        private final InetAddress from;

        private Refusal(InetAddress from) {
            this.from = from;
        }

        @Override
        public List<byte[]> answer(List<byte[]> frames) {
            return refuse(from, "it is " + access.notAllowed());
        }

        @Override
        public boolean isGreeted() {
            return false;
        }
    }

    /** Authenticates the questions of one connection. */
    private final class Guard implements SideChannel.Handler {
        private final PeerProof.Host host;
        private final InetAddress from;
        private final SideChannel.Handler handler;
        private boolean known;

        private Guard(PeerSecret secret, InetAddress from, SideChannel.Handler handler) {
            this.host = new PeerProof.Host(secret, PURPOSE);
            this.from = from;
            this.handler = handler;
        }

        @Override
        public List<byte[]> answer(List<byte[]> frames) {
            Optional<byte[]> greeted = host.hello(frames.getFirst());
            if (greeted.isPresent()) {
                return List.of(greeted.get());
            }
            List<byte[]> question = frames.subList(0, frames.size() - 1);
            Optional<PeerProof> proof = host.take();
            if (proof.isEmpty() || question.isEmpty()) {
                return refuse(from, "it does not show that it knows the secret");
            }
            if (!proof.get().isOfCaller(frames.getLast(), question)) {
                return refuse(from, "it shows another secret");
            }
            known = true;
            List<byte[]> told = handler.answer(List.copyOf(question));
            if (told.isEmpty()) {
                return told;
            }
            return with(told, List.of(proof.get().ofHost(with(question, told))));
        }

        @Override
        public boolean isGreeted() {
            return known;
        }
    }

    private static List<byte[]> with(List<byte[]> first, List<byte[]> second) {
        List<byte[]> both = new ArrayList<>(first);
        both.addAll(second);
        return both;
    }

    /**
     * Asks the peer that listens at an address.
     *
     * @param frames at least one
     * @return the answer, at least one frame; fails with a {@link MessageException}, also if the peer does not prove that it has
     *     the secret, at the latest after {@code timeout}
     */
    public CompletableFuture<List<byte[]>> ask(String host, int port, List<byte[]> frames, Duration timeout) {
        if (!access.mayConnect(host)) {
            return CompletableFuture.failedFuture(
                    new MessageException(host + ":" + port + " is " + access.notAllowed()));
        }
        return access.secret()
                .map(secret -> {
                    Asking asking = new Asking(secret, frames);
                    return channel.converse(host, port, List.of(asking.caller.hello()), asking, timeout)
                            .thenApply(asking::checked);
                })
                .orElseGet(() -> channel.converse(
                        host,
                        port,
                        frames,
                        answer -> {
                            PeerProof.requireNotRefused(answer.getFirst());
                            return Optional.empty();
                        },
                        timeout));
    }

    /** A question with its proof. Not for concurrent use. */
    private static final class Asking implements SideChannel.Next {
        private final PeerProof.Caller caller;
        private final List<byte[]> question;
        private Optional<PeerProof> proof = Optional.empty();

        private Asking(PeerSecret secret, List<byte[]> question) {
            this.caller = new PeerProof.Caller(secret, PURPOSE);
            this.question = List.copyOf(question);
        }

        @Override
        public Optional<List<byte[]>> after(List<byte[]> answer) throws MessageException {
            if (proof.isEmpty()) {
                PeerProof begun = caller.heard(answer);
                proof = Optional.of(begun);
                return Optional.of(with(question, List.of(begun.ofCaller(question))));
            }
            PeerProof.requireNotRefused(answer.getFirst());
            List<byte[]> told = answer.subList(0, answer.size() - 1);
            if (told.isEmpty() || !proof.get().isOfHost(answer.getLast(), with(question, told))) {
                throw new MessageException("its answer does not show that it knows the secret of kv_auth_secret_file");
            }
            return Optional.empty();
        }

        private List<byte[]> checked(List<byte[]> answer) {
            return List.copyOf(answer.subList(0, answer.size() - 1));
        }
    }

    @Override
    public void close() {
        channel.close();
    }
}
