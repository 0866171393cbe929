package baton.bench;

import baton.bench.frame.Column;
import baton.bench.frame.Layout;
import baton.bench.frame.Timing;
import baton.kv.Percentiles;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.ToDoubleFunction;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * The figures of {@link RouterBench}, as far as it has come.
 *
 * @param events of each answer
 * @param requests of each round
 * @param promptTokens of each prompt
 */
record RouterFigures(int events, int requests, int promptTokens, Map<String, Case> cases, List<Watched> watched) {
    static final Layout FIGURES = new Layout()
            .head("{machine/processor}, {machine/processors} processors\n")
            .head(
                    "{requests} requests a round, prompts of {prompt_tokens} tokens, answers of {events} events; client, instances and proxies share the processors")
            .head(
                    "latency at {open_rate|%.0f} requests/s, or half of its own rate where that is less, from the time a request was due;"
                            + " nginx has one leg, the others two")
            .head("CPU at first: in " + RouterBench.WARM_UPS + " rounds before those that count")
            .table(
                    "",
                    "cases",
                    Column.of("", "{name}"),
                    Column.of("requests/s", "{rate|%.0f}"),
                    Column.of("CPU ms a request", "{cpu_ms|%.3f}"),
                    Column.of("at first", "{first_cpu_ms|%.3f}"),
                    Column.of("MiB", "{resident_bytes|%.0f|9.5367431640625e-7}"),
                    Column.of("p50 ms", "{p50_ms|%.2f}"),
                    Column.of("p99 ms", "{p99_ms|%.2f}"),
                    Column.of("direct meanwhile, p50", "{direct_meanwhile_p50_ms|%.2f}"),
                    Column.of("p99", "{direct_meanwhile_p99_ms|%.2f}"))
            .each(
                    "failures",
                    new Layout()
                            .line(
                                    "  {failed} of {all} requests of the rounds of {name} failed and do not count above; the first: {first}"))
            .line("\n  added by the router: p50 {added_p50_ms|%.2f} ms, p99 {added_p99_ms|%.2f} ms")
            .line(
                    "  added to direct requests meanwhile: p50 {added_meanwhile_p50_ms|%.2f} ms, p99 {added_meanwhile_p99_ms|%.2f} ms")
            .line("  {streams_right} of {streams} streams at once right, each byte compared")
            .line("  the first that was not: {streams_failure}")
            .line("  between the rounds threads that only look at the clock did not run for more than a millisecond"
                    + " {pauses_per_second|%.1f} times a second, {pauses_share|%.1f|100} % of the time")
            .line(
                    "  memory of the router over {memory/requests|%,d} requests: {memory/first|%d|9.5367431640625e-7} MiB after the first"
                            + " {requests|%,d}, at most {memory/most|%d|9.5367431640625e-7}, at the end {memory/last|%d|9.5367431640625e-7}")
            .line(
                    "  processor time of the router in the last {requests|%,d} of these: {memory/cpu_ms|%.3f} ms a request");

    RouterFigures(int events, int requests, int promptTokens) {
        this(events, requests, promptTokens, new LinkedHashMap<>(), new ArrayList<>());
    }

    /**
     * One round.
     *
     * @param cpuMillis processor time of the proxy's process for a request
     * @param rate requests a second that were answered rightly
     * @param nanos from such a request to the end of its answer
     * @param failed other requests
     * @param failure why the first of them failed
     */
    record Load(double rate, Optional<Double> cpuMillis, long[] nanos, int failed, Optional<String> failure) {
        Load withCpu(double millis) {
            return new Load(rate, Optional.of(millis), nanos, failed, failure);
        }

        double percentileMillis(double rank) {
            return Percentiles.of(Arrays.stream(nanos).asDoubleStream().sorted().toArray(), rank) * 1e-6;
        }
    }

    /**
     * One way to the instances.
     *
     * @param first rounds before all others
     * @param closed rounds with a fixed number of requests in flight
     * @param open rounds with requests at fixed times
     * @param meanwhile direct requests to the same instances that were sent between those of {@code open}
     * @param resident bytes of the proxy's processes in memory after each round of {@code closed}
     */
    record Case(List<Load> first, List<Load> closed, List<Load> open, List<Load> meanwhile, List<Long> resident) {
        double rate() {
            return median(closed, Load::rate);
        }
    }

