package baton.connectors.nixl;

import baton.connectors.ConnectorRuntime;
import baton.connectors.onesided.PeerHandshake;
import baton.connectors.onesided.RankInfo;
import baton.kv.Ticker;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.Rank;
import baton.messages.PeerAddress;
import baton.transfer.TransferException;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Predicate;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The compatibility hashes of vLLM instances, read from their side channels. This instance answers a handshake with them, so that such an
 * instance finds its own hash. A question does not say which instance asks, so the hash must be the same for all of them, or for all at the
 * asking host. Asked are the configured peers and, where instances of several versions are expected, the asking host itself. Any thread.
 */
final class VllmMirror {
    private static final Logger log = LoggerFactory.getLogger(VllmMirror.class);
    private static final Duration TIMEOUT = Duration.ofSeconds(2);
    /** The limit for an answer that another thread waits for: two instances may ask each other. */
    private static final Duration SHORT = Duration.ofMillis(500);
    /** An instance may start again with other settings. */
    private static final Duration FRESH = Duration.ofSeconds(10);

    private static final int MOST_HOSTS = 4096;

    private final List<PeerAddress> peers;
    private final Hosts hosts;
    private final PeerHandshake handshake;
    private final List<String> layerNames;
    private final Executor background;
    private final Ticker ticker;
    private final Map<PeerAddress, Question> questions = new ConcurrentHashMap<>();
    private final Map<PeerAddress, String> known = new ConcurrentHashMap<>();

    /**
     * The handling of instances that are not listed.
     *
     * @param hashes of the versions that are expected; empty: any
     * @param port where asking hosts have their side channel; empty: they are not asked
     * @param mayConnect whether a numeric address may be asked
     */
    record Hosts(List<String> hashes, OptionalInt port, Predicate<String> mayConnect) {
        static final Hosts NONE = new Hosts(List.of(), OptionalInt.empty(), _ -> false);

        Hosts {
            hashes = List.copyOf(hashes);
        }
    }

    private record Question(long asked, CompletableFuture<Void> answer) {}

    /**
     * @param peers side channels of instances that may be vLLM's
     * @param handshake reads their answers, and refuses those of instances with another block layout
     * @param layerNames of this instance
     * @param background runs tasks that wait for peers
     */
    VllmMirror(
            List<PeerAddress> peers,
            Hosts hosts,
            PeerHandshake handshake,
            List<String> layerNames,
            Executor background,
            Ticker ticker) {
        this.peers = List.copyOf(peers);
        this.hosts = hosts;
        this.handshake = handshake;
        this.layerNames = List.copyOf(layerNames);
        this.background = background;
        this.ticker = ticker;
    }

    /**
     * The hash of an instance with settings that name no hash of a vLLM instance, or several. Its peers are asked already.
     *
     * @param first of this instance's ranks
     */
    static Optional<VllmMirror> of(
            ConnectorContext context, NixlSettings settings, ConnectorRuntime runtime, RankInfo first) {
        List<String> hashes = first.vllmCompatibility();
        // vLLM's side channel does not know the secret.
        boolean asksHosts = hashes.size() > 1 && settings.access().secret().isEmpty();
        if (settings.oneSided().mirrored().isEmpty() && !asksHosts) {
            return Optional.empty();
        }
        VllmMirror mirror = new VllmMirror(
                settings.peers(),
                asksHosts
                        ? new Hosts(
                                hashes,
                                settings.vllm()
                                        .map(vllm -> OptionalInt.of(vllm.port()))
                                        .orElseThrow(),
                                settings.access()::mayConnect)
                        : Hosts.NONE,
                new HandshakeClient(runtime, settings.access(), settings.vllmRank(context)),
                first.layerNames(),
                runtime.background(),
                context.ticker());
        // Not waited for: peers may start later than this instance.
        for (PeerAddress peer : mirror.peers) {
            CompletableFuture<Void> _ = mirror.asked(peer);
        }
        return Optional.of(mirror);
    }

    /**
     * The hash for a peer that asks from a numeric address; empty if no vLLM instance is known, or their hashes differ. Asks those that
     * were not asked for a while, and waits for them.
     */
    Optional<String> hash(String from) {
        try {
            ask(from).get(TIMEOUT.toMillis(), TimeUnit.MILLISECONDS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        } catch (ExecutionException | TimeoutException e) {
            log.debug("not all peers were asked for their hash", e);
        }
        Set<String> there = hashes(peer -> peer.host().equals(from));
        Set<String> hashes = there.isEmpty() ? hashes(peers::contains) : there;
        if (hashes.size() > 1) {
            log.warn(
                    "vLLM instances have different compatibility hashes ({}), and {} does not say which it is: it may be refused; vllm_compat"
                            + " must have one version, or only instances of one version be at a host",
                    known,
                    from);
        }
        return hashes.size() == 1 ? hashes.stream().findFirst() : Optional.empty();
    }

    private Set<String> hashes(Predicate<PeerAddress> which) {
        return known.entrySet().stream()
                .filter(peer -> which.test(peer.getKey()))
                .map(Map.Entry::getValue)
                .collect(Collectors.toUnmodifiableSet());
    }

    private CompletableFuture<Void> ask(String from) {
        if (questions.size() > MOST_HOSTS) {
            questions.keySet().retainAll(peers);
            known.keySet().retainAll(peers);
        }
        Stream<PeerAddress> host =
                hosts.port().isPresent() && hosts.mayConnect().test(from)
                        ? Stream.of(new PeerAddress(from, hosts.port().getAsInt()))
                        : Stream.empty();
        return CompletableFuture.allOf(
                Stream.concat(peers.stream(), host).map(this::asked).toArray(CompletableFuture[]::new));
    }

    @SuppressWarnings("ReferenceEquality") // the thread that made the question asks it
    private CompletableFuture<Void> asked(PeerAddress peer) {
        CompletableFuture<Void> own = new CompletableFuture<>();
        CompletableFuture<Void> answer = Objects.requireNonNull(questions.merge(
                        peer,
                        new Question(ticker.nanos(), own),
                        (last, next) -> next.asked - last.asked < FRESH.toNanos() ? last : next))
                .answer;
        if (answer != own) {
            return answer.copy().completeOnTimeout(null, SHORT.toMillis(), TimeUnit.MILLISECONDS);
        }
        background.execute(() -> {
            try {
                learn(peer);
            } finally {
                own.complete(null);
            }
        });
        return own;
    }

    /** A peer's last answer stays valid while it does not answer. */
    private void learn(PeerAddress peer) {
        try {
            RankInfo info = handshake.ask(peer, Rank.FIRST, TIMEOUT).info();
            String hash = info.compatibility();
            boolean fits = info.layerNames().isEmpty() || info.layerNames().equals(layerNames);
            boolean isExpected = hosts.hashes().isEmpty() || hosts.hashes().contains(hash);
            if (info.incarnation().isPresent()) {
                known.remove(peer);
            } else if (!fits || !isExpected) {
                known.remove(peer);
                log.warn(
                        "{} has region_names {} and compatibility hash {}, this instance {} and {}: its hash is not used",
                        peer,
                        info.layerNames(),
                        hash,
                        layerNames,
                        hosts.hashes());
            } else if (!hash.equals(known.put(peer, hash))) {
                log.info("{} is a vLLM instance; it gets its own compatibility hash, {}", peer, hash);
            }
        } catch (TransferException e) {
            log.debug("{} was not asked for its hash: {}", peer, e.getMessage());
        }
    }
}
