package baton.connectors.mooncake;

import baton.messages.PeerAddress;
import baton.messages.mooncake.EngineTable;
import baton.messages.mooncake.EngineTable.Engine;
import baton.messages.mooncake.MooncakeExchange;
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
    /** By engine id. */
    private final Map<String, Engine> engines = new LinkedHashMap<>();
    /** By the registry's address. */
    private final Map<String, Lookup> lookups = new LinkedHashMap<>();

    EngineDirectory(LocalRank local, MooncakeExchange exchange) {
        this.local = local;
        this.exchange = exchange;
    }

    /** An instance that is not known, with the reason. */
    static final class UnknownEngine extends Exception {
        private static final long serialVersionUID = 1;

        UnknownEngine(String message) {
            super(message);
        }
    }

    /** A question to a registry, for all loads that wait for its answer. */
    private static final class Lookup {
        private final CompletableFuture<EngineTable> answer;
        /** When its end was first seen. */
        private OptionalLong ended = OptionalLong.empty();

        private Lookup(CompletableFuture<EngineTable> answer) {
            this.answer = answer;
        }

        private boolean isOf(long since, long now) {
            if (answer.isDone() && ended.isEmpty()) {
                ended = OptionalLong.of(now);
            }
            return ended.isEmpty() || ended.getAsLong() - since >= 0;
        }
    }

    /**
     * The instance of a source.
     *
     * @param since a registry that has answered, or failed to answer, since then is not asked again
     * @return empty as long as the registry has not answered
     * @throws UnknownEngine if the registry does not answer, or has no such instance
     */
    Optional<Engine> find(MooncakeConnectorMetadata.Source source, long since, long now) throws UnknownEngine {
        Engine known = engines.get(source.engineId());
        if (known == null) {
            CompletableFuture<EngineTable> query = lookup(source.bootstrap(), since, now).answer;
            if (!query.isDone()) {
                return Optional.empty();
            }
            if (query.isCompletedExceptionally()) {
                throw new UnknownEngine(
                        "bootstrap server: " + query.exceptionNow().getMessage());
            }
            for (Engine engine : query.resultNow().engines().values()) {
                if (engines.size() >= MOST) {
                    engines.clear();
                }
                engines.put(engine.id(), engine);
            }
            known = engines.get(source.engineId());
        }
        if (known == null) {
            throw new UnknownEngine("remote engine_id %s not found from bootstrap server %s"
                    .formatted(PeerAddress.shown(source.engineId()), PeerAddress.shown(source.bootstrap())));
        }
        return Optional.of(known);
    }

    /** Its ranks cannot be reached where they were. */
    void forget(String engineId) {
        engines.remove(engineId);
    }

    /** The question to a registry that is under way, or that has ended since then; else a new one. */
    private Lookup lookup(String bootstrap, long since, long now) {
        Lookup known = lookups.get(bootstrap);
        if (known != null && known.isOf(since, now)) {
            return known;
        }
        if (lookups.size() >= MOST) {
            lookups.clear();
        }
        Lookup begun =
                new Lookup(exchange.query(bootstrap, local.settings().timeouts().handshake()));
        CompletableFuture<?> _ =
                begun.answer.whenComplete((_, _) -> local.context().wake().run());
        lookups.put(bootstrap, begun);
        return begun;
    }
}
