package baton.messages.zeromq;

import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.messages.Closing;
import baton.messages.MessageException;
import baton.messages.PeerAccess;
import baton.messages.PeerChannel;
import baton.messages.SideChannel;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Consumer;
import java.util.stream.Stream;

/**
 * Calls are ZeroMQ DEALER sockets with an identity, listeners ROUTER sockets, as in vLLM's P2pNcclEngine and its proxy. Or calls are PUSH
 * sockets, listeners PULL sockets, as in SGLang's prefill and decode instances.
 *
 * <p>Unlike libzmq's, a socket here is one connection: when it ends its user is notified and has to connect again. A message may
 * begin with an empty frame, as REQ sockets send it; the answer then has one too.
 */
public final class ZeroMqPeerChannel implements PeerChannel {
    /** Messages are small; connections last. */
    public static final ZeroMqSideChannel.Limits LIMITS =
            new ZeroMqSideChannel.Limits(64 << 10, 64 << 10, 4, 1024, Duration.ofSeconds(5), Duration.ofDays(1));

    private static final int MOST_IDENTITY_BYTES = 255;

    private final ZeroMqSideChannel.Limits limits;
    private final Ticker ticker;
    private final Sockets sockets;
    private final PeerAccess access;
    private final Set<BoundSocket> routers = ConcurrentHashMap.newKeySet();
    private final Set<Dealer> dealers = ConcurrentHashMap.newKeySet();
    private volatile boolean closed;

    /** A channel with the default limits, by the system's clock. */
    public ZeroMqPeerChannel() {
        this(PeerAccess.everyone());
    }

    public ZeroMqPeerChannel(ZeroMqSideChannel.Limits limits, Ticker ticker, Sockets sockets) {
        this(limits, ticker, sockets, PeerAccess.everyone());
    }

    /** Between Baton's instances, with the default limits, by the system's clock. */
    public ZeroMqPeerChannel(PeerAccess access) {
        this(LIMITS, access);
    }

    /** A channel by the system's clock; sealed if instances have a secret. */
    public ZeroMqPeerChannel(ZeroMqSideChannel.Limits limits, PeerAccess access) {
        this(limits, Ticker.system(), Sockets.DEALER_ROUTER, access);
    }

    /** @param access whether connections are sealed; its allowed peers are not checked here */
    private ZeroMqPeerChannel(ZeroMqSideChannel.Limits limits, Ticker ticker, Sockets sockets, PeerAccess access) {
        this.limits = limits;
        this.ticker = ticker;
        this.sockets = sockets;
        this.access = access;
    }

    /** The types of the sockets of both sides. */
    public enum Sockets {
        DEALER_ROUTER("DEALER", Set.of("ROUTER", "REP", "DEALER"), BoundSocket.Kind.router("peer channel", true)),
        /** Messages of the calling side only. */
        PUSH_PULL(
                "PUSH",
                Set.of("PULL"),
                new BoundSocket.Kind("one-way peer channel", "PULL", Set.of("PUSH"), true, true));

        private final String calling;

        @SuppressWarnings("ImmutableEnumChecker") // made by Set.of
        private final Set<String> called;

        @SuppressWarnings("ImmutableEnumChecker") // a record of constants
        private final BoundSocket.Kind listening;

        Sockets(String calling, Set<String> called, BoundSocket.Kind listening) {
            this.calling = calling;
            this.called = called;
            this.listening = listening;
        }
    }

    @Override
    public SideChannel.Listener listen(String host, int port, Reception reception) throws MessageException {
        BoundSocket router = new BoundSocket(
                ticker,
                limits,
                host,
                port,
                sockets.listening,
                new BoundSocket.Peers(access, reception::admits),
                caller -> new Visit(caller, reception));
        router.start();
        routers.removeIf(BoundSocket::isClosed);
        routers.add(router);
        if (closed) {
            router.close();
            throw new MessageException("the peer channel is closed");
        }
        return router;
    }

