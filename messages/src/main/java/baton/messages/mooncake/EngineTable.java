package baton.messages.mooncake;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.messages.PeerAddress;
import java.util.Collections;
import java.util.Map;
import java.util.TreeMap;
import tools.jackson.databind.node.ObjectNode;

/**
 * The instances of a registry: the answer to {@code GET /query}, {@code {"<dp>": {"engine_id", "worker_addr": {"<tp>": {"<pp>":
 * "tcp://host:port"}}}}}. Other fields of an entry are skipped, as vLLM skips them.
 *
 * @param engines by their rank among those that share the registry
 */
public record EngineTable(Map<Integer, Engine> engines) {
    private static final int MOST = 65_536;

    public EngineTable {
        engines = Collections.unmodifiableMap(new TreeMap<>(engines));
    }

    /**
     * One instance.
     *
     * @param workers addresses by tensor rank and pipeline rank
     */
    public record Engine(String id, Map<Integer, Map<Integer, PeerAddress>> workers) {
        public Engine {
            TreeMap<Integer, Map<Integer, PeerAddress>> sorted = new TreeMap<>();
            workers.forEach((tp, stages) -> sorted.put(tp, Collections.unmodifiableMap(new TreeMap<>(stages))));
            workers = Collections.unmodifiableMap(sorted);
        }
    }

    String toJson() {
        ObjectNode json = JsonFields.empty("query").toJson();
        engines.forEach((dp, engine) -> {
            ObjectNode entry = json.putObject(dp.toString()).put("engine_id", engine.id());
            ObjectNode workers = entry.putObject("worker_addr");
            engine.workers().forEach((tp, stages) -> {
                ObjectNode ranks = workers.putObject(tp.toString());
                stages.forEach((pp, addr) -> ranks.put(pp.toString(), "tcp://" + addr));
            });
        });
        return json.toString();
    }

    /** @throws ConfigException if the text is no such answer */
    static EngineTable parse(String text) {
        JsonFields json = JsonFields.parse("query", text);
        Map<Integer, Engine> engines = new TreeMap<>();
        for (String dp : json.names()) {
            JsonFields entry = json.object(dp).orElseGet(() -> JsonFields.empty(json.field(dp)));
            String id = entry.string("engine_id")
                    .orElseThrow(() -> new ConfigException(entry.field("engine_id"), "is missing"));
            JsonFields workers =
                    entry.object("worker_addr").orElseGet(() -> JsonFields.empty(entry.field("worker_addr")));
            Map<Integer, Map<Integer, PeerAddress>> ranks = new TreeMap<>();
            for (String tp : workers.names()) {
                JsonFields stages = workers.object(tp).orElseGet(() -> JsonFields.empty(workers.field(tp)));
                Map<Integer, PeerAddress> byStage = new TreeMap<>();
                for (String pp : stages.names()) {
                    String url = stages.string(pp).orElse("");
                    byStage.put(
                            number(stages.field(pp), pp),
                            RankRegistration.address(url)
                                    .orElseThrow(() -> new ConfigException(
                                            stages.field(pp),
                                            "is '" + PeerAddress.shown(url) + "', must be tcp://host:port")));
                }
                ranks.put(number(workers.field(tp), tp), byStage);
            }
            engines.put(number(json.field(dp), dp), new Engine(id, ranks));
        }
        return new EngineTable(engines);
    }

    private static int number(String field, String name) {
        if (name.matches("[0-9]{1,5}") && Integer.parseInt(name) < MOST) {
            return Integer.parseInt(name);
        }
        throw new ConfigException(field, "is not a rank");
    }
}
