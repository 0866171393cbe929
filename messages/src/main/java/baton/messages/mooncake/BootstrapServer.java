package baton.messages.mooncake;

import baton.kv.JsonFields;
import baton.messages.MessageException;
import baton.messages.PeerAccess;
import baton.messages.PeerAddress;
import baton.messages.SideChannel;
import baton.messages.http.RegistryServer;
import baton.messages.http.RegistryServer.Answer;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A registry of prefill ranks, as vLLM's {@code MooncakeBootstrapServer} (mooncake/mooncake_utils.py): {@code POST /register} with a
 * {@link RankRegistration}, {@code GET /query} for the {@link EngineTable}. A registration may be repeated; one that contradicts another
 * gets status 400. Where instances have a secret it is served by a {@link SealedRegistry} in place of HTTP.
 */
final class BootstrapServer implements MooncakeExchange.Registry {
    private static final Logger log = LoggerFactory.getLogger(BootstrapServer.class);
    private static final int MOST_RANKS = 65_536;

    private final SideChannel.Listener server;

    @GuardedBy("this")
    private final Map<Integer, EngineTable.Engine> engines = new TreeMap<>();

    @GuardedBy("this")
    private int ranks;

    BootstrapServer(String host, int port, PeerAccess access, Optional<SealedRegistry> sealed) throws MessageException {
        Map<String, RegistryServer.Handler> handlers =
                Map.of("POST /register", request -> registered(request.body()), "GET /query", _ -> Answer.ok(table()));
        server = sealed.isPresent()
                ? sealed.get().serve(host, port, handlers)
                : new RegistryServer(host, port, access, handlers);
    }

    private Answer registered(String body) {
        RankRegistration rank = RankRegistration.read(JsonFields.parse("registration", body));
        try {
            register(rank);
            return Answer.ok("{\"status\":\"ok\"}");
        } catch (MessageException e) {
            log.warn("a registration is refused: {}", e.getMessage());
            return Answer.detail(400, String.valueOf(e.getMessage()));
        }
    }

    private synchronized String table() {
        return new EngineTable(engines).toJson();
    }

    @Override
    public synchronized void register(RankRegistration rank) throws MessageException {
        EngineTable.Engine engine =
                engines.getOrDefault(rank.dpRank(), new EngineTable.Engine(rank.engineId(), Map.of()));
        if (!engine.id().equals(rank.engineId())) {
            throw new MessageException("Engine ID mismatch for dp_rank=%d: expected %s, got %s"
                    .formatted(rank.dpRank(), engine.id(), PeerAddress.shown(rank.engineId())));
        }
        Map<Integer, PeerAddress> stages = engine.workers().getOrDefault(rank.tpRank(), Map.of());
        PeerAddress known = stages.get(rank.ppRank());
        if (known != null) {
            if (known.equals(rank.addr())) {
                return;
            }
            throw new MessageException(
                    "Worker with dp_rank=%d, tp_rank=%d, pp_rank=%d is already registered at tcp://%s, but still want to register at %s"
                            .formatted(rank.dpRank(), rank.tpRank(), rank.ppRank(), known, rank.url()));
        }
        if (++ranks > MOST_RANKS) {
            throw new MessageException("there are " + MOST_RANKS + " registrations already");
        }
        Map<Integer, Map<Integer, PeerAddress>> workers = new TreeMap<>(engine.workers());
        Map<Integer, PeerAddress> more = new TreeMap<>(stages);
        more.put(rank.ppRank(), rank.addr());
        workers.put(rank.tpRank(), more);
        engines.put(rank.dpRank(), new EngineTable.Engine(engine.id(), workers));
    }

    @Override
    public int port() {
        return server.port();
    }

    @Override
    public void close() {
        server.close();
    }
}
