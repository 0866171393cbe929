package baton.bench;

import baton.kv.Percentiles;
import java.io.PrintWriter;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.OptionalDouble;
import java.util.function.ToDoubleFunction;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * Results of {@link RouterBench}.
 *
 * @param pauses of the machine's processors, between rounds that measure latency
 * @param events of each answer
 * @param requests of each round
 * @param openRate requests a second at which latency was measured: half of the router's rate
 * @param streams many answers at once
 * @param watched rounds of requests to the router of the last part
 */
public record RouterReport(
        Machine machine,
        ProcessorPauses pauses,
        int events,
        int requests,
        double openRate,
        List<Case> cases,
        Streams streams,
        List<Watched> watched) {

    /**
     * One round.
     *
     * @param cpuMillis processor time of the proxy's process for a request
     * @param rate requests a second that were answered rightly
     * @param nanos from such a request to the end of its answer
     * @param failed other requests
     * @param failure why the first of them failed
     */
    public record Load(double rate, Optional<Double> cpuMillis, long[] nanos, int failed, Optional<String> failure) {
        Load withCpu(double millis) {
            return new Load(rate, Optional.of(millis), nanos, failed, failure);
        }

        double percentileMillis(double fraction) {
            return Percentiles.of(Arrays.stream(nanos).asDoubleStream().sorted().toArray(), fraction * 100) * 1e-6;
        }
    }

    /**
     * One way to the instances.
     *
     * @param closed rounds with a fixed number of requests in flight
     * @param open rounds with requests at fixed times
     * @param meanwhile direct requests to the same instances that were sent between those of {@code open}; empty for direct ones
     */
    public record Case(String name, List<Load> closed, List<Load> open, List<Load> meanwhile) {
        public double rate() {
            return medianRate(closed);
        }

        /** Processor time of the proxy's process for a request in ms; empty where there is none. */
        public OptionalDouble cpuMillis() {
            List<Double> known =
                    closed.stream().flatMap(each -> each.cpuMillis().stream()).toList();
            return known.isEmpty() ? OptionalDouble.empty() : OptionalDouble.of(Timing.median(known));
        }

        public double latencyMillis(double fraction) {
            return median(open, each -> each.percentileMillis(fraction));
        }

        /** Of direct requests at the same time; empty for direct ones. */
        public OptionalDouble meanwhileMillis(double fraction) {
            return meanwhile.isEmpty()
                    ? OptionalDouble.empty()
                    : OptionalDouble.of(median(meanwhile, each -> each.percentileMillis(fraction)));
        }
    }

    /** @param resident bytes of the router's process in memory after the round */
    public record Watched(long resident, Load load) {}

    /** @param right answers that came complete, in order and unmixed; each was compared byte by byte */
    public record Streams(int asked, int right, Optional<String> failure) {}

    static double medianRate(List<Load> loads) {
        return median(loads, Load::rate);
    }

    private static double median(List<Load> loads, ToDoubleFunction<Load> of) {
        return Timing.median(loads.stream().map(of::applyAsDouble).toList());
    }

    /** The router's latency above that of asking the instances directly, in ms. */
    public double addedMillis(double fraction) {
        return find(RouterBench.ROUTER).latencyMillis(fraction)
                - find(RouterBench.DIRECT).latencyMillis(fraction);
    }

    /** The router's latency above that of direct requests at the same time, in ms. */
    public double addedMeanwhileMillis(double fraction) {
        Case router = find(RouterBench.ROUTER);
        return router.latencyMillis(fraction) - router.meanwhileMillis(fraction).orElseThrow();
    }

    /** All rounds of requests of one way. */
    private List<Load> loads(Case of) {
        List<Load> loads = new ArrayList<>(of.closed());
        loads.addAll(of.open());
        switch (of.name()) {
            case RouterBench.DIRECT -> cases.forEach(each -> loads.addAll(each.meanwhile()));
            case RouterBench.ROUTER -> watched.forEach(each -> loads.add(each.load()));
            default -> {}
        }
        return loads;
    }

    private static int failed(List<Load> loads) {
        return loads.stream().mapToInt(Load::failed).sum();
    }

    private Case find(String name) {
        return named(name).orElseThrow();
    }

    private Optional<Case> named(String name) {
        return cases.stream().filter(each -> each.name().equals(name)).findFirst();
    }

    public void print(PrintWriter out) {
        out.printf("%s, %d processors%n", machine.processor(), machine.processors());
        out.printf(
                Locale.ROOT,
                "%n%d requests a round, answers of %d events; client, instances and proxies share the processors%n"
                        + "latency at %.0f requests/s, or half of its own rate where that is less, from the time a request was due%s%n%n"
                        + "  %-12s %12s %18s %10s %10s %26s%n",
                requests,
                events,
                openRate,
                named(RouterBench.NGINX).isPresent() ? String.format(";%nnginx has one leg, the others two") : "",
                "",
                "requests/s",
                "CPU ms a request",
                "p50 ms",
                "p99 ms",
                "direct meanwhile, p50, p99");
        for (Case each : cases) {
            out.printf(
                    Locale.ROOT,
                    "  %-12s %12.0f %18s %10.2f %10.2f %26s%n",
                    each.name(),
                    each.rate(),
                    each.cpuMillis().isPresent()
                            ? String.format(
                                    Locale.ROOT, "%.3f", each.cpuMillis().getAsDouble())
                            : "",
                    each.latencyMillis(0.5),
                    each.latencyMillis(0.99),
                    each.meanwhile().isEmpty()
                            ? ""
                            : String.format(
                                    Locale.ROOT,
                                    "%.2f %5.2f",
                                    each.meanwhileMillis(0.5).orElseThrow(),
                                    each.meanwhileMillis(0.99).orElseThrow()));
        }
        for (Case each : cases) {
            List<Load> loads = loads(each);
            if (failed(loads) > 0) {
                out.printf(
                        Locale.ROOT,
                        "  %d of %d requests of the rounds of %s failed and do not count above; the first: %s%n",
                        failed(loads),
                        failed(loads)
                                + loads.stream()
                                        .mapToInt(load -> load.nanos().length)
                                        .sum(),
                        each.name(),
                        loads.stream()
                                .flatMap(load -> load.failure().stream())
                                .findFirst()
                                .orElse(""));
            }
        }
        out.printf(
                Locale.ROOT,
                "%n  added by the router: p50 %.2f ms, p99 %.2f ms%n"
                        + "  added to direct requests meanwhile: p50 %.2f ms, p99 %.2f ms%n"
                        + "  %d of %d streams at once right, each byte compared%s%n",
                addedMillis(0.5),
                addedMillis(0.99),
                addedMeanwhileMillis(0.5),
                addedMeanwhileMillis(0.99),
                streams.right(),
                streams.asked(),
                streams.failure().map(each -> "; first failure: " + each).orElse(""));
        out.printf(
                Locale.ROOT,
                "  between the rounds threads that only look at the clock did not run for more than a millisecond %.1f times a second, %.1f %% of the time%n",
                pauses.perSecond(),
                100 * pauses.share());
        if (!watched.isEmpty()) {
            out.printf(
                    Locale.ROOT,
                    "  memory of the router over %,d requests: %d MiB after the first %,d, at most %d, at the end %d%n",
                    (long) requests * watched.size(),
                    watched.getFirst().resident() >> 20,
                    requests,
                    watched.stream().mapToLong(Watched::resident).max().orElse(0) >> 20,
                    watched.getLast().resident() >> 20);
        }
        out.flush();
    }

    public ObjectNode toJson() {
        ObjectNode root = JsonMapper.builder().build().createObjectNode();
        root.put("events", events).put("requests", requests).put("open_rate", openRate);
        ArrayNode rows = root.putArray("cases");
        for (Case each : cases) {
            ObjectNode row = rows.addObject()
                    .put("name", each.name())
                    .put("rate", each.rate())
                    .put("p50_ms", each.latencyMillis(0.5))
                    .put("p99_ms", each.latencyMillis(0.99))
                    .put("failed", failed(loads(each)));
            each.cpuMillis().ifPresent(millis -> row.put("cpu_ms", millis));
            each.meanwhileMillis(0.5).ifPresent(millis -> row.put("direct_meanwhile_p50_ms", millis));
            each.meanwhileMillis(0.99).ifPresent(millis -> row.put("direct_meanwhile_p99_ms", millis));
        }
        root.put("added_p50_ms", addedMillis(0.5))
                .put("added_p99_ms", addedMillis(0.99))
                .put("added_meanwhile_p50_ms", addedMeanwhileMillis(0.5))
                .put("added_meanwhile_p99_ms", addedMeanwhileMillis(0.99));
        root.put("pauses_per_second", pauses.perSecond()).put("pauses_share", pauses.share());
        root.put("streams", streams.asked()).put("streams_right", streams.right());
        ArrayNode memory = root.putArray("resident_bytes");
        watched.forEach(each -> memory.add(each.resident()));
        return root;
    }
}