    @Override
    public Call call(
            String host,
            int port,
            String identity,
            Duration timeout,
            Consumer<List<byte[]>> unasked,
            Runnable whenEnded)
            throws MessageException {
        if (identity.isEmpty() || identity.length() > MOST_IDENTITY_BYTES) {
            throw new IllegalArgumentException("identity='" + identity + "' must have 1 to 255 characters");
        }
        Dealer dealer = new Dealer(host, port, unasked, whenEnded);
        dealers.add(dealer);
        dealer.connect(identity, timeout);
        if (closed) {
            dealer.close();
            throw new MessageException("the peer channel is closed");
        }
        return dealer;
    }

    @Override
    public void close() {
        closed = true;
        routers.forEach(BoundSocket::close);
        dealers.forEach(Dealer::close);
    }

    /** Passes a peer's messages on without the delimiter frame that REQ sockets send first. */
    private static final class Visit implements BoundSocket.Guest, Caller {
        private final BoundSocket.Caller caller;
        private final Guest guest;
        private volatile boolean delimited;

        private Visit(BoundSocket.Caller caller, Reception reception) {
            this.caller = caller;
            this.guest = reception.arrived(this);
        }

        @Override
        public boolean received(List<byte[]> message) throws IOException {
            delimited = message.getFirst().length == 0 && message.size() > 1;
            try {
                guest.received(delimited ? message.subList(1, message.size()) : message);
                return true;
            } catch (MessageException e) {
                throw new IOException(e.getMessage(), e);
            }
        }

        @Override
        public boolean isGreeted() {
            return true;
        }

        @Override
        public void left() {
            guest.left();
        }

        @Override
        public String identity() {
            return caller.identity();
        }

        @Override
        public InetAddress address() {
            return caller.address();
        }

        @Override
        public void answer(List<byte[]> frames) throws MessageException {
            List<byte[]> message = new ArrayList<>(frames.size() + 1);
            if (delimited) {
                message.add(new byte[0]);
            }
            message.addAll(frames);
            try {
                caller.send(message);
            } catch (IOException e) {
                throw new MessageException("an answer did not get to " + caller.address() + ": " + e.getMessage(), e);
            }
        }

        @Override
        public void tell(List<byte[]> frames, Duration timeout) throws MessageException {
            CompletableFuture<Void> told = new CompletableFuture<>();
            CompletableFuture<?> unusedTimer = told.copy()
                    .orTimeout(Math.max(1, timeout.toNanos()), TimeUnit.NANOSECONDS)
                    .exceptionally(_ -> {
                        caller.end();
                        return null;
                    });
            try {
                caller.push(
                        delimited
                                ? Stream.concat(Stream.of(new byte[0]), frames.stream())
                                        .toList()
                                : frames);
            } catch (IOException e) {
                throw new MessageException("a message did not get to " + caller.address() + ": " + e.getMessage(), e);
            } finally {
                told.complete(null);
            }
        }

        @Override
        public void hangUp() {
            caller.end();
        }
    }

    /** An outgoing connection. A thread reads from it until it ends; closing the socket ends every wait on it. */
    private final class Dealer implements Call {
        private final String host;
        private final int port;
        private final Socket socket = new Socket();
        private final CompletableFuture<Zmtp> connected = new CompletableFuture<>();
        private final CompletableFuture<String> ended = new CompletableFuture<>();
        private final ReentrantLock turn = new ReentrantLock(true);

        /** The answer to the question that is under way. */
        private volatile Optional<CompletableFuture<List<byte[]>>> answer = Optional.empty();

        private final Consumer<List<byte[]>> unasked;
        private volatile Optional<IOException> cause = Optional.empty();

        private Dealer(String host, int port, Consumer<List<byte[]>> unasked, Runnable whenEnded) {
            this.host = host;
            this.port = port;
            this.unasked = unasked;
            CompletableFuture<?> unusedEnd = ended.thenAccept(reason -> {
                Closing.quietly(socket);
                dealers.remove(this);
                connected.completeExceptionally(failure(reason));
                answer.ifPresent(waiting -> waiting.completeExceptionally(failure(reason)));
                whenEnded.run();
            });
        }

        private void connect(String identity, Duration timeout) throws MessageException {
            Thread.ofVirtual().name("peer-call-" + host + ":" + port).start(() -> run(identity));
            Zmtp unusedConnection = await(connected, Deadline.after(ticker, timeout), "no connection");
        }

