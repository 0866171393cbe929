package baton.messages.zeromq;

import baton.kv.Ticker;
import baton.messages.Closing;
import baton.messages.MessageException;
import baton.messages.PeerAccess;
import baton.messages.SideChannel;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.jspecify.annotations.Nullable;

/**
 * A side channel over ZeroMQ: listeners are ROUTER sockets, and questions come from REQ sockets. vLLM's NIXL handshake is of this kind.
 *
 * <h2>Bounds</h2>
 * The memory that a peer can occupy is bounded: connections, bytes and frames of a message. ZeroMQ's own sockets cannot
 * promise that, as they keep the frames of an unfinished message without limit. One connection has one question at a time.
 *
 * <h2>Time</h2>
 * Each connection has a virtual thread that blocks on it. A listener's thread closes connections: those in the middle of a
 * handshake, question or answer after {@link Limits#exchange}, idle ones after {@link Limits#idle}, or earlier when all connections are
 * taken and another one arrives.
 */
public final class ZeroMqSideChannel implements SideChannel {

    private final Limits limits;
    private final Ticker ticker;
    private final PeerAccess access;
    private final Set<BoundSocket> listeners = ConcurrentHashMap.newKeySet();
    private final Set<Question> questions = ConcurrentHashMap.newKeySet();
    private volatile boolean closed;

    /** A side channel with the default limits, by the system's clock. */
    public ZeroMqSideChannel() {
        this(Limits.DEFAULT);
    }

    /** A side channel by the system's clock. */
    public ZeroMqSideChannel(Limits limits) {
        this(limits, Ticker.system(), PeerAccess.everyone());
    }

    /** A side channel with the default limits, by the system's clock. */
    public ZeroMqSideChannel(PeerAccess access) {
        this(Limits.DEFAULT, Ticker.system(), access);
    }

    /** @param access whether connections are sealed; its allowed peers are not checked here */
    ZeroMqSideChannel(Limits limits, Ticker ticker, PeerAccess access) {
        this.limits = limits;
        this.ticker = ticker;
        this.access = access;
    }

    /**
     * Upper bounds.
     *
     * @param questionBytes of a received question
     * @param answerBytes of a received answer
     * @param frames of a received message, its envelope included
     * @param connections of one listener; as many more may be in their handshake
     * @param exchange time that a peer has to complete its handshake, a question that it has begun, or to take the answer
     * @param idle time after which a connection without a question is closed; ZeroMQ's sockets connect again when they need to
     */
    public record Limits(
            int questionBytes, int answerBytes, int frames, int connections, Duration exchange, Duration idle) {
        public static final Limits DEFAULT =
                new Limits(64 << 10, 16 << 20, 16, 256, Duration.ofSeconds(5), Duration.ofMinutes(1));
    }

    @Override
    public Listener receive(String host, int port, Reception reception) throws MessageException {
        BoundSocket router = new BoundSocket(
                ticker,
                limits,
                host,
                port,
                BoundSocket.Kind.router("side channel", false),
                new BoundSocket.Peers(access, _ -> true),
                caller -> new Answering(reception.arrived(caller.address()), caller));
        router.start();
        listeners.removeIf(BoundSocket::isClosed);
        listeners.add(router);
        if (closed) {
            router.close();
            throw new MessageException("the side channel is closed");
        }
        return router;
    }

    @Override
    public CompletableFuture<List<byte[]>> ask(String host, int port, List<byte[]> frames, Duration timeout) {
        Question question = new Question(host, port, List.copyOf(frames), timeout);
        questions.add(question);
        question.start();
        if (closed) {
            question.fail("the side channel is closed");
        }
        return question.answer;
    }

    @Override
    public void close() {
        closed = true;
        listeners.forEach(BoundSocket::close);
        questions.forEach(question -> question.fail("the side channel was closed"));
    }

    /**
     * A question that this side asks, on a connection of its own. Its thread's waits have no timeouts of their own: the timer closes the
     * socket, which ends them all.
     */
    private final class Question {
        private final String host;
        private final int port;
        private final List<byte[]> frames;
        private final Duration timeout;
        private final Socket socket = new Socket();
        private final CompletableFuture<List<byte[]>> answer = new CompletableFuture<>();
        private final CompletableFuture<Void> timer = new CompletableFuture<>();

        private Question(String host, int port, List<byte[]> frames, Duration timeout) {
            this.host = host;
            this.port = port;
            this.frames = frames;
            this.timeout = timeout;
        }

        private void start() {
            CompletableFuture<?> unusedEnd = answer.whenComplete((_, _) -> {
                questions.remove(this);
                timer.cancel(false);
                Closing.quietly(socket);
            });
            CompletableFuture<?> unusedTimeout = timer.completeOnTimeout(
                            null, Math.max(0, timeout.toNanos()), TimeUnit.NANOSECONDS)
                    .thenRun(() -> fail("no answer within " + timeout.toMillis() + " ms"));
            Thread.ofVirtual().name("side-channel-ask").start(this::run);
        }

        private void run() {
            try {
                socket.setTcpNoDelay(true);
                socket.connect(new InetSocketAddress(InetAddress.getByName(host), port));
                Zmtp connection = Zmtp.over(socket, access, true, limits.frames(), limits.answerBytes());
                connection.handshake("REQ", Set.of("ROUTER", "REP"));
                answer.complete(exchange(connection, frames));
            } catch (IOException | IllegalArgumentException e) {
                String reason = e.getMessage();
                answer.completeExceptionally(failure(reason == null ? e.toString() : reason, e));
            }
        }

        private static List<byte[]> exchange(Zmtp connection, List<byte[]> frames) throws IOException {
            List<byte[]> message = new ArrayList<>(frames.size() + 1);
            message.add(new byte[0]);
            message.addAll(frames);
            connection.send(message);
            List<byte[]> reply = connection.receive();
            if (reply.size() < 2 || reply.getFirst().length != 0) {
                throw new Zmtp.Violation("the answer does not begin with an empty frame");
            }
            return List.copyOf(reply.subList(1, reply.size()));
        }

        private void fail(String reason) {
            answer.completeExceptionally(failure(reason, null));
        }

        private MessageException failure(String reason, @Nullable Throwable cause) {
            String message = "side channel of " + host + ":" + port + ": " + reason;
            return cause == null ? new MessageException(message) : new MessageException(message, cause);
        }
    }

    /** Everything up to the first empty frame is the envelope, which goes back with the answer. */
    private record Answering(Handler handler, BoundSocket.Caller caller) implements BoundSocket.Guest {
        @Override
        public boolean received(List<byte[]> message) throws IOException {
            int body = 0;
            while (body < message.size() && message.get(body).length > 0) {
                body++;
            }
            body++;
            if (body >= message.size()) {
                throw new Zmtp.Violation("a question without an empty frame before it, or without a frame after that");
            }
            // The exchange's time goes on while the answer is looked for.
            List<byte[]> frames = handler.answer(List.copyOf(message.subList(body, message.size())));
            if (frames.isEmpty()) {
                return false;
            }
            List<byte[]> reply = new ArrayList<>(message.subList(0, body));
            reply.addAll(frames);
            caller.send(reply);
            return true;
        }

        @Override
        public boolean isGreeted() {
            return handler.isGreeted();
        }

        @Override
        public void left() {}
    }
}
