package baton.bench.plan;

import baton.bench.plan.FleetSimulation.Outcome;
import java.util.Comparator;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Stream;

/**
 * Finds the fleet that serves most requests within the goals.
 *
 * @param requests simulated for each rate that is tried; at least 80 for each instance are
 * @param seed of their arrivals
 */
public record Planner(Goals goals, int requests, long seed) {
    private static final int[] BUDGETS = {64, 128, 256, 512, 1024, 2048, 8192};
    private static final double PRECISION = 1.02;
    /** The least number of requests for each instance. */
    private static final int LEAST_REQUESTS = 80;

    /** The rate of a fleet that serves no request well even when it is idle. */
    private static final double LEAST_RATE = 1e-4;

    /**
     * A fleet and its goodput.
     *
     * @param goodput the highest rate at which enough requests are served well, per second; 0 if there is none
     * @param at the prediction for that rate
     */
    public record Plan(Fleet fleet, double goodput, Prediction at) {
        /** Requests per second for each unit. */
        public double perUnit() {
            return goodput / fleet.units();
        }
    }

    /**
     * The predicted results of a rate, in seconds.
     *
     * @param wellServed share of the requests
     */
    public record Prediction(
            double rate,
            double wellServed,
            double throughput,
            double medianTtft,
            double p99Ttft,
            double medianItl,
            double p99Itl) {
        static Prediction of(double rate, Outcome outcome) {
            return new Prediction(
                    rate,
                    outcome.wellServed(),
                    outcome.throughput(),
                    Outcome.percentile(outcome.ttft(), 0.5),
                    Outcome.percentile(outcome.ttft(), 0.99),
                    Outcome.percentile(outcome.itl(), 0.5),
                    Outcome.percentile(outcome.itl(), 0.99));
        }
    }

    /** Predicts the results of this rate. */
    public Prediction predict(Fleet fleet, Workload load, double rate) {
        return Prediction.of(rate, FleetSimulation.run(fleet, load, rate, count(fleet), goals, seed));
    }

    /** The highest rate that a fleet serves within the goals. */
    public Plan goodput(Fleet fleet, Workload load) {
        double high = upperBound(fleet, load);
        if (!isGood(fleet, load, Math.min(LEAST_RATE, high))) {
            return new Plan(fleet, 0, predict(fleet, load, LEAST_RATE));
        }
        double low = high / 2;
        while (low > LEAST_RATE && !isGood(fleet, load, low)) {
            high = low;
            low /= 2;
        }
        while (high / low > PRECISION) {
            double middle = Math.sqrt(low * high);
            if (isGood(fleet, load, middle)) {
                low = middle;
            } else {
                high = middle;
            }
        }
        return new Plan(fleet, low, predict(fleet, load, low));
    }

    private boolean isGood(Fleet fleet, Workload load, double rate) {
        return FleetSimulation.isGood(fleet, load, rate, count(fleet), goals, seed);
    }

    /** The number of requests: enough for an overload to show before the fleet has served them. */
    private int count(Fleet fleet) {
        int instances = switch (fleet) {
            case Fleet.Colocated colocated -> colocated.instances();
            case Fleet.Disaggregated apart -> Math.max(apart.prefills(), apart.decodes());
        };
        return Math.max(requests, LEAST_REQUESTS * instances);
    }

    /** More than any fleet can do, whatever its goals: the rate at which its instances are always busy. */
    private static double upperBound(Fleet fleet, Workload load) {
        return switch (fleet) {
            case Fleet.Colocated(MachineProfile machine, int instances, int _) ->
                1.5
                        * instances
                        / (promptSeconds(machine, load) * Math.min(1, machine.mixed()) + decodeSeconds(machine, load));
            case Fleet.Disaggregated(
                    MachineProfile prefill,
                    int prefills,
                    MachineProfile decode,
                    int decodes,
                    String _) ->
                1.5 * Math.min(prefills / promptSeconds(prefill, load), decodes / decodeSeconds(decode, load));
        };
    }

    private static double promptSeconds(MachineProfile machine, Workload load) {
        return load.shapes().stream()
                .mapToDouble(shape -> machine.promptSeconds(0, shape.prompt()))
                .average()
                .orElseThrow();
    }

    /** The seconds of decoding a request in a full batch, where it has its share of the steps. */
    private static double decodeSeconds(MachineProfile machine, Workload load) {
        int batch = machine.maxSequences();
        double least = Double.MAX_VALUE;
        for (int sequences = 1; sequences <= batch; sequences *= 2) {
            least = Math.min(least, machine.stepSeconds(sequences, 0) / sequences);
        }
        least = Math.min(least, machine.stepSeconds(batch, 0) / batch);
        return Math.max(1e-9, load.meanOutput() * least);
    }

    /** The colocated fleet on so many units with the best budget. */
    public Plan bestColocated(MachineProfile machine, int units, Workload load) {
        Optional<Plan> best = Optional.empty();
        for (int budget : BUDGETS) {
            best = better(best, new Fleet.Colocated(machine, units / machine.units(), budget), load);
        }
        return best.orElseThrow();
    }

    /** The better one of a plan and the fleet's, which is not searched for if it cannot be. */
    private Optional<Plan> better(Optional<Plan> plan, Fleet fleet, Workload load) {
        double least = plan.map(Plan::goodput).orElse(0.0);
        return least > 0 && !isGood(fleet, load, least)
                ? plan
                : best(Stream.concat(plan.stream(), Stream.of(goodput(fleet, load)))
                        .toList());
    }

    /**
     * The best division of so many units; empty if they are too few for both kinds of instances.
     *
     * @param connector of the prefill machine's profile
     */
    public Optional<Plan> bestDisaggregated(
            MachineProfile prefill, MachineProfile decode, int units, Workload load, String connector) {
        int most = (units - decode.units()) / prefill.units();
        if (most < 1) {
            return Optional.empty();
        }
        // The division at which both kinds are equally busy, if decode batches may be full, and those around it.
        double prompt = load.shapes().stream()
                .mapToDouble(shape -> prefill.prefill().at(shape.prompt()))
                .average()
                .orElseThrow();
        double ratio = prompt / decodeSeconds(decode, load);
        double balanced = units * ratio / (ratio * prefill.units() + decode.units());
        int reach = Math.max(2, most / 8);
        int from = Math.clamp((long) Math.floor(balanced) - reach, 1, most);
        int to = Math.clamp((long) Math.ceil(balanced) + reach, from, most);
        Set<Integer> tried = new HashSet<>();
        Optional<Plan> best = Optional.empty();
        while (true) {
            for (int prefills = from; prefills <= to; prefills++) {
                int decodes = (units - prefills * prefill.units()) / decode.units();
                if (tried.add(prefills)) {
                    best = better(best, new Fleet.Disaggregated(prefill, prefills, decode, decodes, connector), load);
                }
            }
            int prefills = ((Fleet.Disaggregated) best.orElseThrow().fleet()).prefills();
            // Goals may allow small batches only, so that more instances decode: go on while the best is at an edge.
            if (from > 1 && prefills == from) {
                from = Math.max(1, from - reach);
            } else if (to < most && prefills == to) {
                to = Math.min(most, to + reach);
            } else {
                return best;
            }
        }
    }

    /** The highest goodput; of several the one with the shortest intervals. */
    public static Optional<Plan> best(List<Plan> plans) {
        return plans.stream()
                .max(Comparator.comparingDouble(Plan::goodput)
                        .thenComparingDouble(plan -> -plan.at().p99Itl()));
    }
}
