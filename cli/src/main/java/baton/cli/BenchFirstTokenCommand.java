package baton.cli;

import baton.bench.frame.Column;
import baton.bench.frame.Layout;
import baton.bench.frame.Rounds;
import baton.bench.frame.Timing;
import baton.bench.serve.Backend;
import baton.bench.serve.Endpoint;
import baton.bench.serve.Exchange;
import baton.bench.serve.LoadGenerator;
import baton.bench.serve.RequestBody;
import baton.bench.serve.Sample;
import baton.bench.serve.ServedModel;
import baton.cluster.LocalCluster;
import baton.kv.ConfigException;
import baton.kv.Require;
import java.io.IOException;
import java.net.URI;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Random;
import java.util.concurrent.Callable;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

/** {@code baton bench first-token}: the times of the first requests after the start. */
@Command(
        name = "first-token",
        description = "Measures the time to the first token of the first requests to an endpoint, one after the other.",
        mixinStandardHelpOptions = true,
        sortOptions = false)
final class BenchFirstTokenCommand implements Callable<Integer> {
    private static final Duration DEADLINE = Duration.ofMinutes(2);
    private static final int MAX_TOKENS = 24;
    private static final int PROBES = 20;

    private static final Layout FIGURES = new Layout()
            .each(
                    "clusters",
                    new Layout()
                            .line("{connector}, ready after {ready_seconds|%.1f} s")
                            .table(
                                    "",
                                    "requests",
                                    Column.of("request", "{request}"),
                                    Column.of("first token, ms", "{first_token_seconds|%.1f|1e3}"),
                                    Column.of("whole answer, ms", "{answer_seconds|%.1f|1e3}"))
                            .line(
                                    "  The first token of the first request took {first_to_last|%.2f} times as long as that of the last,"
                                            + " {first_to_median|%.2f} times the median of the later ones."))
            .line(
                    "{connector}, first token of the first request to that of the last, median (range) of {rounds} clusters:"
                            + " {median|%.2f} ({least|%.2f} to {most|%.2f}) times");

    @Option(
            names = "--url",
            description = "Where an instance or a router listens that has just been started (default: a cluster like"
                    + " that of 'baton up' is started).")
    private @Nullable URI url;

    @Option(
            names = "--model",
            paramLabel = "DIR",
            description = "Checkpoint directory of that cluster (default: the embedded tiny-ledger).")
    private @Nullable Path model;

    @Option(
            names = "--connector",
            defaultValue = "SharedStorageConnector",
            description = "Of that cluster: ${COMPLETION-CANDIDATES} (default: ${DEFAULT-VALUE}).")
    private LocalCluster.Connector connector;

    @Option(names = "--requests", defaultValue = "10", description = "How many (default: ${DEFAULT-VALUE}).")
    private int requests;

    @Option(
            names = "--rounds",
            defaultValue = "1",
            description = "How many clusters, one after the other; not with --url (default: ${DEFAULT-VALUE}).")
    private int rounds;

    @Mixin
    private final BenchOutput output = new BenchOutput();

    private final Random random = new Random(1);

    @Override
    public Integer call() throws IOException, InterruptedException {
        Require.atLeast("requests", requests, 1);
        Require.atLeast("rounds", rounds, 1);
        if (rounds > 1 && requests < 2) {
            throw new ConfigException("requests", "is 1, must be at least 2 with --rounds");
        }
        if (rounds > 1 && url != null) {
            throw new ConfigException(
                    "rounds", "is " + rounds + ", must be 1 with --url, as this command does not restart that server");
        }
        output.measure(FIGURES, figures -> {
            // Its client has been used before the first request that counts.
            try (LoadGenerator generator = new LoadGenerator(false, DEADLINE)) {
                ArrayNode clusters = figures.putArray("clusters");
                Rounds ratios = new Rounds();
                for (int round = 1; round <= rounds; round++) {
                    measure(generator, clusters.addObject());
                    ratios.add(
                            "ratio",
                            clusters.path(round - 1).path("first_to_last").asDouble());
                    if (round > 1) {
                        List<Double> all = ratios.values("ratio");
                        figures.put("connector", connector.name())
                                .put("rounds", round)
                                .put("median", Timing.median(all))
                                .put("least", Collections.min(all))
                                .put("most", Collections.max(all));
                    }
                }
            }
        });
        return 0;
    }

    private void measure(LoadGenerator generator, ObjectNode json) throws IOException, InterruptedException {
        if (url != null) {
            measure(generator, url, json);
            return;
        }
        long start = System.nanoTime();
        try (LocalCluster cluster = LocalCluster.start(
                Baton.command(), Models.orEmbedded(Optional.ofNullable(model)), connector, 0, true)) {
            json.put("connector", connector.name()).put("ready_seconds", (System.nanoTime() - start) * 1e-9);
            measure(generator, cluster.router(), json);
        }
    }

    /** Each request asks the demo's question about its ledger with the lines in another order, so no cache has the answer. */
    private void measure(LoadGenerator generator, URI server, ObjectNode json) throws IOException {
        List<String> facts =
                new ArrayList<>(DemoCommand.ledger().strip().lines().toList());
        Endpoint endpoint = Endpoint.of(Backend.OPENAI_CHAT, server.toString());
        String served = "";
        for (int i = 0; i < PROBES; i++) {
            served = ServedModel.first(endpoint).name();
        }
        RequestBody body = new RequestBody(
                Backend.OPENAI_CHAT,
                served,
                false,
                OptionalInt.empty(),
                Map.of("temperature", JsonNodeFactory.instance.numberNode(0)));
        ArrayNode rows = json.putArray("requests");
        List<Double> seconds = new ArrayList<>();
        for (int i = 0; i < requests; i++) {
            Collections.shuffle(facts, random);
            String question = String.join("\n", facts) + "\n\n" + DemoCommand.QUESTION;
            Exchange answer = generator.ask(
                    endpoint, body, new Sample(JsonNodeFactory.instance.stringNode(question), 0, MAX_TOKENS));
            if (!answer.succeeded()) {
                throw new CommandFailedException(server + ": " + answer.error().orElse("no answer"));
            }
            seconds.add(answer.first() * 1e-9);
            rows.addObject()
                    .put("request", i + 1)
                    .put("first_token_seconds", seconds.getLast())
                    .put("answer_seconds", answer.latency() * 1e-9);
            if (i > 0) {
                json.put("first_to_last", seconds.getFirst() / seconds.getLast())
                        .put("first_to_median", seconds.getFirst() / Timing.median(seconds.subList(1, i + 1)));
            }
        }
    }
}
