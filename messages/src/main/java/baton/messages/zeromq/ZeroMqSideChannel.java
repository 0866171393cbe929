package baton.messages.zeromq;

import baton.messages.MessageException;
import baton.messages.SideChannel;
import java.io.BufferedOutputStream;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.SocketTimeoutException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A side channel whose listeners are ZeroMQ ROUTER sockets to their peers and whose questions come from REQ sockets; vLLM's NIXL
 * handshake is of this kind.
 *
 * <h2>Bounds</h2>
 * What a peer can make this process hold is bounded: connections, bytes and frames of a message. ZeroMQ's own sockets cannot promise
 * that, as they keep the frames of an unfinished message without limit. One connection has one question at a time.
 *
 * <h2>Time</h2>
 * Each connection has a virtual thread that blocks on it. A listener's thread closes the connections whose time is up: those in the
 * middle of a handshake, question or answer after {@link Limits#exchange}, idle ones after {@link Limits#idle}, or earlier when all
 * connections are taken and another one comes.
 */
public final class ZeroMqSideChannel implements SideChannel {
    private static final Logger log = LoggerFactory.getLogger(ZeroMqSideChannel.class);
    private static final Duration SWEEP = Duration.ofMillis(200);
    private static final Duration JOIN = Duration.ofSeconds(2);
    private static final int BACKLOG = 128;

    private final Limits limits;
    private final Set<RouterListener> listeners = ConcurrentHashMap.newKeySet();
    private final Set<Question> questions = ConcurrentHashMap.newKeySet();
    private volatile boolean closed;

    public ZeroMqSideChannel() {
        this(Limits.DEFAULT);
    }

    public ZeroMqSideChannel(Limits limits) {
        this.limits = limits;
    }

    /**
     * What is held and waited for at most.
     *
     * @param questionBytes of a question that comes in
     * @param answerBytes of an answer that comes in
     * @param frames of a message that comes in, its envelope included
     * @param connections of one listener
     * @param exchange time that a peer has to complete its handshake, a question that it has begun, or to take the answer
     * @param idle time after which a connection that asks nothing is closed; ZeroMQ's sockets connect again when they need to
     */
    public record Limits(
            int questionBytes, int answerBytes, int frames, int connections, Duration exchange, Duration idle) {
        public static final Limits DEFAULT =
                new Limits(64 << 10, 16 << 20, 16, 256, Duration.ofSeconds(5), Duration.ofMinutes(1));
    }

    @Override
    public Listener listen(String host, int port, Handler handler) throws MessageException {
        RouterListener listener = new RouterListener(bind(host, port), handler);
        listener.thread.start();
        listeners.add(listener);
        if (closed) {
            listener.close();
            throw new MessageException("the side channel is closed");
        }
        return listener;
    }

    private static ServerSocket bind(String host, int port) throws MessageException {
        ServerSocket socket = null;
        try {
            socket = new ServerSocket();
            socket.setReuseAddress(true);
            socket.setSoTimeout((int) SWEEP.toMillis());
            socket.bind(new InetSocketAddress(InetAddress.getByName(host), port), BACKLOG);
            return socket;
        } catch (IOException | IllegalArgumentException e) {
            if (socket != null) {
                quietly(socket);
            }
            throw new MessageException("side channel cannot listen on " + host + ":" + port + ": " + e.getMessage(), e);
        }
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
        listeners.forEach(RouterListener::close);
        questions.forEach(question -> question.fail("the side channel was closed"));
    }

    private static void quietly(AutoCloseable closeable) {
        try {
            closeable.close();
        } catch (Exception e) {
            log.debug("closing {}", closeable, e);
        }
    }

    /** One question of ours, on a connection of its own. Closing the socket ends whatever its thread waits for. */
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
            CompletableFuture<?> unusedEnd = answer.whenComplete((frames, failure) -> {
                questions.remove(this);
                timer.cancel(false);
                quietly(socket);
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
                Zmtp connection = new Zmtp(
                        socket.getInputStream(),
                        new BufferedOutputStream(socket.getOutputStream()),
                        limits.frames(),
                        limits.answerBytes());
                connection.handshake("REQ", Set.of("ROUTER", "REP"));
                List<byte[]> message = new ArrayList<>(frames.size() + 1);
                message.add(new byte[0]);
                message.addAll(frames);
                connection.send(message);
                List<byte[]> reply = connection.receive();
                if (reply.size() < 2 || reply.getFirst().length != 0) {
                    throw new Zmtp.Violation("the answer does not begin with an empty frame");
                }
                answer.complete(List.copyOf(reply.subList(1, reply.size())));
            } catch (IOException | IllegalArgumentException e) {
                String reason = e.getMessage();
                answer.completeExceptionally(failure(reason == null ? e.toString() : reason, e));
            }
        }

        private void fail(String reason) {
            answer.completeExceptionally(failure(reason, null));
        }

        private MessageException failure(String reason, @Nullable Throwable cause) {
            String message = "side channel of " + host + ":" + port + ": " + reason;
            return cause == null ? new MessageException(message) : new MessageException(message, cause);
        }
    }

    /** A bound address with its connections. */
    private final class RouterListener implements Listener {
        private final ServerSocket socket;
        private final Handler handler;
        private final Set<Asker> askers = ConcurrentHashMap.newKeySet();
        private final Thread thread = Thread.ofVirtual().name("side-channel").unstarted(this::accept);

        private RouterListener(ServerSocket socket, Handler handler) {
            this.socket = socket;
            this.handler = handler;
        }

        @Override
        public int port() {
            return socket.getLocalPort();
        }

        private void accept() {
            while (!socket.isClosed()) {
                try {
                    admit(socket.accept());
                } catch (SocketTimeoutException e) {
                    // Nobody came; time to look at who is here.
                } catch (IOException e) {
                    if (!socket.isClosed()) {
                        // Most likely out of file descriptors, which others may give back.
                        log.warn("side channel on port {} cannot accept: {}", port(), e.getMessage());
                        LockSupport.parkNanos(SWEEP.toNanos());
                    }
                }
                sweep();
            }
        }

        private void admit(Socket peer) {
            if (askers.size() >= limits.connections()) {
                Optional<Asker> longestIdle =
                        askers.stream().filter(asker -> asker.idle).min(Comparator.comparingLong(asker -> asker.since));
                if (longestIdle.isEmpty()) {
                    log.warn("side channel on port {} refuses a connection: all {} are busy", port(), askers.size());
                    quietly(peer);
                    return;
                }
                longestIdle.get().end();
                askers.remove(longestIdle.get());
            }
            Asker asker = new Asker(peer, this);
            askers.add(asker);
            asker.thread.start();
        }

        private void sweep() {
            long now = System.nanoTime();
            for (Asker asker : askers) {
                Duration allowed = asker.idle ? limits.idle() : limits.exchange();
                if (now - asker.since > allowed.toNanos()) {
                    log.debug("side channel on port {}: the time of {} is up", port(), asker.peer);
                    asker.end();
                }
            }
        }

        @Override
        public void close() {
            quietly(socket);
            long end = System.nanoTime() + JOIN.toNanos();
            join(thread, end);
            askers.forEach(Asker::end);
            askers.forEach(asker -> join(asker.thread, end));
            listeners.remove(this);
        }

        private void join(Thread waited, long end) {
            try {
                if (!waited.join(Duration.ofNanos(Math.max(0, end - System.nanoTime())))) {
                    log.warn("side channel on port {}: {} has not ended in time", port(), waited.getName());
                }
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        }
    }

    /** A connection that asks us. */
    private final class Asker {
        private final Socket peer;
        private final RouterListener listener;
        private final Thread thread =
                Thread.ofVirtual().name("side-channel-peer").unstarted(this::run);
        /** Waiting for a question, not in the middle of one. */
        private volatile boolean idle;

        /** When that began. */
        private volatile long since = System.nanoTime();

        private Asker(Socket peer, RouterListener listener) {
            this.peer = peer;
            this.listener = listener;
        }

        private void run() {
            try (peer) {
                peer.setTcpNoDelay(true);
                Zmtp connection = new Zmtp(
                        peer.getInputStream(),
                        new BufferedOutputStream(peer.getOutputStream()),
                        limits.frames(),
                        limits.questionBytes());
                connection.handshake("ROUTER", Set.of("REQ", "DEALER", "ROUTER"));
                boolean more = true;
                while (more && awaitQuestion(connection)) {
                    more = answer(connection);
                }
            } catch (IOException e) {
                log.debug("side channel on port {}: {} ended: {}", listener.port(), peer, e.getMessage());
            } catch (RuntimeException e) {
                log.warn("side channel on port {}: a question of {} could not be answered", listener.port(), peer, e);
            } finally {
                listener.askers.remove(this);
            }
        }

        private boolean awaitQuestion(Zmtp connection) throws IOException {
            since = System.nanoTime();
            idle = true;
            boolean more = connection.awaitMessage();
            since = System.nanoTime();
            idle = false;
            return more;
        }

        /** Everything up to the first empty frame is the envelope, which goes back with the answer. */
        private boolean answer(Zmtp connection) throws IOException {
            List<byte[]> message = connection.receive();
            int body = 0;
            while (body < message.size() && message.get(body).length > 0) {
                body++;
            }
            body++;
            if (body >= message.size()) {
                throw new Zmtp.Violation("a question without an empty frame before it, or without a frame after that");
            }
            List<byte[]> frames = listener.handler.answer(List.copyOf(message.subList(body, message.size())));
            if (frames.isEmpty()) {
                return false;
            }
            List<byte[]> reply = new ArrayList<>(message.subList(0, body));
            reply.addAll(frames);
            connection.send(reply);
            return true;
        }

        private void end() {
            quietly(peer);
        }
    }
}
