package baton.bench.plan;

import baton.bench.frame.Column;
import baton.bench.frame.Layout;
import baton.bench.plan.Planner.Plan;
import baton.bench.plan.Planner.Prediction;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * The fleet for a load on so many units, and the length of prompts from which on disaggregation pays.
 *
 * @param units that may be occupied
 * @param plans the best colocated fleet, and the best disaggregated one of each connector
 * @param smallest by a rate that was asked for: the fleets on fewest units that serve it
 * @param crossings the same for other lengths of prompts
 */
public record PlanReport(
        Goals goals,
        Workload load,
        int units,
        List<Plan> plans,
        Optional<Smallest> smallest,
        List<Crossing> crossings) {
    private static final int[] PROMPTS = {128, 256, 512, 1024, 2048, 4096, 8192};
    private static final int MOST_UNITS = 1024;
    /** A goodput that is higher by less than this share is not worth two kinds of instances. */
    private static final double WORTH = 1.05;

    /** @param fleets that serve the rate, fewest units first; empty if none with at most 1,024 units does */
    public record Smallest(double rate, List<Plan> fleets) {}

    /** @param prompt its tokens */
    public record Crossing(int prompt, Plan colocated, Optional<Plan> disaggregated) {
        boolean pays() {
            return disaggregated
                    .filter(plan -> plan.goodput() > WORTH * colocated.goodput())
                    .isPresent();
        }
    }

    /**
     * Plans.
     *
     * @param prefill of colocated instances too
     * @param rate that is to be served, per second
     */
    public static PlanReport of(
            Planner planner,
            MachineProfile prefill,
            MachineProfile decode,
            int units,
            Workload load,
            Optional<Double> rate) {
        List<Plan> plans = plans(planner, prefill, decode, units, load);
        List<Crossing> crossings = new ArrayList<>();
        int output = (int) Math.round(load.meanOutput());
        for (int prompt : PROMPTS) {
            List<Plan> of = plans(planner, prefill, decode, units, Workload.of(prompt, output));
            crossings.add(new Crossing(prompt, of.getFirst(), Planner.best(of.subList(1, of.size()))));
        }
        return new PlanReport(
                planner.goals(),
                load,
                units,
                plans,
                rate.map(each -> smallest(planner, prefill, decode, load, each)),
                crossings);
    }

    private static List<Plan> plans(
            Planner planner, MachineProfile prefill, MachineProfile decode, int units, Workload load) {
        List<Plan> plans = new ArrayList<>();
        plans.add(planner.bestColocated(prefill, units, load));
        for (Map.Entry<String, Curve> connector : prefill.handoff().entrySet()) {
            planner.bestDisaggregated(prefill, decode, units, load, connector.getKey())
                    .ifPresent(plans::add);
        }
        return plans;
    }

    private static Smallest smallest(
            Planner planner, MachineProfile prefill, MachineProfile decode, Workload load, double rate) {
        List<Plan> found = new ArrayList<>();
        int low = 0;
        int high = 1;
        while (high <= MOST_UNITS && !serves(planner, prefill, decode, high, load, rate)) {
            low = high;
            high *= 2;
        }
        if (high <= MOST_UNITS) {
            while (high - low > 1) {
                int middle = (low + high) / 2;
                if (serves(planner, prefill, decode, middle, load, rate)) {
                    high = middle;
                } else {
                    low = middle;
                }
            }
            for (Plan plan : plans(planner, prefill, decode, high, load)) {
                if (plan.goodput() >= rate) {
                    found.add(plan);
                }
            }
        }
        return new Smallest(rate, found);
    }

    private static boolean serves(
            Planner planner, MachineProfile prefill, MachineProfile decode, int units, Workload load, double rate) {
        return units >= prefill.units()
                && plans(planner, prefill, decode, units, load).stream().anyMatch(plan -> plan.goodput() >= rate);
    }

    /** One sentence. */
    public String advice() {
        Plan colocated = plans.getFirst();
        Optional<Plan> disaggregated = Planner.best(plans.subList(1, plans.size()));
        if (disaggregated.isEmpty()) {
            return "Do not disaggregate: "
                    + (plans.size() == 1 && units > 1
                            ? "the profile has no connector."
                            : "it needs at least two units.");
        }
        Plan best = disaggregated.get();
        if (colocated.goodput() == 0 && best.goodput() == 0) {
            return "Neither meets the goals, even when idle: relax them, or take faster machines or a higher tensor parallel size.";
        }
        double factor = best.goodput() / Math.max(1e-9, colocated.goodput());
        if (colocated.goodput() == 0) {
            return "Disaggregate (%s): colocated instances do not meet the goals at any rate."
                    .formatted(best.fleet().describe());
        }
        return factor > WORTH
                ? String.format(
                        Locale.ROOT,
                        "Disaggregate (%s): %.2f times the goodput of %s.",
                        best.fleet().describe(),
                        factor,
                        colocated.fleet().describe())
                : String.format(
                        Locale.ROOT,
                        "Do not disaggregate: %s has %.2f times the goodput of %s.",
                        colocated.fleet().describe(),
                        1 / factor,
                        best.fleet().describe());
    }

    private static Column[] columns() {
        return new Column[] {
            Column.of("fleet", "{fleet}"),
            Column.of("requests/s", "{goodput|%.3f}"),
            Column.of("per unit", "{per_unit|%.3f}"),
            Column.of("TTFT p50, p99, ms", "{median_ttft|%.1f|1e3}, {p99_ttft|%.1f|1e3}"),
            Column.of("ITL p50, p99, ms", "{median_itl|%.1f|1e3}, {p99_itl|%.1f|1e3}")
        };
    }

    /** How the figures are shown. */
    public static final Layout FIGURES = new Layout()
            .line(
                    "{goals/attained|%.0f|100} % of the requests with a first token within {goals/ttft|%.4g} s and 99 % of their intervals within"
                            + " {goals/itl|%.4g} s; prompts of {load/prompt_tokens|%.0f}, answers of {load/output_tokens|%.0f} tokens; {units} units")
            .table("", "plans", columns())
            .line("\nfewest units for {smallest/rate|%.2f} requests/s")
            .line("none up to {smallest/none_up_to}")
            .table("", "smallest/plans", columns())
            .table(
                    "requests/s within the goals",
                    "crossings",
                    Column.of("prompt tokens", "{prompt_tokens}"),
                    Column.of("colocated", "{colocated|%.3f}"),
                    Column.of("disaggregated", "{disaggregated|%.3f}"),
                    Column.of("best", "{best}"))
            .line("\n{advice}");

    /** Times in seconds. */
    public void writeTo(ObjectNode node) {
        node.putObject("goals")
                .put("ttft", goals.ttft())
                .put("itl", goals.itl())
                .put("attained", goals.attained());
        node.putObject("load").put("prompt_tokens", load.meanPrompt()).put("output_tokens", load.meanOutput());
        node.put("units", units);
        plans.forEach(plan -> write(node.withArray("plans"), plan));
        smallest.ifPresent(of -> {
            ObjectNode into = node.putObject("smallest").put("rate", of.rate);
            of.fleets.forEach(plan -> write(into.withArray("plans"), plan));
            if (of.fleets.isEmpty()) {
                into.put("none_up_to", MOST_UNITS);
            }
        });
        for (Crossing crossing : crossings) {
            ObjectNode into = node.withArray("crossings").addObject().put("prompt_tokens", crossing.prompt);
            into.put("colocated", crossing.colocated.goodput());
            crossing.disaggregated.ifPresent(plan -> into.put("disaggregated", plan.goodput()));
            Plan best = crossing.pays() ? crossing.disaggregated.orElseThrow() : crossing.colocated;
            into.put("best", best.fleet().describe());
        }
        node.put("advice", advice());
    }

    private static void write(ArrayNode into, Plan plan) {
        write(
                into.addObject()
                        .put("fleet", plan.fleet().describe())
                        .put("units", plan.fleet().units())
                        .put("goodput", plan.goodput())
                        .put("per_unit", plan.perUnit()),
                plan.at());
    }

    /** A prediction's figures. */
    public static ObjectNode write(ObjectNode into, Prediction at) {
        return into.put("rate", at.rate())
                .put("well_served", at.wellServed())
                .put("throughput", at.throughput())
                .put("median_ttft", at.medianTtft())
                .put("p99_ttft", at.p99Ttft())
                .put("median_itl", at.medianItl())
                .put("p99_itl", at.p99Itl());
    }
}
