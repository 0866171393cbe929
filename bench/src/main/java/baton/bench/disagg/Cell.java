package baton.bench.disagg;

import baton.bench.serve.Exchange;
import baton.bench.serve.Metrics;
import baton.bench.serve.Statistics;
import java.util.ArrayList;
import java.util.List;

/**
 * One setup under one load. Times in seconds; those to first tokens count from when a request was due.
 *
 * @param promptTokens of long prompts
 * @param rate long prompts a second
 * @param busy the part of the time that prompts alone would keep the prefill instance busy
 * @param itl between tokens of one answer, of all requests
 * @param longTtft to the first tokens of long prompts
 * @param shortTtft of short ones
 * @param tokensPerSecond generated
 * @param failed requests without an answer
 */
public record Cell(
        Setup setup,
        int promptTokens,
        double rate,
        double busy,
        Quantiles itl,
        Quantiles longTtft,
        Quantiles shortTtft,
        double tokensPerSecond,
        int requests,
        int failed) {
    private static final List<Double> RANKS = List.of(90.0, 99.0);

    /** The quantiles of times; zero for none. */
    public record Quantiles(double median, double p90, double p99) {
        static Quantiles of(double[] seconds) {
            Statistics figures = Statistics.of(seconds, RANKS);
            return new Quantiles(figures.median(), figures.percentile(90), figures.percentile(99));
        }
    }

    static Cell of(Setup setup, MixedLoad load, double busy, Metrics metrics, List<Boolean> isLong) {
        List<Exchange> all = metrics.exchanges();
        return new Cell(
                setup,
                load.promptTokens(),
                load.rate(),
                busy,
                Quantiles.of(metrics.itl()),
                Quantiles.of(ttft(all, isLong, true)),
                Quantiles.of(ttft(all, isLong, false)),
                metrics.outputTokens() / metrics.seconds(),
                all.size(),
                metrics.failed());
    }

    private static double[] ttft(List<Exchange> all, List<Boolean> isLong, boolean wanted) {
        List<Double> seconds = new ArrayList<>();
        for (int i = 0; i < all.size(); i++) {
            Exchange each = all.get(i);
            if (isLong.get(i) == wanted && each.succeeded()) {
                seconds.add((each.late() + each.first()) * 1e-9);
            }
        }
        return seconds.stream().mapToDouble(Double::doubleValue).toArray();
    }

    /** Smaller is better: neither the one nor the other latency alone makes a setup the best. */
    double score() {
        return Math.sqrt(itl.p99 * longTtft.median);
    }
}
