package baton.connectors.sglang;

import baton.connectors.onesided.PromptPlan.Source;
import baton.messages.PeerAddress;
import baton.messages.sglang.PrefillTopology;
import baton.messages.sglang.SglangExchange;
import baton.transfer.TransferException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.function.Supplier;

/** The prefill ranks that this decode rank takes pages from. The rank's thread owns it. */
final class PrefillRanks {
    private static final int MOST = 4096;

    private final RoomReceiver receiver;
    private final SglangRank local;
    /** The topologies by registry. */
    private final Map<PeerAddress, Answer<PrefillTopology>> topologies = new LinkedHashMap<>();

    private final Map<Key, Answer<PeerAddress>> ranks = new LinkedHashMap<>();
    /** Ranks that know this one. */
    private final Set<PeerAddress> registered = new HashSet<>();

    /** @param dpRank of the instance among those that share the registry */
    private record Key(PeerAddress bootstrap, int dpRank) {}

    /** An answer of a registry that was asked at {@code asked}. */
    private record Answer<T>(long asked, CompletableFuture<T> future) {}

    PrefillRanks(RoomReceiver receiver) {
        this.receiver = receiver;
        this.local = receiver.local;
    }

    /**
     * The rank that has this rank's heads and layers.
     *
     * @param since a question that failed and was asked before is asked again
     * @return empty as long as the registry has not answered
     * @throws TransferException if the registry does not answer, or this rank cannot take pages of its instance
     */
    Optional<PeerAddress> find(Source source, long since) throws TransferException {
        if (topologies.size() > MOST || ranks.size() > MOST) {
            topologies.clear();
            ranks.clear();
        }
        SglangExchange exchange = local.exchange();
        Duration timeout = local.settings().handshake();
        Optional<PrefillTopology> topology =
                answer(topologies, source.registry(), since, () -> exchange.topology(source.registry(), timeout));
        if (topology.isEmpty()) {
            return Optional.empty();
        }
        require(topology.get());
        Key key = new Key(source.registry(), (int)
                (Long.parseLong(source.key()) % topology.get().dpSize()));
        return answer(
                ranks,
                key,
                since,
                () -> exchange.rank(
                        key.bootstrap(),
                        key.dpRank(),
                        local.rank().tensor(),
                        local.rank().pipeline(),
                        timeout));
    }

    /** Asks where that has not been done; all loads that wait for an answer fail with it. */
    private <K, T> Optional<T> answer(Map<K, Answer<T>> answers, K key, long since, Supplier<CompletableFuture<T>> ask)
            throws TransferException {
        Answer<T> known = answers.get(key);
        if (known == null || known.asked() - since < 0 && known.future().isCompletedExceptionally()) {
            known = new Answer<>(local.now(), ask.get());
            answers.put(key, known);
            CompletableFuture<?> _ =
                    known.future().whenComplete((_, _) -> local.context().wake().run());
        }
        CompletableFuture<T> answer = known.future();
        if (!answer.isDone()) {
            return Optional.empty();
        }
        if (answer.isCompletedExceptionally()) {
            throw new TransferException(
                    "bootstrap server: " + answer.exceptionNow().getMessage());
        }
        return Optional.of(answer.resultNow());
    }

    private void require(PrefillTopology topology) throws TransferException {
        int blockSize = local.cache().layout().blockSize();
        String dtype = local.cache().layout().dtype().torchName();
        requireEqual("page_size", topology.pageSize().orElse(blockSize), blockSize);
        requireEqual("attn_tp_size", topology.tpSize(), local.context().tensorParallelSize());
        requireEqual("pp_size", topology.ppSize(), local.context().pipelineParallelSize());
        requireEqual("attn_cp_size", topology.cpSize(), 1);
        requireEqual("decode_allocation_policy", topology.policy(), PrefillTopology.EARLY);
        requireEqual(
                "kv_cache_dtype",
                topology.dtype().filter(name -> !name.equals("auto")).orElse(dtype),
                dtype);
        requireEqual("follow_bootstrap_room", topology.followsRoom() || topology.dpSize() == 1, true);
    }

    private static void requireEqual(String field, Object found, Object own) throws TransferException {
        if (!found.equals(own)) {
            throw new TransferException("%s of the prefill instance is %s, must be %s"
                    .formatted(field, PeerAddress.shown("" + found), own));
        }
    }

    /** Sends a message to a rank; before the first one, this rank makes itself known. */
    void send(PeerAddress rank, List<byte[]> message) {
        List<List<byte[]>> messages = new ArrayList<>();
        if (registered.add(rank)) {
            messages.add(receiver.self.encode(local.address()));
        }
        messages.add(message);
        local.exchange().send(rank, messages, () -> receiver.happened(() -> receiver.lost(rank)));
    }

    /** The connection to a rank has ended: its instance may be another one, elsewhere. */
    void forget(PeerAddress rank) {
        registered.remove(rank);
        ranks.values()
                .removeIf(answer -> answer.future().isDone()
                        && !answer.future().isCompletedExceptionally()
                        && answer.future().resultNow().equals(rank));
        topologies.clear();
    }
}
