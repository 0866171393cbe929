package baton.bench.frame;

import tools.jackson.databind.node.ObjectNode;

/** Rates at which cases move bytes, each an object of its name: {@code bytes_per_second} is that of the best run. */
public final class Rates {
    private Rates() {}

    /** Writes the rate of each case that was measured. */
    public static void write(ObjectNode node, Rounds rounds, long bytes) {
        rounds.forEach((name, timing) -> timing.writeTo(node.putObject(name), bytes));
    }

    /** Writes how much of another case's rate a case reaches: each in its best run, and by medians. */
    public static void share(ObjectNode node, String name, String of) {
        share(node, name, of, "");
    }

    /** @param suffix of the fields' names */
    public static void share(ObjectNode node, String name, String of, String suffix) {
        share(node, name, "share" + suffix, "bytes_per_second", of);
        share(node, name, "median_share" + suffix, "median_bytes_per_second", of);
    }

    private static void share(ObjectNode node, String name, String field, String rate, String of) {
        double own = node.path(name).path(rate).asDouble(Double.NaN);
        double whole = node.path(of).path(rate).asDouble(Double.NaN);
        if (Double.isFinite(own / whole)) {
            ((ObjectNode) node.path(name)).put(field, own / whole);
        }
    }

    /** A template: GB/s of the best run, and the median in parentheses. */
    public static String rate(String name) {
        return "{%1$s/bytes_per_second|%%.2f|1e-9} ({%1$s/median_bytes_per_second|%%.2f|1e-9})".formatted(name);
    }

    /** A template: the shares in per cent. */
    public static String share(String name) {
        return "{%1$s/share|%%.0f|100} %% ({%1$s/median_share|%%.0f|100} %%)".formatted(name);
    }
}
