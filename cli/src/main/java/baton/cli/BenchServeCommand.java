package baton.cli;

import baton.bench.serve.BenchTokenizer;
import baton.bench.serve.DataSet;
import baton.bench.serve.Endpoint;
import baton.bench.serve.Exchange;
import baton.bench.serve.LoadGenerator;
import baton.bench.serve.LoadGenerator.Schedule;
import baton.bench.serve.Metrics;
import baton.bench.serve.ModelTokens;
import baton.bench.serve.Objectives;
import baton.bench.serve.RequestBody;
import baton.bench.serve.Sample;
import baton.bench.serve.ServePage;
import baton.bench.serve.ServeReport;
import baton.bench.serve.ServedModel;
import baton.bench.serve.ServerTokens;
import baton.kv.ConfigException;
import baton.kv.Require;
import java.io.IOException;
import java.io.PrintWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.time.LocalDateTime;
import java.time.ZoneId;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.concurrent.Callable;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.Spec;

/** {@code baton bench serve}: an open-loop load on any server with OpenAI's API. */
@Command(
        name = "serve",
        description =
                "Sends requests to a server with OpenAI's API at given times and reports the clients' latencies, with the options,"
                        + " the report and the JSON of vLLM's bench serve.",
        mixinStandardHelpOptions = true,
        sortOptions = false)
final class BenchServeCommand implements Callable<Integer> {
    private static final List<String> METRICS =
            List.of("ttft", "tpot", "itl", "e2el", "client_queue_time", "e2el_including_client_queue");
    private static final Duration RETRY = Duration.ofSeconds(1);

    @Spec
    private CommandSpec spec;

    @Mixin
    private final ServeRequestOptions requests = new ServeRequestOptions();

    @Option(names = "--model", paramLabel = "NAME", description = "The model (default: the first of /v1/models).")
    private @Nullable String model;

    @Option(names = "--served-model-name", paramLabel = "NAME", description = "Its name at the server, if another.")
    private @Nullable String servedModelName;

    @Option(
            names = "--tokenizer",
            paramLabel = "DIR",
            description =
                    "Model directory with the tokenizer that prompts are made with (default: the model, if that is a"
                            + " directory here, else the server's /tokenize).")
    private @Nullable Path tokenizer;

    @Mixin
    private final ServeDataOptions data = new ServeDataOptions();

    @Mixin
    private final ServeTrafficOptions traffic = new ServeTrafficOptions();

    @Option(names = "--seed", defaultValue = "0", description = "Of prompts and times (default: ${DEFAULT-VALUE}).")
    private long seed;

    @Option(
            names = "--num-warmups",
            defaultValue = "0",
            paramLabel = "N",
            description = "Requests before those that count (default: ${DEFAULT-VALUE}).")
    private int warmUps;

    @Option(
            names = "--ready-check-timeout-sec",
            defaultValue = "0",
            paramLabel = "SECONDS",
            description = "Wait for a first answer that long, 0: do not (default: ${DEFAULT-VALUE}).")
    private long readySeconds;

    @Option(
            names = "--request-timeout-sec",
            defaultValue = "21600",
            paramLabel = "SECONDS",
            description = "A request fails after that (default: ${DEFAULT-VALUE}).")
    private long requestSeconds;

    @Option(
            names = "--percentile-metrics",
            defaultValue = "ttft,tpot,itl",
            paramLabel = "NAMES",
            description = "The metrics to report: ttft, tpot, itl, e2el, client_queue_time, e2el_including_client_queue"
                    + " (default: ${DEFAULT-VALUE}).")
    private String percentileMetrics;

    @Option(
            names = "--metric-percentiles",
            defaultValue = "99",
            paramLabel = "NUMBERS",
            description = "Percentiles of each (default: ${DEFAULT-VALUE}).")
    private String metricPercentiles;

