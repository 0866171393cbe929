package baton.bench.disagg;

import baton.bench.RandomModel;
import baton.bench.disagg.DisaggReport.OtherLoad;
import baton.bench.disagg.Servers.Cores;
import baton.bench.disagg.Servers.Start;
import baton.bench.frame.Machine;
import baton.bench.serve.Backend;
import baton.bench.serve.BenchTokenizer;
import baton.bench.serve.Exchange;
import baton.bench.serve.LoadGenerator;
import baton.bench.serve.LoadGenerator.Schedule;
import baton.bench.serve.Metrics;
import baton.bench.serve.ModelTokens;
import baton.bench.serve.RandomData;
import baton.bench.serve.RequestBody;
import baton.bench.serve.Sample;
import baton.bench.serve.ServedModel;
import baton.bench.serve.ServerTokens;
import baton.bench.serve.Statistics;
import baton.cluster.JavaCommand;
import baton.cluster.LocalCluster;
import baton.engine.model.Checkpoint;
import baton.engine.model.ModelConfig;
import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.Require;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Random;
import java.util.function.Consumer;

/**
 * Measures the benefit of disaggregation: the same loads on one instance that computes prompts in chunks among its answers, and on a
 * prefill and a decode instance that have the same cores between them. Loads are made for the machine: how long a prompt takes the prefill
 * instance, and how fast the decode instance answers, is measured first.
 */
public final class DisaggBench {
    /** Shorter prompts, as JSON, are left to the decode instance: those of {@link MixedLoad#SHORT_PROMPT} tokens and no others. */
    private static final int SHORT_BYTES = 600;

    /** Prompts with JSON that is longer than that in any case. */
    private static final int LEAST_PROMPT = 256;

    private static final Duration PATIENCE = Duration.ofMinutes(2);

    /** Where all of it has a limit. */
    private static final Duration LIMITED_PATIENCE = Duration.ofSeconds(40);

    /** Where all of it has a limit, prompts that take the prefill instance longer are made shorter: too few would come. */
    private static final double MOST_ALONE_SECONDS = 3;

    private static final Duration WRITING = Duration.ofMinutes(2);
    private static final int ALONE = 2;
    private static final double LEAST_SECONDS = 4;

    /** The measured share of the remaining time; the rest is for requests that end after the last has come, and for warming up. */
    private static final double MEASURED_SHARE = 0.6;

    private static final double NANOS = 1e-9;

    private final Plan plan;
    private final Consumer<String> progress;
    private final long begun = System.nanoTime();
    private final OtherLoad load = OtherLoad.now();
    private final Random random = new Random();
    private final List<Cell> cells = new ArrayList<>();
    private final List<String> leftOut = new ArrayList<>();

    private String name = "";
    private String where = "";
    /** Set by the first setup. */
    private List<MixedLoad> loads = List.of();

    private List<Double> busy = List.of();
    private int mostBudgets;
    private double startSeconds;

    /** @param progress receives a line for each step */
    public DisaggBench(Plan plan, Consumer<String> progress) {
        this.plan = plan;
        this.progress = progress;
        mostBudgets = plan.budgets().size();
    }

