package baton.bench;

import java.io.PrintWriter;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * Results of {@link TransferBench}.
 *
 * @param threads threads that copied
 * @param implementations ways to read, by name
 * @param absent what is not installed, with the reason, a line each
 */
public record TransferReport(int threads, List<String> implementations, List<Size> sizes, List<String> absent) {
    static final String COPY = "copy";
    static final String RAW_TCP = "plain TCP";
    static final String UCX_GET = "ucx_perftest's get";
    static final String SHARED = "shared memory";
    static final String TCP = "TCP";
    static final String NIXL = "NIXL (UCX)";
    static final String MOONCAKE = "Mooncake's TCP";
    static final String MOONCAKE_WRITE = "and written";
    static final String WIRE_TCP = "wire: TCP";
    static final String WIRE_GLOO = "wire: Gloo";
    static final String DIGESTED = "and digested";

    /** @param rates by case */
    public record Size(int tokens, Map<String, Rate> rates) {
        public Rate rate(String name) {
            Rate rate = rates.get(name);
            if (rate == null) {
                throw new IllegalArgumentException("name=%s was not measured, only %s".formatted(name, rates.keySet()));
            }
            return rate;
        }
    }

    /** @param bytes that were moved each time */
    public record Rate(long bytes, Timing timing) {
        /** Bytes in the best run, by its seconds. */
        public double best() {
            return bytes / timing.best();
        }

        public double median() {
            return bytes / timing.median();
        }
    }

    /** The limit of an implementation: a copy for shared memory, a plain connection for TCP. */
    public static String limitOf(String implementation) {
        return switch (implementation) {
            case TCP, MOONCAKE, MOONCAKE_WRITE, WIRE_TCP, WIRE_GLOO -> RAW_TCP;
            case DIGESTED -> SHARED;
            default -> COPY;
        };
    }

    /** How much of its limit an implementation reaches, each in its best run. */
    public double share(Size size, String implementation) {
        return size.rate(implementation).best()
                / size.rate(limitOf(implementation)).best();
    }

    public void print(PrintWriter out) {
        out.printf(
                "Reading KV blocks of %d KiB of another process, %d threads; GB/s of the best run (median), shares likewise%n%n",
                TransferBench.BLOCK_BYTES >> 10, threads);
        for (Size size : sizes) {
            out.printf(
                    Locale.ROOT,
                    "%,d tokens, %,d MiB%n",
                    size.tokens(),
                    size.rate(COPY).bytes() >> 20);
            line(out, size, COPY, "");
            line(out, size, RAW_TCP, "");
            if (size.rates().containsKey(UCX_GET)) {
                line(out, size, UCX_GET, "");
            }
            for (String name : implementations) {
                line(out, size, name, share(size, name, limitOf(name)));
                if (name.equals(SHARED)) {
                    line(out, size, DIGESTED, share(size, DIGESTED, SHARED));
                }
                if (name.equals(MOONCAKE)) {
                    line(out, size, MOONCAKE_WRITE, share(size, MOONCAKE_WRITE, RAW_TCP));
                }
            }
            out.println();
        }
        for (String name : List.of(SHARED, TCP)) {
            Size least = sizes.getFirst();
            Size most = sizes.getLast();
            out.printf(
                    Locale.ROOT,
                    "%s: %,d tokens at %.0f %% of the rate of %,d%n",
                    name,
                    least.tokens(),
                    100 * least.rate(name).best() / most.rate(name).best(),
                    most.tokens());
        }
        absent.forEach(line -> out.println("not measured: " + line));
        out.flush();
    }

    private String share(Size size, String name, String limit) {
        double best = size.rate(name).best() / size.rate(limit).best();
        double median = size.rate(name).median() / size.rate(limit).median();
        return String.format(Locale.ROOT, "%4.0f %% (%3.0f %%) of %s", 100 * best, 100 * median, limit);
    }

    private static void line(PrintWriter out, Size size, String name, String share) {
        Rate rate = size.rate(name);
        out.printf(
                Locale.ROOT,
                "  %-20s %7.2f (%6.2f)  %9.3f ms  %s%n",
                name,
                rate.best() / 1e9,
                rate.median() / 1e9,
                rate.timing().best() * 1e3,
                share);
    }

    public ObjectNode toJson() {
        ObjectNode root = JsonMapper.builder().build().createObjectNode().put("threads", threads);
        ArrayNode all = root.putArray("sizes");
        for (Size size : sizes) {
            ObjectNode node = all.addObject().put("tokens", size.tokens());
            size.rates()
                    .forEach((name, rate) -> node.putObject(name)
                            .put("bytes", rate.bytes())
                            .put("bytes_per_second", rate.best())
                            .put("median_bytes_per_second", rate.median()));
        }
        absent.forEach(root.putArray("absent")::add);
        return root;
    }
}