    @Option(
            names = "--goodput",
            arity = "1..*",
            paramLabel = "NAME:MS",
            description =
                    "Objectives that requests must keep to count for goodput, such as ttft:500 tpot:50 e2el:9000.")
    private List<String> goodput = List.of();

    @Option(names = "--save-result", description = "Write the figures to a JSON file.")
    private boolean saveResult;

    @Option(names = "--append-result", description = "Append them to it.")
    private boolean appendResult;

    @Option(names = "--save-detailed", description = "Write the figures of each request too.")
    private boolean saveDetailed;

    @Option(names = "--result-dir", paramLabel = "DIR", description = "Directory of that file (default: this one).")
    private @Nullable Path resultDir;

    @Option(
            names = "--result-filename",
            paramLabel = "FILE",
            description = "Its name (default: of label, rate, model and time).")
    private @Nullable String resultFilename;

    @Option(names = "--label", paramLabel = "TEXT", description = "Of the figures (default: the backend).")
    private @Nullable String label;

    @Option(
            names = "--metadata",
            arity = "0..*",
            paramLabel = "KEY=VALUE",
            description = "More fields of the JSON file.")
    private List<String> metadata = List.of();

    @Option(names = "--html", paramLabel = "FILE", description = "Write a page with plots to this file.")
    private @Nullable Path html;

    @Option(names = "--disable-tqdm", description = "Show no progress bar; there is none without a terminal either.")
    private boolean disableTqdm;

    @Override
    public Integer call() throws IOException {
        Endpoint endpoint = requests.endpoint();
        DataSet dataSet = data.dataSet(endpoint.backend());
        int prompts = data.prompts();
        ServeReport.Traffic when = traffic.traffic();
        ServeReport.Selection selection = selection();
        Require.atLeast("num-warmups", warmUps, 0);
        Require.atLeast("ready-check-timeout-sec", readySeconds, 0);
        Require.atLeast("request-timeout-sec", requestSeconds, 1);
        PrintWriter out = spec.commandLine().getOut();
        ServedModel served = served(endpoint);
        List<Sample> samples;
        String tokenizerName;
        try (BenchTokenizer tokens = tokens(endpoint, served)) {
            tokenizerName = tokens instanceof ServerTokens
                    ? endpoint.base()
                    : tokenizerDirectory(served).toString();
            samples = dataSet.samples(tokens, prompts, seed);
        }
        RequestBody body = requests.body(served.name(), dataSet.ignoresEos());
        if (!requests.hasTemperature()) {
            out.println("The server chooses the temperature; for greedy answers give --temperature 0.");
        }
        ServeReport report;
        try (LoadGenerator generator = new LoadGenerator(endpoint.insecure(), Duration.ofSeconds(requestSeconds))) {
            if (readySeconds > 0) {
                awaitReady(generator, endpoint, body, samples.getFirst());
            }
            warmUp(generator, endpoint, body, samples.getFirst(), when);
            describe(out, when);
            Metrics metrics;
            try (ProgressBar bar = bar(samples.size())) {
                metrics = generator.run(
                        endpoint, body, Schedule.of(samples, when.arrivals(), seed, when.most()), bar::update);
            }
            report = new ServeReport(
                    new ServeReport.About(
                            LocalDateTime.now(ZoneId.systemDefault()),
                            endpoint.backend(),
                            Optional.ofNullable(label),
                            served.root(),
                            tokenizerName,
                            ServeRequestOptions.pairs("metadata", metadata)),
                    when,
                    selection,
                    metrics);
        }
        report.print(out);
        save(report);
        if (html != null) {
            Files.writeString(html, ServePage.html(report));
        }
        return report.metrics().completed() > 0 ? 0 : 1;
    }

    private ServeReport.Selection selection() {
        ServeRequestOptions.pairs("metadata", metadata);
        List<String> names = Arrays.asList(percentileMetrics.split(","));
        for (String name : names) {
            if (!METRICS.contains(name)) {
                throw ConfigException.unsupported("percentile-metrics", name, String.join(", ", METRICS));
            }
        }
        List<Double> ranks = Stream.of(metricPercentiles.split(","))
                .map(BenchServeCommand::rank)
                .toList();
        return new ServeReport.Selection(names, ranks, Objectives.parse(goodput));
    }