        private void run(String identity) {
            try {
                socket.setTcpNoDelay(true);
                BoundSocket.detectLoss(socket);
                // Without a timeout: if connect() has waited too long it closes the socket.
                socket.connect(new InetSocketAddress(InetAddress.getByName(host), port));
                Zmtp zmtp = Zmtp.over(socket, access, true, limits.frames(), limits.answerBytes());
                String unusedIdentity = zmtp.handshake(sockets.calling, identity, sockets.called);
                connected.complete(zmtp);
                while (zmtp.awaitMessage()) {
                    List<byte[]> frames = zmtp.receive();
                    answer.ifPresentOrElse(waiting -> waiting.complete(frames), () -> unasked.accept(frames));
                }
                ended.complete("the peer closed the connection");
            } catch (IOException e) {
                cause = Optional.of(e);
                ended.complete(e.getMessage() == null ? e.toString() : e.getMessage());
            } catch (RuntimeException e) {
                ended.complete(e.getMessage() == null ? e.toString() : e.getMessage());
            }
        }

        @Override
        public void tell(List<byte[]> frames, Duration timeout) throws MessageException {
            Deadline deadline = Deadline.after(ticker, timeout);
            if (!takeTurn(deadline)) {
                throw failure("the questions before are not answered within " + timeout.toMillis() + " ms");
            }
            CompletableFuture<Void> told = new CompletableFuture<>();
            try {
                endUnless(told, deadline, "it has not read for");
                send(frames);
            } finally {
                told.complete(null);
                turn.unlock();
            }
        }

        /** Ends the call at the deadline: a peer that does not read must not block the writing thread. */
        private void endUnless(CompletableFuture<?> done, Deadline deadline, String what) {
            CompletableFuture<?> unusedTimer = done.copy()
                    .orTimeout(Math.max(1, deadline.remainingNanos()), TimeUnit.NANOSECONDS)
                    .handle((_, late) -> late instanceof TimeoutException && ended.complete(what + " " + deadline));
        }

        @Override
        public List<byte[]> ask(List<byte[]> frames, Duration timeout) throws MessageException {
            Deadline deadline = Deadline.after(ticker, timeout);
            if (!takeTurn(deadline)) {
                throw failure("no answer to the questions before within " + timeout.toMillis() + " ms");
            }
            try {
                CompletableFuture<List<byte[]>> waiting = new CompletableFuture<>();
                answer = Optional.of(waiting);
                if (ended.isDone()) {
                    throw failure(ended.join());
                }
                endUnless(waiting, deadline, "no answer within");
                send(frames);
                return await(waiting, deadline, "no answer");
            } finally {
                answer = Optional.empty();
                turn.unlock();
            }
        }

        private boolean takeTurn(Deadline deadline) throws MessageException {
            try {
                return deadline.tryLock(turn);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                throw failure("interrupted");
            }
        }

        private void send(List<byte[]> frames) throws MessageException {
            try {
                connected.join().send(frames);
            } catch (IOException e) {
                ended.complete(String.valueOf(e.getMessage()));
                throw failure(ended.join());
            }
        }

        /** Waits; the deadline ends the call. */
        private <T> T await(CompletableFuture<T> awaited, Deadline deadline, String what) throws MessageException {
            try {
                return deadline.get(awaited);
            } catch (TimeoutException e) {
                ended.complete(what + " within " + deadline);
                throw failure(ended.join());
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                ended.complete("interrupted");
                throw failure("interrupted");
            } catch (ExecutionException e) {
                throw e.getCause() instanceof MessageException known ? known : failure(String.valueOf(e.getCause()));
            }
        }

        @Override
        public boolean isOpen() {
            return !ended.isDone();
        }

        @Override
        public void close() {
            ended.complete("the call was closed");
        }

        private MessageException failure(String reason) {
            String message = "call of " + host + ":" + port + ": " + reason;
            return cause.map(known -> new MessageException(message, known))
                    .orElseGet(() -> new MessageException(message));
        }
    }
}
