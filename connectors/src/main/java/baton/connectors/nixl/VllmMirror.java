package baton.connectors.nixl;

import baton.connectors.onesided.PeerHandshake;
import baton.connectors.onesided.RankInfo;
import baton.kv.Ticker;
import baton.kv.connector.Rank;
import baton.messages.PeerAddress;
import baton.transfer.TransferException;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Predicate;
import java.util.stream.Collectors;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The compatibility hashes of the vLLM instances among the configured peers, as their own side channels tell them: what this instance
 * answers to a handshake, so that such an instance finds its own hash. A question does not say which instance asks, so the hash must be
 * the same for all of them, or for all at the asking host. Any thread.
 */
final class VllmMirror {
    private static final Logger log = LoggerFactory.getLogger(VllmMirror.class);
    private static final Duration TIMEOUT = Duration.ofSeconds(2);
    /** An instance may start again with other settings. */
    private static final Duration FRESH = Duration.ofSeconds(10);

    private final List<PeerAddress> peers;
    private final PeerHandshake handshake;
    private final List<String> layerNames;
    private final Executor background;
    private final Ticker ticker;
    private final Map<PeerAddress, String> known = new ConcurrentHashMap<>();
    private boolean asking;
    private boolean asked;
    private long askedAt;

    /**
     * @param peers side channels of instances that may be vLLM's
     * @param handshake reads their answers, and refuses those of instances with another block layout
     * @param layerNames of this instance
     * @param background runs what waits for peers
     */
    VllmMirror(
            List<PeerAddress> peers,
            PeerHandshake handshake,
            List<String> layerNames,
            Executor background,
            Ticker ticker) {
        this.peers = List.copyOf(peers);
        this.handshake = handshake;
        this.layerNames = List.copyOf(layerNames);
        this.background = background;
        this.ticker = ticker;
    }

    /**
     * The hash for a peer that asks from a numeric address; empty if none of the peers is known to be a vLLM instance, or their hashes differ.
     * Asks peers that were not asked for a while, and waits for them, unless another thread does so: peers may ask each other.
     */
    Optional<String> hash(String from) {
        refresh().ifPresent(all -> {
            try {
                all.get(TIMEOUT.toMillis(), TimeUnit.MILLISECONDS);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            } catch (ExecutionException | TimeoutException e) {
                log.debug("not all peers were asked for their hash", e);
            }
        });
        Set<String> there = hashes(peer -> peer.host().equals(from));
        Set<String> hashes = there.isEmpty() ? hashes(_ -> true) : there;
        if (hashes.size() > 1) {
            log.warn(
                    "the vLLM instances among peers have different compatibility hashes ({}), and {} does not say which it is: it is"
                            + " refused; set vllm_compat, or list only those that hand over with this instance",
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

    /** Begins to ask the peers; empty if that is not needed, or under way. */
    Optional<CompletableFuture<Void>> refresh() {
        synchronized (this) {
            long now = ticker.nanos();
            if (asking || (asked && now - askedAt < FRESH.toNanos()) || peers.isEmpty()) {
                return Optional.empty();
            }
            asking = true;
        }
        return Optional.of(CompletableFuture.allOf(peers.stream()
                        .map(peer -> CompletableFuture.runAsync(() -> ask(peer), background))
                        .toArray(CompletableFuture[]::new))
                .whenComplete((_, _) -> {
                    synchronized (this) {
                        asking = false;
                        asked = true;
                        askedAt = ticker.nanos();
                    }
                }));
    }

    /** A peer's last answer stays valid while it does not answer. */
    private void ask(PeerAddress peer) {
        try {
            RankInfo info = handshake.ask(peer, Rank.FIRST, TIMEOUT).info();
            boolean fits = info.layerNames().isEmpty() || info.layerNames().equals(layerNames);
            if (info.incarnation().isPresent() || !fits) {
                known.remove(peer);
                if (!fits) {
                    log.warn(
                            "{} has region_names {}, this instance {}: its hash is not used",
                            peer,
                            info.layerNames(),
                            layerNames);
                }
                return;
            }
            String hash = info.compatibility();
            if (!hash.equals(known.put(peer, hash))) {
                log.info("{} is a vLLM instance; it gets its own compatibility hash, {}", peer, hash);
            }
        } catch (TransferException e) {
            log.debug("{} was not asked for its hash: {}", peer, e.getMessage());
        }
    }
}
