package baton.cli;

import baton.bench.frame.Column;
import baton.bench.frame.Layout;
import baton.bench.plan.Fleet;
import baton.bench.plan.FleetCheck;
import baton.bench.plan.Goals;
import baton.bench.plan.MachineProfile;
import baton.bench.plan.PlanReport;
import baton.bench.plan.Planner;
import baton.bench.plan.Planner.Plan;
import baton.bench.plan.Workload;
import baton.engine.model.Checkpoint;
import baton.kv.ConfigException;
import baton.kv.Require;
import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.Callable;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

/** {@code baton plan}: the fleet for a load. */
@Command(
        name = "plan",
        description = "Says how many prefill and decode instances, or colocated ones, serve a load within goals, by a"
                + " simulation with the measured profile of a machine; 'baton plan measure' measures one.",
        subcommands = PlanMeasureCommand.class,
        mixinStandardHelpOptions = true,
        sortOptions = false)
final class PlanCommand implements Callable<Integer> {
    private static final Pattern DISAGGREGATED = Pattern.compile("(\\d{1,4})P(\\d{1,4})D");
    private static final Pattern COLOCATED = Pattern.compile("(\\d{1,4})/(\\d{1,6})");

    private static final int MOST_UNITS = 1024;

    private static final Layout PREDICTIONS = new Layout()
            .table(
                    "",
                    "fleets",
                    Column.of("fleet", "{described}"),
                    Column.of("well served", "{well_served|%.1f|100} %"),
                    Column.of("requests/s", "{throughput|%.3f}"),
                    Column.of("TTFT p50", "{median_ttft|%.4f}"),
                    Column.of("p99", "{p99_ttft|%.4f}"),
                    Column.of("ITL p50", "{median_itl|%.4f}"),
                    Column.of("p99", "{p99_itl|%.4f}"));

    @Option(names = "--profile", paramLabel = "FILE", description = "Profile that 'baton plan measure' wrote.")
    private @Nullable Path profile;

    @Option(
            names = "--decode-profile",
            paramLabel = "FILE",
            description = "Profile of the decode instances' machines (default: that of --profile).")
    private @Nullable Path decodeProfile;

    @Option(
            names = "--units",
            defaultValue = "2",
            paramLabel = "N",
            description = "Machines or accelerators that there are; an instance occupies the 'units' of its profile"
                    + " (default: ${DEFAULT-VALUE}).")
    private int units;

    @Option(
            names = "--prompt-tokens",
            defaultValue = "1024",
            split = ",",
            paramLabel = "N",
            description = "Lengths of prompts, equally likely (default: ${DEFAULT-VALUE}).")
    private int[] promptTokens = {};

    @Option(
            names = "--output-tokens",
            defaultValue = "128",
            paramLabel = "N",
            description = "Tokens of an answer (default: ${DEFAULT-VALUE}).")
    private int outputTokens;

    @Option(
            names = "--ttft",
            defaultValue = "2",
            paramLabel = "SECONDS",
            description = "Goal for the time to the first token (default: ${DEFAULT-VALUE}).")
    private double ttft;

    @Option(
            names = "--itl",
            defaultValue = "0.1",
            paramLabel = "SECONDS",
            description = "Goal for the time between tokens, of 99 in 100 of a request (default: ${DEFAULT-VALUE}).")
    private double itl;

    @Option(
            names = "--attained",
            defaultValue = "0.9",
            paramLabel = "SHARE",
            description = "Share of the requests that must meet both (default: ${DEFAULT-VALUE}).")
    private double attained;

    @Option(
            names = "--rate",
            paramLabel = "R",
            description = "Requests per second: says the fewest units that serve them.")
    private @Nullable Double rate;

    @Option(
            names = "--fleet",
            paramLabel = "FLEET",
            description =
                    "Only predicts the results of these at --rate: 'xPyD', or 'n/b' for n colocated instances with a"
                            + " budget of b tokens in a step; repeatable.")
    private List<String> fleets = new ArrayList<>();

    @Option(
            names = "--connector",
            paramLabel = "NAME",
            description = "For --fleet xPyD (default: the profile's first).")
    private @Nullable String connector;

    @Option(
            names = "--url",
            paramLabel = "URL",
            description =
                    "The fleet of --fleet, which runs there: its goodput is measured, and the prediction compared with that.")
    private @Nullable String url;

    @Option(
            names = "--model",
            paramLabel = "DIR",
            description = "Checkpoint that is served at --url (default: the embedded tiny-ledger).")
    private @Nullable Path model;

    @Option(
            names = "--seconds",
            defaultValue = "40",
            paramLabel = "S",
            description = "In which requests come to --url, for each rate that is tried (default: ${DEFAULT-VALUE}).")
    private double seconds;

    @Option(
            names = "--requests",
            defaultValue = "600",
            paramLabel = "N",
            description = "Simulated for each rate that is tried (default: ${DEFAULT-VALUE}).")
    private int requests;