    /**
     * The measurements to make.
     *
     * @param promptTokens lengths of long prompts
     * @param busy rates of long prompts, as parts of the time that they alone keep the prefill instance busy
     * @param rates in place of those: long prompts a second
     * @param budgets tokens of a step of colocated instances, for those that are started
     * @param together short requests under way at a time
     * @param seconds in which requests come, for each load and setup
     * @param limit how long all of it may take
     */
    public record Plan(
            List<Integer> promptTokens,
            List<Double> busy,
            List<Double> rates,
            List<Integer> budgets,
            int together,
            double seconds,
            Optional<Duration> limit) {
        /** Ends within three minutes. */
        public static final Plan SHORT = new Plan(
                List.of(2000),
                List.of(0.35, 0.7),
                List.of(),
                List.of(256, 1024),
                4,
                20,
                Optional.of(Duration.ofSeconds(165)));

        /** @throws ConfigException naming the number that is out of its range */
        public Plan {
            promptTokens = List.copyOf(promptTokens);
            busy = List.copyOf(busy);
            rates = List.copyOf(rates);
            budgets = List.copyOf(budgets);
            for (int tokens : promptTokens) {
                Require.atLeast("prompt-tokens", tokens, LEAST_PROMPT);
            }
            busy.forEach(each -> Require.positive("busy", each));
            rates.forEach(each -> Require.positive("rates", each));
            budgets.forEach(each -> Require.positive("max-num-batched-tokens", each));
            Require.positive("streams", together);
            Require.positive("seconds", seconds);
        }

        int longest() {
            return promptTokens.stream().mapToInt(Integer::intValue).max().orElse(0);
        }
    }

    /** The shape of the checkpoint that is written if none is given: about 100 M parameters. */
    static ModelConfig shape() {
        return new ModelConfig(
                "random-llama-100m",
                32000,
                768,
                2048,
                12,
                12,
                4,
                64,
                32768,
                1e-5,
                500000,
                Optional.empty(),
                true,
                DType.BF16);
    }

    /**
     * Measures servers that are started for it, with a random checkpoint.
     *
     * @param baton runs Baton
     * @throws IOException if a process ends, or no request is answered
     */
    public void run(JavaCommand baton, LocalCluster.Connector connector) throws IOException {
        RandomModel.with(shape(), WRITING, progress, directory -> {
            run(baton, directory, connector);
            return true;
        });
    }

    /** The same with a checkpoint. */
    public void run(JavaCommand baton, Path model, LocalCluster.Connector connector) throws IOException {
        ModelConfig config;
        try (Checkpoint checkpoint = Checkpoint.open(model)) {
            config = checkpoint.config();
        }
        int length = plan.longest() + MixedLoad.LONG_ANSWER + MixedLoad.SHORT_ANSWER;
        if (config.maxPositions() < length) {
            throw new ConfigException(
                    "prompt-tokens",
                    "has " + plan.longest() + ", with answers " + length + " positions; " + config.name() + " has "
                            + config.maxPositions());
        }
        Cores cores = Cores.halves();
        name = config.name();
        where = connector.name() + ", cores " + cores.prefill() + " and " + cores.decode();
        Start start = new Start(baton, model, connector, cores, length, SHORT_BYTES);
        MixedLoad.Prompts prompts = (tokens, answer) -> Sample.random(random, config.vocabularySize(), tokens, answer);
        try (LoadGenerator generator = generator()) {
            measure(generator, prompts, Setup.DISAGGREGATED, setup -> Servers.disaggregated(setup, start));
            for (int i = 0; i < plan.budgets().size(); i++) {
                Setup colocated = Setup.colocated(plan.budgets().get(i));
                if (i < mostBudgets) {
                    measure(generator, prompts, colocated, setup -> Servers.colocated(setup, start));
                } else {
                    leftOut.add(colocated.label() + ": no time was left for it");
                }
            }
        }
    }

    /**
     * Measures servers that run already.
     *
     * @param colocated URL of one instance, or of a router to several
     * @param disaggregated URL of a router to prefill and decode instances of the same model
     */
    public void run(String colocated, String disaggregated) throws IOException {
        Servers second = Servers.at(Setup.COLOCATED, colocated);
        Servers first = Servers.at(Setup.DISAGGREGATED, disaggregated);
        ServedModel model = ServedModel.first(second.endpoint());
        name = model.name();
        where = disaggregated + " against " + colocated;
        try (BenchTokenizer tokens = tokens(second, model);
                LoadGenerator generator = generator()) {
            MixedLoad.Prompts prompts = (length, answer) -> new RandomData(0, length, answer, 0, 0)
                    .samples(tokens, 1, random.nextLong())
                    .getFirst();
            measure(generator, prompts, first.setup(), _ -> first);
            measure(generator, prompts, second.setup(), _ -> second);
        }
    }