    /** @param resident bytes of the router's process in memory after the round */
    record Watched(long resident, Load load) {}

    Case of(String name) {
        return cases.computeIfAbsent(
                name,
                _ -> new Case(
                        new ArrayList<>(), new ArrayList<>(), new ArrayList<>(), new ArrayList<>(), new ArrayList<>()));
    }

    private static double median(List<Load> loads, ToDoubleFunction<Load> of) {
        return Timing.median(loads.stream().map(of::applyAsDouble).toList());
    }

    /** All rounds of requests of one way. */
    private List<Load> loads(String name) {
        List<Load> loads = new ArrayList<>(of(name).first);
        loads.addAll(of(name).closed);
        loads.addAll(of(name).open);
        switch (name) {
            case RouterBench.DIRECT -> cases.values().forEach(each -> loads.addAll(each.meanwhile));
            case RouterBench.ROUTER -> watched.forEach(each -> loads.add(each.load));
            default -> {}
        }
        return loads;
    }

    void write(ObjectNode json) {
        json.put("events", events).put("requests", requests).put("prompt_tokens", promptTokens);
        ArrayNode rows = json.putArray("cases");
        ArrayNode failures = json.putArray("failures");
        for (String name : List.copyOf(cases.keySet())) {
            Case each = of(name);
            List<Load> loads = loads(name);
            int failed = loads.stream().mapToInt(Load::failed).sum();
            ObjectNode row = rows.addObject().put("name", name).put("failed", failed);
            if (!each.closed.isEmpty()) {
                row.put("rate", each.rate());
            }
            percentiles(row, "", each.open);
            percentiles(row, "direct_meanwhile_", each.meanwhile);
            cpu(row, "first_cpu_ms", each.first);
            cpu(row, "cpu_ms", each.closed);
            if (!each.resident.isEmpty()) {
                row.put("resident_bytes", each.resident.getLast());
            }
            if (failed > 0) {
                failures.addObject()
                        .put("name", name)
                        .put("failed", failed)
                        .put(
                                "all",
                                failed
                                        + loads.stream()
                                                .mapToInt(load -> load.nanos.length)
                                                .sum())
                        .put(
                                "first",
                                loads.stream()
                                        .flatMap(load -> load.failure.stream())
                                        .findFirst()
                                        .orElse(""));
            }
        }
        for (double rank : new double[] {50, 99}) {
            Case router = of(RouterBench.ROUTER);
            added(json, "added_p" + (int) rank, rank, router.open, of(RouterBench.DIRECT).open);
            added(json, "added_meanwhile_p" + (int) rank, rank, router.open, router.meanwhile);
        }
        ArrayNode memory = json.putArray("resident_bytes");
        watched.forEach(each -> memory.add(each.resident));
        if (!watched.isEmpty()) {
            ObjectNode node = json.putObject("memory");
            cpu(node, "cpu_ms", List.of(watched.getLast().load));
            node.put("requests", (long) requests * watched.size())
                    .put("first", watched.getFirst().resident)
                    .put(
                            "most",
                            watched.stream().mapToLong(Watched::resident).max().orElse(0))
                    .put("last", watched.getLast().resident);
        }
    }

    private static void cpu(ObjectNode row, String name, List<Load> loads) {
        List<Double> millis =
                loads.stream().flatMap(load -> load.cpuMillis.stream()).toList();
        if (!millis.isEmpty()) {
            row.put(name, Timing.median(millis));
        }
    }

    private static void percentiles(ObjectNode row, String prefix, List<Load> loads) {
        for (double rank : new double[] {50, 99}) {
            if (!loads.isEmpty()) {
                row.put(prefix + "p" + (int) rank + "_ms", median(loads, each -> each.percentileMillis(rank)));
            }
        }
    }

    /** The latency of these loads above that of others. */
    private static void added(ObjectNode json, String name, double rank, List<Load> loads, List<Load> to) {
        if (!loads.isEmpty() && !to.isEmpty()) {
            json.put(
                    name + "_ms",
                    median(loads, each -> each.percentileMillis(rank))
                            - median(to, each -> each.percentileMillis(rank)));
        }
    }
}
