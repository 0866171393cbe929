package baton.bench.plan;

import baton.bench.frame.Column;
import baton.bench.frame.Layout;
import baton.bench.plan.Workload.Arrival;
import baton.bench.serve.Backend;
import baton.bench.serve.Endpoint;
import baton.bench.serve.Exchange;
import baton.bench.serve.LoadGenerator;
import baton.bench.serve.LoadGenerator.Schedule;
import baton.bench.serve.RequestBody;
import baton.bench.serve.Sample;
import baton.bench.serve.ServedModel;
import baton.kv.ConfigException;
import baton.kv.Require;
import java.io.IOException;
import java.time.Duration;
import java.util.List;
import java.util.Locale;
import java.util.OptionalInt;
import java.util.Random;
import java.util.function.Consumer;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * Measures the goodput of a running fleet within goals, and compares it with the plan's prediction. Rates are tried, beginning at the
 * predicted one, until one is served well enough and one that is little higher is not; the goodput is between them, where the line from one
 * to the other meets the share that is asked for.
 *
 * @param seconds in which requests come, for each rate
 * @param vocabulary of the served model
 * @param progress receives a line for each rate
 */
public record FleetCheck(Goals goals, Workload load, double seconds, int vocabulary, Consumer<String> progress) {
    /** The factor from the first rate to the second; each further factor is the square of the one before. */
    private static final double STRIDE = 1.2;

    private static final double LONGEST_STRIDE = 8;
    /** How near the two rates must be. */
    private static final double PRECISION = 1.06;

    private static final int MOST_RATES = 14;
    private static final int LEAST_REQUESTS = 30;
    private static final double NANOS = 1e-9;
    private static final Duration PATIENCE = Duration.ofMinutes(2);
    private static final int WARM_UPS = 4;

    /** @throws ConfigException if {@code seconds} is not positive */
    public FleetCheck {
        Require.positive("seconds", seconds);
    }

    /** @param wellServed share of the requests that were answered within the goals; those that the server refuses were not */
    public record Tried(double rate, double wellServed) {}

    /** How the figures are shown. */
    public static final Layout FIGURES = new Layout()
            .table(
                    "",
                    "tried",
                    Column.of("requests/s", "{rate|%.3f}"),
                    Column.of("within the goals", "{well_served|%.1f|100} %"))
            .line(
                    "{fleet}: predicted {predicted|%.3f} requests/s, measured {measured|%.3f}: the prediction is {percent|%.0f} % too {direction}");

    /**
     * Measures.
     *
     * @param url of the instance, or of the router before the fleet
     * @param plan the prediction
     * @throws IOException if no request of a rate is answered, or no rate is found
     */
    public void run(String url, Planner.Plan plan, ObjectNode json) throws IOException {
        if (plan.goodput() <= 0) {
            throw new ConfigException(
                    "fleet", "serves no request within the goals, by the plan: there is nothing to check");
        }
        Endpoint endpoint = Endpoint.of(Backend.OPENAI, url);
        json.put("fleet", plan.fleet().describe()).put("predicted", plan.goodput());
        ArrayNode rates = json.putArray("tried");
        try (LoadGenerator generator = new LoadGenerator(false, PATIENCE)) {
            RequestBody body = RequestBody.greedy(
                    Backend.OPENAI, ServedModel.first(endpoint).name());
            Random random = new Random();
            double[] warmUps = new double[WARM_UPS];
            List<Sample> first = samples(load.arrivals(1, WARM_UPS, 0), random);
            for (Exchange each : run(generator, endpoint, body, first, warmUps)) {
                if (!each.succeeded()) {
                    throw failed(endpoint, each);
                }
            }
            Tried good = attempt(generator, endpoint, body, random, plan.goodput(), rates);
            Tried bad = good;
            double stride = STRIDE;
            while (isGood(bad)) {
                good = bad;
                bad = attempt(generator, endpoint, body, random, bad.rate * stride, rates);
                stride = Math.min(stride * stride, LONGEST_STRIDE);
            }
            while (!isGood(good)) {
                bad = good;
                good = attempt(generator, endpoint, body, random, good.rate / stride, rates);
                stride = Math.min(stride * stride, LONGEST_STRIDE);
            }
            while (bad.rate / good.rate > PRECISION) {
                Tried middle = attempt(generator, endpoint, body, random, Math.sqrt(bad.rate * good.rate), rates);
                if (isGood(middle)) {
                    good = middle;
                } else {
                    bad = middle;
                }
            }
            double part = (good.wellServed - goals.attained()) / Math.max(1e-9, good.wellServed - bad.wellServed);
            double measured = good.rate + part * (bad.rate - good.rate);
            double error = plan.goodput() / measured - 1;
            json.put("measured", measured)
                    .put("error", error)
                    .put("percent", Math.abs(error) * 100)
                    .put("direction", error < 0 ? "low" : "high");
        }
    }

    private boolean isGood(Tried tried) {
        return tried.wellServed >= goals.attained();
    }

    private Tried attempt(
            LoadGenerator generator, Endpoint endpoint, RequestBody body, Random random, double rate, ArrayNode tried)
            throws IOException {
        if (tried.size() == MOST_RATES) {
            throw new IOException("no rate is found that is served just within the goals; tried " + tried);
        }
        int count = Math.max(LEAST_REQUESTS, (int) Math.round(rate * seconds));
        List<Arrival> arrivals = load.arrivals(rate, count, random.nextLong());
        double[] due = arrivals.stream().mapToDouble(Arrival::at).toArray();
        List<Exchange> all = run(generator, endpoint, body, samples(arrivals, random), due);
        List<Exchange> failed = all.stream().filter(each -> !each.succeeded()).toList();
        if (failed.size() == count) {
            throw failed(endpoint, failed.getFirst());
        }
        double well = all.stream().filter(this::isWellServed).count() / (double) count;
        progress.accept(String.format(
                Locale.ROOT,
                "%.3f requests/s: %.1f %% of %d within the goals%s",
                rate,
                100 * well,
                count,
                failed.isEmpty()
                        ? ""
                        : "; %d failed: %s"
                                .formatted(
                                        failed.size(), failed.getFirst().error().orElse(""))));
        Tried result = new Tried(rate, well);
        tried.addObject().put("rate", rate).put("well_served", well);
        return result;
    }

    private static List<Exchange> run(
            LoadGenerator generator, Endpoint endpoint, RequestBody body, List<Sample> samples, double[] due)
            throws IOException {
        return generator
                .run(endpoint, body, new Schedule(samples, due, OptionalInt.empty()), _ -> {})
                .exchanges();
    }

    private static IOException failed(Endpoint endpoint, Exchange exchange) {
        return new IOException(endpoint.base() + ": " + exchange.error().orElse(""));
    }

    private boolean isWellServed(Exchange each) {
        if (!each.succeeded()) {
            return false;
        }
        int longer = 0;
        for (long between : each.between()) {
            longer += between * NANOS > goals.itl() ? 1 : 0;
        }
        return goals.met((each.late() + each.first()) * NANOS, each.between().length, longer);
    }

    private List<Sample> samples(List<Arrival> arrivals, Random random) {
        return arrivals.stream()
                .map(arrival -> Sample.random(
                        random,
                        vocabulary,
                        arrival.shape().prompt(),
                        arrival.shape().output()))
                .toList();
    }
}