    @Option(
            names = "--seed",
            defaultValue = "1",
            paramLabel = "N",
            description = "Of the arrivals (default: ${DEFAULT-VALUE}).")
    private long seed;

    @Mixin
    private final BenchOutput output = new BenchOutput();

    @Override
    public Integer call() throws IOException, InterruptedException {
        if (profile == null) {
            throw new ConfigException("profile", "is not given: 'baton plan measure --out FILE' measures one");
        }
        MachineProfile prefill = MachineProfile.read(profile);
        MachineProfile decode = decodeProfile == null ? prefill : MachineProfile.read(decodeProfile);
        Require.atLeast("units", units, prefill.units());
        if (units > MOST_UNITS) {
            throw new ConfigException("units", "is " + units + ", must be at most " + MOST_UNITS);
        }
        if (connector != null && fleets.isEmpty()) {
            throw new ConfigException("connector", "is given without --fleet; a plan has all of the profile's");
        }
        Require.atLeast("output_tokens", outputTokens, 1);
        Require.atLeast("requests", requests, 20);
        List<Workload.Shape> shapes = new ArrayList<>();
        for (int tokens : promptTokens) {
            Require.atLeast("prompt_tokens", tokens, 1);
            shapes.add(new Workload.Shape(tokens, outputTokens));
        }
        Require.positive("ttft", ttft);
        Require.positive("itl", itl);
        if (!(attained > 0 && attained <= 1)) {
            throw new ConfigException("attained", "is " + attained + ", must be more than 0 and at most 1");
        }
        Optional<Double> asked = Optional.ofNullable(rate);
        asked.ifPresent(each -> Require.positive("rate", each));
        Planner planner = new Planner(new Goals(ttft, itl, attained), requests, seed);
        Workload load = new Workload(shapes);
        if (url != null) {
            check(planner, prefill, decode, load, url);
        } else if (fleets.isEmpty()) {
            output.measure(
                    PlanReport.FIGURES,
                    figures -> PlanReport.of(planner, prefill, decode, units, load, asked)
                            .writeTo(figures));
        } else {
            predict(
                    planner,
                    prefill,
                    decode,
                    load,
                    asked.orElseThrow(
                            () -> new ConfigException("rate", "is not given; --fleet needs the rate to predict for")));
        }
        return 0;
    }

    private void check(Planner planner, MachineProfile prefill, MachineProfile decode, Workload load, String at)
            throws IOException, InterruptedException {
        if (fleets.size() != 1) {
            throw new ConfigException("fleet", "is given " + fleets.size() + " times; --url needs the one fleet there");
        }
        int vocabulary;
        try (Checkpoint checkpoint = Checkpoint.open(Models.orEmbedded(Optional.ofNullable(model)))) {
            vocabulary = checkpoint.config().vocabularySize();
        }
        Plan plan = planner.goodput(fleet(fleets.getFirst(), prefill, decode), load);
        FleetCheck check = new FleetCheck(planner.goals(), load, seconds, vocabulary, output::progress);
        output.measure(FleetCheck.FIGURES, figures -> check.run(at, plan, figures));
    }

    private void predict(Planner planner, MachineProfile prefill, MachineProfile decode, Workload load, double at)
            throws IOException {
        ObjectNode figures = JsonNodeFactory.instance.objectNode();
        for (String name : fleets) {
            Fleet fleet = fleet(name, prefill, decode);
            PlanReport.write(
                    figures.withArray("fleets").addObject().put("fleet", name).put("described", fleet.describe()),
                    planner.predict(fleet, load, at));
        }
        output.show(PREDICTIONS.text(figures));
        output.save(figures.path("fleets"));
    }

    private Fleet fleet(String name, MachineProfile prefill, MachineProfile decode) {
        Matcher disaggregated = DISAGGREGATED.matcher(name);
        if (disaggregated.matches()) {
            String by = connector != null
                    ? connector
                    : prefill.handoff().keySet().stream()
                            .findFirst()
                            .orElseThrow(() -> new ConfigException(
                                    "profile",
                                    "has no connector; 'baton plan measure --router NAME=URL' measures one"));
            if (!prefill.handoff().containsKey(by)) {
                throw ConfigException.unsupported(
                        "connector", by, String.join(", ", prefill.handoff().keySet()));
            }
            int prefills = Integer.parseInt(disaggregated.group(1));
            int decodes = Integer.parseInt(disaggregated.group(2));
            if (prefills > 0 && decodes > 0) {
                return new Fleet.Disaggregated(prefill, prefills, decode, decodes, by);
            }
        }
        Matcher colocated = COLOCATED.matcher(name);
        if (colocated.matches()) {
            int instances = Integer.parseInt(colocated.group(1));
            int budget = Integer.parseInt(colocated.group(2));
            if (instances > 0 && budget > 0) {
                return new Fleet.Colocated(prefill, instances, budget);
            }
        }
        throw new ConfigException(
                "fleet", "is '" + name + "', must be as 2P1D, or as 3/512: instances and their budget");
    }
}
