package baton.messages.mooncake;

import baton.messages.MessageException;
import baton.messages.PeerAccess;
import baton.messages.PeerAddress;
import baton.messages.PeerChannel;
import baton.messages.SideChannel;
import baton.messages.http.RegistryClient;
import baton.messages.zeromq.ZeroMqPeerChannel;
import baton.messages.zeromq.ZeroMqSideChannel;
import java.net.ConnectException;
import java.net.InetAddress;
import java.net.URI;
import java.net.http.HttpRequest;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executor;
import java.util.function.Consumer;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * ZeroMQ's protocol between ranks, DEALER to ROUTER with one frame for a message, and registries over HTTP. Serves only peers that
 * {@link PeerAccess} admits. Where that has a secret, all of it is sealed, and registries are {@link SealedRegistry}s.
 */
public final class SystemExchange implements MooncakeExchange {
    private static final Logger log = LoggerFactory.getLogger(SystemExchange.class);

    /** One question has the blocks of all requests of a step; connections wait for as long as a prompt is computed. */
    private static final ZeroMqSideChannel.Limits LIMITS =
            new ZeroMqSideChannel.Limits(16 << 20, 16 << 20, 2, 4096, Duration.ofSeconds(5), Duration.ofDays(1));

    private static final Duration TELL = Duration.ofSeconds(5);

    private final PeerAccess access;
    private final Executor background;
    private final PeerChannel channel;
    private final RegistryClient http;
    private final Optional<SealedRegistry> sealed;
    private final Set<Registry> registries = ConcurrentHashMap.newKeySet();

    /**
     * @param access which peers may connect, and be connected to
     * @param background runs blocking tasks
     */
    public SystemExchange(PeerAccess access, Executor background) {
        this.access = access;
        this.background = background;
        this.channel = new ZeroMqPeerChannel(LIMITS, access);
        this.http = new RegistryClient(access, background);
        this.sealed = access.secret().map(_ -> new SealedRegistry(access));
        access.expectPeers();
    }

    @Override
    public PeerAddress listen(String host, Consumer<Question> arrived) throws MessageException {
        SideChannel.Listener listener = channel.listen(host, 0, new PeerChannel.Reception() {
            @Override
            public boolean admits(InetAddress from) {
                return access.admits(from);
            }

            @Override
            public PeerChannel.Guest arrived(PeerChannel.Caller caller) {
                return new Visit(caller, arrived);
            }
        });
        return new PeerAddress(host, listener.port());
    }

    private final class Visit implements PeerChannel.Guest {
        private final PeerChannel.Caller caller;
        private final Consumer<Question> arrived;
        private volatile boolean over;

        private Visit(PeerChannel.Caller caller, Consumer<Question> arrived) {
            this.caller = caller;
            this.arrived = arrived;
        }

        @Override
        public void received(List<byte[]> frames) {
            byte[] message = frames.getLast();
            arrived.accept(new Question() {
                @Override
                public byte[] message() {
                    return message;
                }

                @Override
                public void answer(byte[] reply) {
                    background.execute(() -> {
                        try {
                            caller.tell(List.of(reply), TELL);
                        } catch (MessageException e) {
                            log.debug("an answer is lost: {}", e.getMessage());
                        }
                    });
                }

                @Override
                public boolean isOver() {
                    return over;
                }
            });
        }

        @Override
        public void left() {
            over = true;
        }
    }

    @Override
    public Asking ask(PeerAddress rank, byte[] message, Duration connect, Asker asker) {
        Connection connection = new Connection(asker);
        background.execute(() -> connection.run(rank, message, connect));
        return connection;
    }

    private final class Connection implements Asking {
        private final Asker asker;
        /** Completed by the first end of the connection. */
        private final CompletableFuture<Ending> ended = new CompletableFuture<>();

        private volatile Optional<PeerChannel.Call> call = Optional.empty();

        private Connection(Asker asker) {
            this.asker = asker;
        }

        private void run(PeerAddress rank, byte[] message, Duration connect) {
            if (!access.mayConnect(rank.host())) {
                access.refuse(rank.toString(), access.notAllowed());
                end(Ending.REFUSED, rank + " is " + access.notAllowed());
                return;
            }
            try {
                PeerChannel.Call opened = channel.call(
                        rank.host(),
                        rank.port(),
                        UUID.randomUUID().toString(),
                        connect,
                        frames -> asker.answered(frames.getLast()),
                        () -> call.ifPresent(_ -> end(Ending.BROKEN, "the connection to " + rank + " has ended")));
                call = Optional.of(opened);
                if (ended.isDone()) {
                    opened.close();
                } else if (opened.isOpen()) {
                    opened.tell(List.of(message), TELL);
                } else {
                    end(Ending.BROKEN, "the connection to " + rank + " has ended");
                }
            } catch (MessageException e) {
                boolean refused = e.getCause() instanceof ConnectException;
                end(
                        call.isPresent() ? Ending.BROKEN : refused ? Ending.REFUSED : Ending.UNREACHED,
                        String.valueOf(e.getMessage()));
            } catch (RuntimeException | Error e) {
                log.error("asking {} failed", rank, e);
                end(Ending.BROKEN, e.toString());
            }
        }

        private void end(Ending how, String why) {
            if (ended.complete(how)) {
                asker.ended(how, why);
            }
        }

        @Override
        public void close() {
            if (ended.complete(Ending.BROKEN)) {
                call.ifPresent(opened -> background.execute(opened::close));
            }
        }
    }

    @Override
    public Registry serve(String host, int port) throws MessageException {
        Registry registry = new BootstrapServer(host, port, access, sealed);
        registries.add(registry);
        return registry;
    }

    @Override
    public CompletableFuture<Void> register(PeerAddress registry, List<RankRegistration> ranks, Duration timeout) {
        CompletableFuture<?> all = CompletableFuture.completedFuture(true);
        for (RankRegistration rank : ranks) {
            all = all.thenCompose(_ -> register(registry, rank.toJson(), timeout));
        }
        return all.thenRun(() -> {});
    }

    private CompletableFuture<String> register(PeerAddress registry, String rank, Duration timeout) {
        return sealed.isPresent()
                ? ask(sealed.get(), registry, "POST /register", rank, timeout)
                : http.send(HttpRequest.newBuilder(URI.create("http://" + registry + "/register"))
                        .timeout(timeout)
                        .header("Content-Type", "application/json")
                        .POST(HttpRequest.BodyPublishers.ofString(rank))
                        .build());
    }

    private CompletableFuture<String> ask(
            SealedRegistry sealed, PeerAddress registry, String name, String body, Duration timeout) {
        return http.ask(registry.toString(), () -> sealed.ask(registry, name, body, timeout));
    }

    @Override
    public CompletableFuture<EngineTable> query(PeerAddress registry, Duration timeout) {
        CompletableFuture<String> answer = sealed.isPresent()
                ? ask(sealed.get(), registry, "GET /query", "", timeout)
                : http.get("http://" + registry, "/query", timeout);
        return answer.thenApply(text -> RegistryClient.read(text, EngineTable::parse));
    }

    @Override
    public void close() {
        registries.forEach(Registry::close);
        channel.close();
        http.close();
        sealed.ifPresent(SealedRegistry::close);
    }
}