    private static BenchTokenizer tokens(Servers servers, ServedModel model) {
        Path root = Path.of(model.root());
        return Files.isRegularFile(root.resolve("tokenizer.json"))
                ? new ModelTokens(root)
                : new ServerTokens(servers.endpoint(), model.name());
    }

    /** The measurements so far; empty if there are none. */
    public Optional<DisaggReport> report() {
        return cells.isEmpty()
                ? Optional.empty()
                : Optional.of(
                        new DisaggReport(Machine.here(), name, where, plan, load, cells, leftOut, seconds(begun)));
    }

    private LoadGenerator generator() throws IOException {
        return new LoadGenerator(false, plan.limit().isPresent() ? LIMITED_PATIENCE : PATIENCE);
    }

    private static double seconds(long since) {
        return (System.nanoTime() - since) * NANOS;
    }

    private double left() {
        return plan.limit()
                .map(limit -> limit.toMillis() / 1e3 - seconds(begun))
                .orElse(Double.MAX_VALUE);
    }

    private interface Starting {
        Servers start(Setup setup) throws IOException;
    }

    private void measure(LoadGenerator generator, MixedLoad.Prompts prompts, Setup setup, Starting starting)
            throws IOException {
        if (left() < startSeconds + LEAST_SECONDS) {
            leftOut.add(setup.label() + ": no time was left for it");
            return;
        }
        long from = System.nanoTime();
        progress.accept("starting: " + setup.label());
        try (Servers servers = starting.start(setup)) {
            RequestBody body = RequestBody.greedy(
                    Backend.OPENAI, ServedModel.first(servers.endpoint()).name());
            Target target = new Target(generator, servers, body);
            progress.accept("warming up: " + setup.label());
            var _ = target.together(shorts(prompts));
            for (int length : loads.isEmpty() ? List.of(LEAST_PROMPT) : lengths()) {
                var _ = target.alone(prompts.prompt(length, 2));
            }
            startSeconds = Math.max(startSeconds, seconds(from));
            if (loads.isEmpty()) {
                calibrate(target, prompts);
            }
            for (int i = 0; i < loads.size(); i++) {
                cell(target, prompts, loads.get(i), busy.get(i));
            }
        }
    }

    private List<Integer> lengths() {
        return loads.stream().map(MixedLoad::promptTokens).distinct().toList();
    }

    private List<Sample> shorts(MixedLoad.Prompts prompts) throws IOException {
        List<Sample> samples = new ArrayList<>();
        for (int i = 0; i < plan.together(); i++) {
            samples.add(prompts.prompt(MixedLoad.SHORT_PROMPT, MixedLoad.SHORT_ANSWER / 2));
        }
        return samples;
    }

    private void calibrate(Target target, MixedLoad.Prompts prompts) throws IOException {
        Map<Integer, Double> alone = new LinkedHashMap<>();
        double perPromptToken = alone(target, prompts, LEAST_PROMPT) / LEAST_PROMPT;
        for (int wanted : plan.promptTokens()) {
            int length = wanted;
            if (plan.limit().isPresent() && wanted * perPromptToken > MOST_ALONE_SECONDS) {
                length = Math.max(LEAST_PROMPT, (int) (MOST_ALONE_SECONDS / perPromptToken));
                leftOut.add(String.format(
                        Locale.ROOT,
                        "prompts of %,d tokens: one alone takes about %.1f s here; %,d tokens are measured instead",
                        wanted,
                        wanted * perPromptToken,
                        length));
            }
            alone.put(length, alone(target, prompts, length));
        }
        double perToken =
                Statistics.of(target.together(shorts(prompts)).itl(), List.of()).median();
        double shortRate = plan.together() / (MixedLoad.SHORT_ANSWER * Math.max(perToken, 1e-4));
        List<MixedLoad> made = new ArrayList<>();
        List<Double> parts = new ArrayList<>();
        alone.forEach((length, ttft) -> {
            progress.accept(String.format(
                    Locale.ROOT, "a prompt of %,d tokens alone: first token after %.0f ms", length, ttft * 1e3));
            List<Double> rates = plan.rates().isEmpty()
                    ? plan.busy().stream().map(part -> part / ttft).toList()
                    : plan.rates();
            for (double rate : rates) {
                made.add(new MixedLoad(length, rate, shortRate, plan.together(), plan.seconds()));
                parts.add(rate * ttft);
            }
        });
        fit(made);
        busy = List.copyOf(parts);
    }

