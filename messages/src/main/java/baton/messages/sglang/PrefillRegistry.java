package baton.messages.sglang;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.messages.MessageException;
import baton.messages.PeerAccess;
import baton.messages.PeerAddress;
import baton.messages.http.RegistryServer;
import baton.messages.http.RegistryServer.Answer;
import baton.messages.http.RegistryServer.Request;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * The registry of one prefill instance, as SGLang's {@code CommonKVBootstrapServer}: {@code GET /route} with
 * {@code prefill_dp_rank}, {@code prefill_cp_rank}, {@code target_tp_rank} and {@code target_pp_rank} has the address of a rank, or with -1 for
 * all of them the {@link PrefillTopology}; {@code GET /health}. The only instance has the data-parallel rank 0: {@code POST
 * /query_dp_ranks} answers that for each room, and {@code POST /register_dp_rank} takes no other.
 */
final class PrefillRegistry implements AutoCloseable {
    private final RegistryServer server;
    private final PrefillTopology topology;
    private final Map<List<Integer>, PeerAddress> ranks;

    /** @param ranks addresses by tensor rank and pipeline rank */
    PrefillRegistry(
            String host, int port, PeerAccess access, PrefillTopology topology, Map<List<Integer>, PeerAddress> ranks)
            throws MessageException {
        this.topology = topology;
        this.ranks = Map.copyOf(ranks);
        this.server = new RegistryServer(
                host,
                port,
                access,
                Map.of(
                        "GET /route", this::route,
                        "GET /health", _ -> Answer.ok("\"OK\""),
                        "POST /register_dp_rank", PrefillRegistry::registerDpRank,
                        "POST /query_dp_ranks", PrefillRegistry::dpRanks));
    }

    private Answer route(Request request) {
        List<Integer> asked = Stream.of("prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank")
                .map(name -> request.parameter(name)
                        .filter(value -> value.matches("-1|[0-9]{1,5}"))
                        .map(Integer::valueOf)
                        .orElseThrow(() -> new ConfigException(name, "must be a rank, or -1")))
                .toList();
        if (asked.stream().allMatch(rank -> rank == -1)) {
            return Answer.ok(topology.toJson());
        }
        PeerAddress address = ranks.get(asked.subList(2, 4));
        if (address == null || asked.get(0) != 0 || asked.get(1) != 0) {
            return Answer.detail(
                    404,
                    "Bootstrap info not found for dp_rank=%d cp_rank=%d tp_rank=%d pp_rank=%d"
                            .formatted(asked.toArray()));
        }
        return Answer.ok(JsonFields.empty("route")
                .toJson()
                .put("rank_ip", address.host())
                .put("rank_port", address.port())
                .toString());
    }

    private static Answer registerDpRank(Request request) {
        JsonFields body = JsonFields.parse("registration", request.body());
        if (body.integer("dp_rank").filter(rank -> rank == 0).isEmpty()) {
            throw new ConfigException(body.field("dp_rank"), "must be 0, the only rank of this registry");
        }
        return Answer.ok("\"OK\"");
    }

    private static Answer dpRanks(Request request) {
        JsonFields body = JsonFields.parse("query", request.body());
        ObjectNode answer = JsonFields.empty("answer").toJson();
        JsonNode rooms = body.value("bootstrap_rooms")
                .filter(JsonNode::isArray)
                .orElseThrow(() -> new ConfigException(body.field("bootstrap_rooms"), "must be an array of rooms"));
        for (JsonNode room : rooms) {
            if (!room.isIntegralNumber()) {
                throw new ConfigException(
                        body.field("bootstrap_rooms"),
                        "has " + PeerAddress.shown(room.toString()) + ", must have whole numbers");
            }
            answer.put(room.asString(), 0);
        }
        return Answer.ok(answer.toString());
    }

    int port() {
        return server.port();
    }

    @Override
    public void close() {
        server.close();
    }
}
