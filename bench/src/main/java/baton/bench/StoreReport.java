package baton.bench;

import java.io.PrintWriter;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * Results of {@link StoreBench}.
 *
 * @param lookedUp keys of a look-up, all of them there
 * @param stored keys that the store had then, about
 */
public record StoreReport(
        String store, Machine machine, int threads, int lookedUp, int stored, Timing lookUp, List<Size> sizes) {
    /** @param rates of each case of {@link StoreBench} */
    public record Size(int tokens, int ranks, Map<String, Rate> rates) {
        Rate rate(String name) {
            Rate rate = rates.get(name);
            if (rate == null) {
                throw new IllegalArgumentException("name=%s was not measured, only %s".formatted(name, rates.keySet()));
            }
            return rate;
        }

        /** How much of plain copying it reaches, each in its best run. */
        public double share(String name) {
            return rate(StoreBench.COPY).timing().best() / rate(name).timing().best();
        }

        /** The same of medians. */
        public double medianShare(String name) {
            return medianShare(name, StoreBench.COPY);
        }

        /** How much of another case it reaches, by medians. */
        public double medianShare(String name, String of) {
            return rate(of).timing().median() / rate(name).timing().median();
        }
    }

    /** @param bytes that were moved each time */
    public record Rate(long bytes, Timing timing) {
        public double best() {
            return bytes / timing.best();
        }

        public double median() {
            return bytes / timing.median();
        }
    }

    public void print(PrintWriter out) {
        machine.print(out, threads);
        out.printf(
                "%nThe store %s, KV blocks of Llama-3.2-1B; GB/s of the best run (median), shares of plain copies likewise%n",
                store);
        out.printf("%8s %6s %18s %34s %34s%n", "tokens", "ranks", "copy", "put", "get");
        for (Size size : sizes) {
            out.printf(
                    Locale.ROOT,
                    "%,8d %6d %18s %34s %34s%n",
                    size.tokens(),
                    size.ranks(),
                    rate(size, StoreBench.COPY),
                    share(size, StoreBench.PUT),
                    share(size, StoreBench.GET));
        }
        out.printf(
                "%nThe copying kernel alone with the same ranges, GB/s of the best run (median), and what of its median put and get reach%n");
        out.printf("%8s %6s %34s %34s%n", "tokens", "ranks", "put", "get");
        for (Size size : sizes) {
            out.printf(
                    Locale.ROOT,
                    "%,8d %6d %34s %34s%n",
                    size.tokens(),
                    size.ranks(),
                    ofRanges(size, StoreBench.PUT, StoreBench.RANGES_OUT),
                    ofRanges(size, StoreBench.GET, StoreBench.RANGES_IN));
        }
        out.printf(
                Locale.ROOT,
                "%ncontains of %,d keys, of %,d that are there: %.1f us (median %.1f us)%n",
                lookedUp,
                stored,
                lookUp.best() * 1e6,
                lookUp.median() * 1e6);
        out.flush();
    }

    private static String rate(Size size, String name) {
        Rate rate = size.rate(name);
        return String.format(Locale.ROOT, "%.2f (%.2f)", rate.best() / 1e9, rate.median() / 1e9);
    }

    private static String ofRanges(Size size, String name, String ranges) {
        return String.format(Locale.ROOT, "%s %.0f %%", rate(size, ranges), 100 * size.medianShare(name, ranges));
    }

    private static String share(Size size, String name) {
        return String.format(
                Locale.ROOT,
                "%s %.0f %% (%.0f %%)",
                rate(size, name),
                100 * size.share(name),
                100 * size.medianShare(name));
    }

    public ObjectNode toJson() {
        ObjectNode root = JsonMapper.builder().build().createObjectNode();
        root.put("store", store).put("threads", threads);
        machine.writeTo(root.putObject("machine"));
        ArrayNode all = root.putArray("sizes");
        for (Size size : sizes) {
            ObjectNode node = all.addObject().put("tokens", size.tokens()).put("ranks", size.ranks());
            size.rates()
                    .forEach((name, rate) -> node.putObject(name)
                            .put("bytes", rate.bytes())
                            .put("bytes_per_second", rate.best())
                            .put("median_bytes_per_second", rate.median()));
        }
        root.putObject("contains")
                .put("keys", lookedUp)
                .put("stored", stored)
                .put("seconds", lookUp.best())
                .put("median_seconds", lookUp.median());
        return root;
    }
}