    /** Seconds to the first token of a prompt that nothing else disturbs. */
    private static double alone(Target target, MixedLoad.Prompts prompts, int length) throws IOException {
        double best = Double.MAX_VALUE;
        for (int i = 0; i < ALONE; i++) {
            best = Math.min(best, target.alone(prompts.prompt(length, 2)).first() * NANOS);
        }
        return best;
    }

    /** Takes shorter loads to stay within the limit, or else fewer setups, or else fewer loads. */
    private void fit(List<MixedLoad> made) {
        int count = made.size();
        double each = plan.seconds();
        if (plan.limit().isPresent()) {
            each = secondsEach(mostBudgets, count);
            while (each < LEAST_SECONDS && mostBudgets > 1) {
                each = secondsEach(--mostBudgets, count);
            }
            while (each < LEAST_SECONDS && count > 1) {
                each = secondsEach(mostBudgets, --count);
            }
            each = Math.clamp(each, LEAST_SECONDS, plan.seconds());
        }
        double seconds = each;
        made.subList(count, made.size()).forEach(load -> leftOut.add(said(load) + ": no time was left for them"));
        loads = made.stream().limit(count).map(load -> load.within(seconds)).toList();
    }

    private double secondsEach(int budgets, int loadCount) {
        int colocated = Math.max(1, budgets);
        return (left() - colocated * startSeconds) * MEASURED_SHARE / ((colocated + 1) * loadCount);
    }

    private static String said(MixedLoad load) {
        return String.format(Locale.ROOT, "prompts of %,d tokens at %.2f a second", load.promptTokens(), load.rate());
    }

    private void cell(Target target, MixedLoad.Prompts prompts, MixedLoad load, double part) throws IOException {
        Setup setup = target.servers.setup();
        String what = setup.label() + ": " + said(load);
        if (left() < load.seconds()) {
            leftOut.add(what + ": no time was left for it");
            return;
        }
        progress.accept(String.format(Locale.ROOT, "%s, for %.0f s", what, load.seconds()));
        MixedLoad.Mixed mixed = load.make(prompts);
        Metrics metrics = target.run(mixed.schedule());
        target.servers.requireAlive();
        if (metrics.completed() == 0) {
            throw new IOException(what + ": no request was answered: "
                    + metrics.exchanges().getFirst().error().orElse(""));
        }
        cells.add(Cell.of(setup, load, part, metrics, mixed.isLong()));
    }

    /** Where requests go. */
    private record Target(LoadGenerator generator, Servers servers, RequestBody body) {
        Exchange alone(Sample sample) throws IOException {
            return together(List.of(sample)).exchanges().getFirst();
        }

        /** All at once; all must be answered. */
        Metrics together(List<Sample> samples) throws IOException {
            Metrics metrics = run(new Schedule(samples, new double[samples.size()], OptionalInt.empty()));
            servers.requireAlive();
            for (Exchange each : metrics.exchanges()) {
                if (!each.succeeded()) {
                    throw new IOException(
                            servers.endpoint().base() + ": " + each.error().orElse(""));
                }
            }
            return metrics;
        }

        Metrics run(Schedule schedule) throws IOException {
            return generator.run(servers.endpoint(), body, schedule, _ -> {});
        }
    }
}
