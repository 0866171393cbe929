package baton.bench;

import java.io.PrintWriter;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ObjectNode;

/**
 * Results of {@link KvServerBench}.
 *
 * @param valueBytes of a value
 * @param rates keys a second, by server and case, one for each round
 */
public record KvServerReport(long valueBytes, KvServerBench.Options options, Map<String, List<Double>> rates) {
    static final String PUT = "put";
    static final String GET = "get";
    static final String SOCKET_GET = "get, by socket";
    static final String HIT = "contains, present";
    static final String MISS = "contains, absent";

    /** The median of a case, in keys a second; {@code lm get}, {@code redis contains, absent}. */
    public double median(String name) {
        List<Double> found = rates.get(name);
        if (found == null) {
            throw new IllegalArgumentException("name=%s was not measured, only %s".formatted(name, rates.keySet()));
        }
        return Timing.median(found);
    }

    /** How many times as fast as Redis. */
    public double ratio(String name) {
        return median("lm " + name) / median("redis " + name);
    }

    public void print(PrintWriter out) {
        out.printf(
                Locale.ROOT,
                "kv-server beside redis-server on this host, %,d KiB a value, %d in a batch, %d keys in a look-up, %d"
                        + " connections; median of %d rounds%n%n",
                valueBytes >> 10,
                options.values(),
                options.lookups(),
                options.connections(),
                options.rounds());
        for (String name : List.of(PUT, GET, SOCKET_GET, HIT, MISS)) {
            boolean bytes = !name.equals(HIT) && !name.equals(MISS);
            double scale = bytes ? valueBytes / 1e9 : 1e-3;
            out.printf(
                    Locale.ROOT,
                    "  %-18s %9.2f %s   redis %9.2f   ratio %.2f%n",
                    name,
                    median("lm " + name) * scale,
                    bytes ? "GB/s" : "k/s ",
                    median("redis " + name) * scale,
                    ratio(name));
        }
        out.flush();
    }

    public ObjectNode toJson() {
        ObjectNode root = JsonMapper.builder().build().createObjectNode().put("value_bytes", valueBytes);
        rates.keySet().stream().sorted().forEach(name -> root.put(name, median(name)));
        for (String name : List.of(PUT, GET, HIT, MISS)) {
            root.put("ratio " + name, ratio(name));
        }
        return root;
    }
}
