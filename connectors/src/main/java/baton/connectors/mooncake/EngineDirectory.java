package baton.connectors.mooncake;

import baton.connectors.onesided.PromptPlan.Source;
import baton.messages.PeerAddress;
import baton.messages.mooncake.EngineTable.Engine;
import baton.messages.mooncake.MooncakeExchange;
import baton.transfer.TransferException;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.concurrent.CompletableFuture;

/** The prefill instances that registries know. The rank's thread owns it. */
final class EngineDirectory {
    private static final int MOST = 4096;

    private final LocalRank local;
    private final MooncakeExchange exchange;
    /** The last question to the registry of each instance, by {@link Source#instance}. */
    private final Map<String, Lookup> lookups = new LinkedHashMap<>();

    EngineDirectory(LocalRank local, MooncakeExchange exchange) {
        this.local = local;
        this.exchange = exchange;
    }

    /** A question to a registry, for all loads from an instance. */
    private static final class Lookup {
        private final CompletableFuture<Optional<Engine>> answer;
        /** When its end was first seen. */
        private OptionalLong ended = OptionalLong.empty();

        private Lookup(CompletableFuture<Optional<Engine>> answer) {
            this.answer = answer;
        }

        /** Whether it is under way, has found the instance, or has ended since then. */
        private boolean isOf(long since, long now) {
            if (answer.isDone() && ended.isEmpty()) {
                ended = OptionalLong.of(now);
            }
            return ended.isEmpty()
                    || ended.getAsLong() - since >= 0
                    || (!answer.isCompletedExceptionally() && answer.resultNow().isPresent());
        }
    }

    /**
     * The instance of a source.
     *
     * @param since a registry that has answered, or failed to answer, since then is not asked again
     * @return empty as long as the registry has not answered
     * @throws TransferException if the registry does not answer, or has no such instance
     */
    Optional<Engine> find(Source source, long since, long now) throws TransferException {
        Lookup lookup = lookups.get(source.instance());
        if (lookup == null || !lookup.isOf(since, now)) {
            if (lookups.size() >= MOST) {
                lookups.clear();
            }
            lookup = new Lookup(exchange.query(
                            source.registry(), local.settings().timeouts().handshake())
                    .thenApply(table -> table.engines().values().stream()
                            .filter(engine -> engine.id().equals(source.engineId()))
                            .findFirst()));
            CompletableFuture<?> _ =
                    lookup.answer.whenComplete((_, _) -> local.context().wake().run());
            lookups.put(source.instance(), lookup);
        }
        if (!lookup.answer.isDone()) {
            return Optional.empty();
        }
        if (lookup.answer.isCompletedExceptionally()) {
            throw new TransferException(
                    "bootstrap server: " + lookup.answer.exceptionNow().getMessage());
        }
        Optional<Engine> engine = lookup.answer.resultNow();
        if (engine.isEmpty()) {
            throw new TransferException("remote engine_id %s not found from bootstrap server %s"
                    .formatted(PeerAddress.shown(source.engineId()), source.registry()));
        }
        return engine;
    }

    /** The instance's ranks cannot be reached where the registry said: it is asked again. */
    void forget(Source source) {
        lookups.remove(source.instance());
    }
}
