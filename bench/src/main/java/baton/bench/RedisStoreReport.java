package baton.bench;

import java.io.PrintWriter;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ObjectNode;

/**
 * Results of {@link RedisStoreBench}.
 *
 * @param valueBytes of a value
 * @param rates operations a second on single keys, by case, one for each round
 */
public record RedisStoreReport(long valueBytes, RedisStoreBench.Options options, Map<String, List<Double>> rates) {
    static final String PUT = "put";
    static final String GET = "get";
    static final String HIT = "contains, present";
    static final String MISS = "contains, absent";
    static final String RAW_SET = "redis-benchmark SET";
    static final String RAW_GET = "redis-benchmark GET";
    static final String RAW_EXISTS = "redis-benchmark EXISTS";

    /** The median of a case, in keys a second. */
    public double median(String name) {
        List<Double> found = rates.get(name);
        if (found == null) {
            throw new IllegalArgumentException("name=%s was not measured, only %s".formatted(name, rates.keySet()));
        }
        return Timing.median(found);
    }

    public void print(PrintWriter out) {
        out.printf(
                Locale.ROOT,
                "Redis on this host, %,d KiB a value, %d in a batch, %d connections; median of %d rounds%n%n",
                valueBytes >> 10,
                options.values(),
                options.connections(),
                options.rounds());
        line(out, PUT, RAW_SET, true);
        line(out, GET, RAW_GET, true);
        line(out, HIT, RAW_EXISTS, false);
        line(out, MISS, RAW_EXISTS, false);
        out.flush();
    }

    private void line(PrintWriter out, String name, String limit, boolean bytes) {
        double scale = bytes ? valueBytes / 1e9 : 1e-3;
        out.printf(
                Locale.ROOT,
                "  %-18s %9.2f %s   %s %9.2f   ratio %.2f%n",
                name,
                median(name) * scale,
                bytes ? "GB/s" : "k/s ",
                limit,
                median(limit) * scale,
                median(name) / median(limit));
    }

    public ObjectNode toJson() {
        ObjectNode root = JsonMapper.builder().build().createObjectNode().put("value_bytes", valueBytes);
        rates.keySet().stream().sorted().forEach(name -> root.put(name, median(name)));
        return root;
    }
}
