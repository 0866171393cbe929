package baton.messages.sglang;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.Ticker;
import baton.messages.MessageException;
import baton.messages.PeerAccess;
import baton.messages.PeerAddress;
import baton.messages.PeerChannel;
import baton.messages.http.RegistryClient;
import baton.messages.zeromq.ZeroMqPeerChannel;
import baton.messages.zeromq.ZeroMqPeerChannel.Sockets;
import baton.messages.zeromq.ZeroMqSideChannel;
import java.net.InetAddress;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executor;
import java.util.function.Consumer;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The messages of one rank to others, PUSH to PULL, and registries over HTTP. Serves only peers that {@link PeerAccess} admits, and
 * connects to no others.
 */
public final class SglangExchange implements AutoCloseable {
    private static final Logger log = LoggerFactory.getLogger(SglangExchange.class);

    /** A message has an index for each page of a prompt, and an address for each buffer of a layer. */
    private static final ZeroMqSideChannel.Limits LIMITS =
            new ZeroMqSideChannel.Limits(4 << 20, 64 << 10, 32, 4096, Duration.ofSeconds(5), Duration.ofDays(1));

    private static final Duration TELL = Duration.ofSeconds(5);
    private static final int MOST_LINKS = 4096;

    private final PeerAccess access;
    private final Executor background;
    private final PeerChannel channel;
    private final RegistryClient http;
    private final Map<PeerAddress, Link> links = new ConcurrentHashMap<>();
    private final Set<PrefillRegistry> registries = ConcurrentHashMap.newKeySet();

    /**
     * @param access which peers may connect, and be connected to
     * @param background runs blocking tasks
     */
    public SglangExchange(PeerAccess access, Executor background, Ticker ticker) {
        this.access = access;
        this.background = background;
        this.channel = new ZeroMqPeerChannel(LIMITS, ticker, Sockets.PUSH_PULL);
        this.http = new RegistryClient(access, background);
        access.expectPeersByAddress();
    }

    /**
     * Serves messages of other ranks.
     *
     * @param arrived takes messages, at least one frame each; any thread; must not wait
     * @return the address at which they find this rank
     * @throws MessageException if the address cannot be had
     */
    public PeerAddress listen(String host, Consumer<List<byte[]>> arrived) throws MessageException {
        int port = channel.listen(host, 0, new PeerChannel.Reception() {
                    @Override
                    public boolean admits(InetAddress from) {
                        return access.admitsByAddress(from);
                    }

                    @Override
                    public PeerChannel.Guest arrived(PeerChannel.Caller caller) {
                        return arrived::accept;
                    }
                })
                .port();
        return new PeerAddress(host, port);
    }

    /**
     * Sends messages. Those to an address arrive in order, over one connection.
     *
     * @param lost runs once when the connection ends, or cannot be had: messages may be lost. Ignored where there is a connection already
     */
    public void send(PeerAddress to, List<List<byte[]>> messages, Runnable lost) {
        if (links.size() >= MOST_LINKS && !links.containsKey(to)) {
            access.refuse(to.toString(), "there are " + MOST_LINKS + " connections to others");
            background.execute(lost);
            return;
        }
        links.compute(to, (_, known) -> {
            Link link = known == null ? new Link(to, lost) : known;
            messages.forEach(link::tell);
            return link;
        });
    }

    /** A connection, with the messages that wait for it. */
    private final class Link {
        private final PeerAddress to;
        private final CompletableFuture<String> ended = new CompletableFuture<>();
        private CompletableFuture<PeerChannel.Call> last;

        private Link(PeerAddress to, Runnable lost) {
            this.to = to;
            CompletableFuture<?> _ = ended.thenAcceptAsync(
                    why -> {
                        log.debug("the connection to {} has ended: {}", to, why);
                        links.remove(to, this);
                        lost.run();
                    },
                    background);
            this.last = CompletableFuture.supplyAsync(this::connect, background);
        }

        private PeerChannel.Call connect() {
            try {
                if (!access.mayConnect(to.host())) {
                    access.refuse(to.toString(), access.notAllowed());
                    throw new MessageException(access.notAllowed());
                }
                return channel.call(
                        to.host(),
                        to.port(),
                        UUID.randomUUID().toString(),
                        TELL,
                        () -> ended.complete("it was closed"));
            } catch (MessageException e) {
                ended.complete(String.valueOf(e.getMessage()));
                throw new CompletionException(e);
            }
        }

        private void tell(List<byte[]> message) {
            last = last.thenApplyAsync(
                    call -> {
                        try {
                            call.tell(message, TELL);
                            return call;
                        } catch (MessageException e) {
                            ended.complete(String.valueOf(e.getMessage()));
                            throw new CompletionException(e);
                        }
                    },
                    background);
        }
    }

    /**
     * Runs the registry of a prefill instance until this is closed.
     *
     * @param port 0 for any free one
     * @param ranks addresses by tensor rank and pipeline rank
     * @return its port
     * @throws MessageException if the address cannot be had
     */
    public int serve(String host, int port, PrefillTopology topology, Map<List<Integer>, PeerAddress> ranks)
            throws MessageException {
        PrefillRegistry registry = new PrefillRegistry(host, port, access, topology, ranks);
        registries.add(registry);
        return registry.port();
    }

    /** Asks a registry for its instance's ranks. */
    public CompletableFuture<PrefillTopology> topology(PeerAddress registry, Duration timeout) {
        return route(registry, -1, -1, -1, -1, timeout)
                .thenApply(text -> RegistryClient.read(text, PrefillTopology::parse));
    }

    /** Asks a registry for the address of a rank. */
    public CompletableFuture<PeerAddress> rank(PeerAddress registry, int dp, int tp, int pp, Duration timeout) {
        return route(registry, dp, 0, tp, pp, timeout)
                .thenApply(text -> RegistryClient.read(text, answer -> {
                    JsonFields json = JsonFields.parse("route", answer);
                    return PeerAddress.find(
                                    json.string("rank_ip").orElse(""),
                                    json.integer("rank_port").orElse(0L))
                            .orElseThrow(() -> new ConfigException("rank_ip", "and rank_port must be an address"));
                }));
    }

    private CompletableFuture<String> route(PeerAddress registry, int dp, int cp, int tp, int pp, Duration timeout) {
        return http.get(
                "http://" + registry,
                "/route?prefill_dp_rank=%d&prefill_cp_rank=%d&target_tp_rank=%d&target_pp_rank=%d"
                        .formatted(dp, cp, tp, pp),
                timeout);
    }

    @Override
    public void close() {
        registries.forEach(PrefillRegistry::close);
        channel.close();
        http.close();
    }
}
