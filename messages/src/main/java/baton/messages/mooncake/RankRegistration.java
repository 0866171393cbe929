package baton.messages.mooncake;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.messages.PeerAddress;
import java.util.Optional;

/**
 * One rank of a prefill instance in a registry: the body of {@code POST /register}.
 *
 * @param dpRank of the instance among those that share the registry
 * @param addr of the rank's channel
 */
public record RankRegistration(String engineId, int dpRank, int tpRank, int ppRank, PeerAddress addr) {
    private static final String SCHEME = "tcp://";

    /** {@code tcp://host:port}. */
    String url() {
        return SCHEME + addr;
    }

    /** Reads {@code tcp://host:port}; empty if the text is none. */
    static Optional<PeerAddress> address(String url) {
        return url.startsWith(SCHEME) ? PeerAddress.find(url.substring(SCHEME.length())) : Optional.empty();
    }

    String toJson() {
        return JsonFields.empty("registration")
                .toJson()
                .put("engine_id", engineId)
                .put("dp_rank", dpRank)
                .put("tp_rank", tpRank)
                .put("pp_rank", ppRank)
                .put("addr", url())
                .toString();
    }

    /** @throws ConfigException if a field is missing or malformed */
    static RankRegistration read(JsonFields json) {
        String url = json.string("addr").orElseThrow(() -> missing(json, "addr"));
        return new RankRegistration(
                json.string("engine_id").orElseThrow(() -> missing(json, "engine_id")),
                json.integerAtLeast("dp_rank", 0).orElseThrow(() -> missing(json, "dp_rank")),
                json.integerAtLeast("tp_rank", 0).orElseThrow(() -> missing(json, "tp_rank")),
                json.integerAtLeast("pp_rank", 0).orElseThrow(() -> missing(json, "pp_rank")),
                address(url)
                        .orElseThrow(() -> new ConfigException(
                                json.field("addr"), "is '" + PeerAddress.shown(url) + "', must be tcp://host:port")));
    }

    private static ConfigException missing(JsonFields json, String name) {
        return new ConfigException(json.field(name), "is missing");
    }
}
