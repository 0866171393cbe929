package baton.bench.serve;

import java.util.Arrays;
import java.util.List;
import java.util.function.ToDoubleFunction;
import java.util.function.ToLongFunction;
import org.HdrHistogram.Histogram;

/**
 * The figures of the answers to a load. Those with vLLM's names are computed as in vLLM 0.32's {@code bench serve}.
 *
 * @param seconds from the first request to the last answer
 */
public record Metrics(List<Exchange> exchanges, double seconds) {
    private static final double SECOND = 1e-9;

    /** Microseconds of an hour; longer times count as that. */
    private static final long LONGEST_MICROS = 3_600_000_000L;

    private static final int DIGITS = 3;

    public Metrics {
        exchanges = List.copyOf(exchanges);
    }

    List<Exchange> succeeded() {
        return exchanges.stream().filter(Exchange::succeeded).toList();
    }

    public int completed() {
        return succeeded().size();
    }

    public int failed() {
        return exchanges.size() - completed();
    }

    public long inputTokens() {
        return succeeded().stream().mapToLong(Exchange::promptTokens).sum();
    }

    public long outputTokens() {
        return succeeded().stream().mapToLong(Exchange::tokens).sum();
    }

    public double requestsPerSecond() {
        return completed() / seconds;
    }

    /** Requests a second that keep the objectives; 0 if there are none. */
    public double goodput(Objectives objectives) {
        return objectives.isNone()
                ? 0
                : exchanges.stream().filter(objectives::keeps).count() / seconds;
    }

    double outputPerSecond() {
        return outputTokens() / seconds;
    }

    double tokensPerSecond() {
        return (inputTokens() + outputTokens()) / seconds;
    }

    double[] each(ToDoubleFunction<Exchange> value) {
        return succeeded().stream().mapToDouble(value).toArray();
    }

    /** Seconds to the first token. */
    public double[] ttft() {
        return each(Exchange::ttftSeconds);
    }

    /** Seconds a token after the first, of requests with more than one. */
    public double[] tpot() {
        return succeeded().stream()
                .filter(each -> each.tokens() > 1)
                .mapToDouble(Exchange::tpotSeconds)
                .toArray();
    }

    /** Seconds between two events of one answer. */
    public double[] itl() {
        return succeeded().stream()
                .flatMapToLong(each -> Arrays.stream(each.between()))
                .mapToDouble(nanos -> nanos * SECOND)
                .toArray();
    }

    /** Seconds to the last token. */
    public double[] e2el() {
        return each(Exchange::latencySeconds);
    }

    /** The times from each request's due time to its first token; microseconds. */
    public Histogram ttftFromDue() {
        return fromDue(Exchange::first);
    }

    /** The times from each request's due time to its last token; microseconds. */
    public Histogram e2elFromDue() {
        return fromDue(Exchange::latency);
    }

    /** How much later than due requests were sent; microseconds. */
    public Histogram late() {
        Histogram histogram = histogram();
        exchanges.forEach(each -> record(histogram, each.late()));
        return histogram;
    }

    private Histogram fromDue(ToLongFunction<Exchange> nanos) {
        Histogram histogram = histogram();
        succeeded().forEach(each -> record(histogram, each.late() + nanos.applyAsLong(each)));
        return histogram;
    }

    private static Histogram histogram() {
        return new Histogram(LONGEST_MICROS, DIGITS);
    }

    private static void record(Histogram histogram, long nanos) {
        histogram.recordValue(Math.clamp(nanos / 1000, 0, LONGEST_MICROS));
    }

    /**
     * Within each second from the first successful request on.
     *
     * @param tokens that came
     * @param requests that were under way for a part of it
     */
    public record Seconds(int[] tokens, int[] requests) {
        int mostTokens() {
            return Arrays.stream(tokens).max().orElse(0);
        }

        int mostRequests() {
            return Arrays.stream(requests).max().orElse(0);
        }
    }

    /** The figures by seconds. */
    public Seconds bySecond() {
        List<Exchange> all = succeeded();
        if (all.isEmpty()) {
            return new Seconds(new int[0], new int[0]);
        }
        long begin = all.stream().mapToLong(Exchange::sent).min().orElseThrow();
        long end = all.stream()
                .mapToLong(each -> each.sent() + each.latency())
                .max()
                .orElseThrow();
        int length = (int) Math.ceil((end - begin) * SECOND) + 1;
        int[] tokens = new int[length];
        int[] requests = new int[length];
        for (Exchange each : all) {
            long at = each.sent() - begin + each.first();
            tokens[second(at)]++;
            for (long between : each.between()) {
                at += between;
                tokens[second(at)]++;
            }
            for (int i = second(each.sent() - begin); i <= second(each.sent() - begin + each.latency()); i++) {
                requests[i]++;
            }
        }
        return new Seconds(tokens, requests);
    }

    private static int second(long nanos) {
        return (int) (nanos * SECOND);
    }
}
