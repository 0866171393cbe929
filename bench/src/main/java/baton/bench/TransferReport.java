package baton.bench;

import java.io.PrintWriter;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * What {@link TransferBench} measured.
 *
 * @param threads threads that copied
 * @param implementations ways to read, by name
 */
public record TransferReport(int threads, List<String> implementations, List<Size> sizes) {
    static final String COPY = "copy";
    static final String RAW_TCP = "plain TCP";
    static final String WIRE_TCP = "wire: TCP";
    static final String WIRE_GLOO = "wire: Gloo";
    static final String COPY_AND_DIGEST = "copy and digest";
    static final String READ_THEN_DIGEST = "read, then digest";

    /** @param rates by what was done */
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

    /** What an implementation is compared with: a copy for what copies, a plain connection for what sends. */
    public static String limitOf(String implementation) {
        return switch (implementation) {
            case "TCP", WIRE_TCP, WIRE_GLOO -> RAW_TCP;
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
                "Reading KV blocks of %d KiB of another process, %d threads; GB/s of the best run (median)%n%n",
                TransferBench.BLOCK_BYTES >> 10, threads);
        for (Size size : sizes) {
            out.printf(
                    Locale.ROOT,
                    "%,d tokens, %,d MiB%n",
                    size.tokens(),
                    size.rate(COPY).bytes() >> 20);
            line(out, size, COPY, "");
            line(out, size, RAW_TCP, "");
            for (String name : implementations) {
                line(
                        out,
                        size,
                        name,
                        String.format(Locale.ROOT, "%4.0f %% of %s", 100 * share(size, name), limitOf(name)));
            }
            for (String name : List.of(COPY_AND_DIGEST, READ_THEN_DIGEST)) {
                line(
                        out,
                        size,
                        name,
                        String.format(
                                Locale.ROOT,
                                "%4.0f %% of %s",
                                100 * size.rate(name).best() / size.rate(COPY).best(),
                                COPY));
            }
            out.println();
        }
        out.flush();
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
        return root;
    }
}