    private static double rank(String text) {
        try {
            double rank = Double.parseDouble(text.strip());
            if (rank >= 0 && rank <= 100) {
                return rank;
            }
        } catch (NumberFormatException e) {
            // Reported below.
        }
        throw new ConfigException("metric-percentiles", "has '" + text + "', must be numbers from 0 to 100");
    }

    private ServedModel served(Endpoint endpoint) throws IOException {
        if (model == null) {
            return ServedModel.first(endpoint);
        }
        return new ServedModel(servedModelName == null ? model : servedModelName, model);
    }

    private Path tokenizerDirectory(ServedModel served) {
        return tokenizer != null ? tokenizer : Path.of(served.root());
    }

    private BenchTokenizer tokens(Endpoint endpoint, ServedModel served) {
        Path directory = tokenizerDirectory(served);
        if (tokenizer != null || Files.isRegularFile(directory.resolve("tokenizer.json"))) {
            return new ModelTokens(directory);
        }
        return new ServerTokens(endpoint, served.name());
    }

    private ProgressBar bar(int total) {
        return new ProgressBar(spec.commandLine().getErr(), total, !disableTqdm && ProgressBar.hasTerminal());
    }

    private void awaitReady(LoadGenerator generator, Endpoint endpoint, RequestBody body, Sample sample)
            throws IOException {
        long begun = System.nanoTime();
        while (true) {
            Exchange answer = generator.ask(endpoint, body, sample);
            if (answer.succeeded()) {
                return;
            }
            if (System.nanoTime() - begun >= Duration.ofSeconds(readySeconds).toNanos()) {
                throw new IOException("the server gave no answer within " + readySeconds + " s: "
                        + answer.error().orElse(""));
            }
            LockSupport.parkNanos(RETRY.toNanos());
        }
    }

    private void warmUp(
            LoadGenerator generator, Endpoint endpoint, RequestBody body, Sample sample, ServeReport.Traffic when)
            throws IOException {
        if (warmUps == 0) {
            return;
        }
        try (ProgressBar bar = bar(warmUps)) {
            var _ = generator.run(
                    endpoint,
                    body,
                    new Schedule(Collections.nCopies(warmUps, sample), new double[warmUps], when.most()),
                    bar::update);
        }
    }

    private static void describe(PrintWriter out, ServeReport.Traffic when) {
        when.arrivals()
                .ramp()
                .ifPresentOrElse(
                        ramp -> out.printf(
                                "Traffic ramp-up strategy: %s, %s to %s requests/s%n",
                                ramp.strategy(), ramp.from(), ramp.to()),
                        () -> out.println(
                                "Traffic request rate: " + shown(when.arrivals().rate())));
        out.println("Burstiness factor: " + shown(when.arrivals().burstiness()));
        OptionalInt most = when.most();
        out.println("Maximum request concurrency: " + (most.isPresent() ? most.getAsInt() : "none"));
        out.flush();
    }

    private static String shown(double value) {
        return Double.isInfinite(value) ? "inf" : Double.toString(value);
    }

    private void save(ServeReport report) throws IOException {
        if (!saveResult && !appendResult) {
            return;
        }
        Path directory = resultDir == null ? Path.of("") : resultDir;
        Files.createDirectories(directory.toAbsolutePath());
        Path file = directory.resolve(resultFilename == null ? report.fileName() : resultFilename);
        String text = report.toJson(saveDetailed).toString();
        if (appendResult) {
            boolean more = Files.exists(file) && Files.size(file) > 0;
            Files.writeString(file, (more ? "\n" : "") + text, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        } else {
            Files.writeString(file, text);
        }
    }
}
