package baton.bench;

import baton.bench.CompletionsClient.Answer;
import baton.bench.frame.Machine;
import baton.bench.frame.Rounds;
import baton.bench.frame.Timing;
import baton.bench.serve.StreamedAnswer.Token;
import baton.cluster.ChildProcess;
import baton.cluster.JavaCommand;
import baton.cluster.LocalCluster;
import baton.cluster.ProcessGroup;
import baton.cluster.ServerProcess;
import baton.engine.model.Checkpoint;
import baton.engine.model.DTypeChoice;
import baton.engine.model.ModelConfig;
import baton.engine.model.Quantization;
import baton.engine.model.RandomCheckpoint;
import baton.kv.ConfigException;
import baton.kv.KvRole;
import baton.kv.Require;
import java.io.IOException;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;
import java.util.function.Supplier;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

/**
 * Measures connectors as clients see them: the time to the first token, and requests a second, of real instances behind a router,
 * beside one instance alone that computes the same prompts in turns. Every answer is compared with the instance's alone.
 *
 * <p>Prompts are random, and no instance shares blocks among requests, so that all tokens that are not computed came through the connector.
 *
 * @param baton runs Baton
 * @param warmUp whether instances warm up before they are ready
 * @param connectors names of cases, or of connectors for all of their cases; empty: all
 * @param tokens of the prompts that latency is measured with
 * @param repetitions of each length
 * @param each how long requests are begun for a throughput
 * @param progress receives a line for each step
 */
public record ConnectorBench(
        JavaCommand baton,
        boolean warmUp,
        List<String> connectors,
        List<Integer> tokens,
        int repetitions,
        Duration each,
        Consumer<String> progress) {
    public static final List<Integer> TOKENS = List.of(512, 2000);

    private static final int CLIENTS = 8;
    private static final int BLOCK_SIZE = 16;
    private static final int OUTPUT = 4;
    /**
     * Difference of log probabilities below which two tokens are a tie: sums in bf16 that are made in another order, as those behind
     * a cache are, differ by as much.
     */
    private static final double TIE = 0.1;

    private static final Duration DEADLINE = Duration.ofMinutes(5);
    private static final Duration START_DEADLINE = Duration.ofMinutes(2);
    private static final JsonMapper JSON = JsonMapper.builder().build();

    /** @throws ConfigException if a number makes no sense, or there is no such connector */
    public ConnectorBench {
        Require.positive("repetitions", repetitions);
        Require.positive("seconds", each);
        connectors = List.copyOf(connectors);
        ConnectorCase.chosen(connectors);
        Require.multiples("tokens", tokens, BLOCK_SIZE);
        tokens = tokens.stream().distinct().sorted().toList();
    }

    /** The same with a random checkpoint of Llama-3.2-1B's shape, which it writes into a temporary directory. */
    public void run1b(ObjectNode json) throws IOException {
        RandomModel.with(RandomCheckpoint.llama1b(), DEADLINE, progress, directory -> {
            run(directory, json);
            return true;
        });
    }

    /**
     * Measures with the checkpoint in this directory. A failure of one connector is in its row.
     *
     * @throws ConfigException if the model has too few positions for all prompts
     * @throws IOException if the checkpoint cannot be read, this thread is interrupted, or this process is ended
     */
    public void run(Path model, ObjectNode json) throws IOException {
        ModelConfig config;
        try (Checkpoint checkpoint = Checkpoint.open(model)) {
            config = checkpoint.config();
        }
        List<Integer> fitting = tokens.stream()
                .filter(count -> count + OUTPUT <= config.maxPositions())
                .toList();
        if (fitting.isEmpty()) {
            throw new ConfigException(
                    "tokens",
                    "is %s, with %d more for the output too many for %s, which has max_position_embeddings=%d"
                            .formatted(tokens, OUTPUT, config.name(), config.maxPositions()));
        }
        long blockBytes = config.kvLayout(
                        BLOCK_SIZE,
                        DTypeChoice.here(Optional.empty(), config, Quantization.NONE)
                                .dtype())
                .blockBytes();
        Load load = new Load(fitting, fitting.getFirst(), blockBytes / BLOCK_SIZE);
        json.put("threads", LocalCluster.threads());
        Machine.here().writeTo(json.putObject("machine"));
        ObjectNode asked = json.putObject("load")
                .put("model", config.name())
                .put("threads", LocalCluster.threads())
                .put("repetitions", repetitions)
                .put("clients", CLIENTS)
                .put("throughput_tokens", load.throughputTokens)
                .put("kv_bytes_per_token", load.bytesPerToken);
        fitting.forEach(asked.putArray("tokens")::add);
        ArrayNode rows = json.putArray("connectors");
        try (Run run = new Run(model, load)) {
            for (ConnectorCase each : ConnectorCase.chosen(connectors)) {
                ObjectNode row = JsonNodeFactory.instance.objectNode();
                each.writeTo(row);
                run.measure(each, row);
                rows.add(row);
            }
        }
    }

    /**
     * The prompts of each connector.
     *
     * @param tokens of those that latency is measured with
     * @param throughputTokens of those that throughput is measured with
     * @param bytesPerToken of a KV cache
     */
    private record Load(List<Integer> tokens, int throughputTokens, long bytesPerToken) {}

    private static final class WrongAnswerException extends IOException {
        WrongAnswerException(String message) {
            super(message);
        }
    }

    /** An instance and the processes that it needs. */
    private record Instance(
            ProcessGroup processes, Optional<OtherProgram> redis, ServerProcess process, CompletionsClient client)
            implements AutoCloseable {
        @Override
        public void close() {
            processes.close();
            redis.ifPresent(OtherProgram::close);
        }
    }

    /** Times of one row, by the prompts' length and way. */
    private static final class Samples {
        private record Key(String way, int tokens) {}

        private final Map<Key, Rounds> rounds = new LinkedHashMap<>();

        void add(String way, int tokens, Answer answer, Answer reference) {
            Rounds of = rounds.computeIfAbsent(new Key(way, tokens), _ -> new Rounds());
            of.add("own", answer.secondsToFirst());
            of.add("alone", reference.secondsToFirst());
            of.add("added", answer.secondsToFirst() - reference.secondsToFirst());
        }

        void write(ArrayNode latencies) {
            rounds.forEach((key, of) -> {
                ObjectNode node = Timing.of(of.values("own"))
                        .writeTo(latencies.addObject().put("prompt", key.way).put("tokens", key.tokens));
                Timing.of(of.values("alone")).writeTo(node.putObject("alone"));
                node.put("added_seconds", Timing.median(of.values("added")));
            });
        }
    }

    /** All rows, beside the same instance alone. */
    private final class Run implements AutoCloseable {
        private final Path model;
        private final Load load;
        private final RandomPrompts prompts;
        private Optional<Instance> reference = Optional.empty();
        /** The number of answers compared for the row that is being measured. */
        private int compared;

        private int ties;
        /** Set when a signal ends this process, and with it all instances: later failures are no connector's. */
        private volatile boolean ending;

        private final Thread onSignal = Thread.ofPlatform().unstarted(() -> ending = true);

        Run(Path model, Load load) throws IOException {
            this.model = model;
            this.load = load;
            prompts = new RandomPrompts(model);
            Runtime.getRuntime().addShutdownHook(onSignal);
        }

        /** Writes the figures of a row, or why it has none. */
        void measure(ConnectorCase from, ObjectNode row) throws IOException {
            Optional<String> unavailable = from.unavailable();
            if (unavailable.isPresent()) {
                progress.accept(from.name() + ": not available: " + unavailable.get());
                row.put("not_available", unavailable.get());
                return;
            }
            compared = 0;
            ties = 0;
            try {
                ObjectNode figures = JsonNodeFactory.instance.objectNode();
                if (from.isPair()) {
                    measurePair(from, figures);
                } else {
                    measureSingle(from, figures);
                }
                row.setAll(figures);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                throw new IOException("interrupted", e);
            } catch (IOException | RuntimeException e) {
                if (ending || Thread.currentThread().isInterrupted()) {
                    throw e;
                }
                String reason = e.getMessage() == null ? e.toString() : e.getMessage();
                progress.accept(from.name() + " failed: " + reason);
                row.put("failed", reason);
            }
        }

        private void measurePair(ConnectorCase from, ObjectNode row) throws IOException, InterruptedException {
            String name = from.name();
            CompletionsClient alone = alone();
            progress.accept(name + ": starting a prefill instance, a decode instance and a router");
            try (LocalCluster cluster =
                    LocalCluster.start(baton, model, from.cluster().with(options()), 0, warmUp)) {
                CompletionsClient router = client(cluster.router());
                CompletionsClient decode = client(cluster.decode());
                Samples samples = new Samples();
                for (int round = 1 - warmUps(); round <= repetitions; round++) {
                    for (int count : load.tokens()) {
                        JsonNode prompt = prompts.ids(count);
                        Map<String, CompletionsClient> ways =
                                new LinkedHashMap<>(Map.of(ConnectorFigures.HANDED_OVER, router));
                        if (from.hits()) {
                            ways.put(ConnectorFigures.HIT, decode);
                        }
                        sample(name, round, count, prompt, ways, alone, samples);
                    }
                }
                write(samples, from.hits() ? 2 : 1, row);
                throughput(
                        name,
                        ConnectorFigures.HANDED_OVER,
                        router,
                        () -> prompts.ids(load.throughputTokens()),
                        alone,
                        row);
                write(cluster.processes(), row);
            }
        }

        private void measureSingle(ConnectorCase from, ObjectNode row) throws IOException, InterruptedException {
            String name = from.name();
            CompletionsClient alone = alone();
            long working = Math.max(CLIENTS * load.throughputTokens(), Collections.max(load.tokens()));
            // Of the prompts for throughput alone, as many as do not fit into memory beside those in flight.
            long looped = 2 * working + (long) CLIENTS * load.throughputTokens();
            int loop = Math.toIntExact(Math.ceilDiv(looped, load.throughputTokens())) + 1;
            int rounds = warmUps() + repetitions;
            long all = (long) loop * load.throughputTokens()
                    + (long) rounds
                            * load.tokens().stream().mapToInt(Integer::intValue).sum();
            long memory = (from.hasSecondTier() ? 2 * working : all + all / 4) * load.bytesPerToken();
            progress.accept(name + ": starting an instance");
            try (Instance instance = start(from, memory)) {
                progress.accept("%s: storing %d prompts"
                        .formatted(name, loop + rounds * load.tokens().size()));
                List<JsonNode> stored = new ArrayList<>();
                for (int i = 0; i < rounds; i++) {
                    for (int count : load.tokens()) {
                        stored.add(store(instance, count));
                    }
                }
                List<JsonNode> looping = new ArrayList<>();
                for (int i = 0; i < loop; i++) {
                    looping.add(store(instance, load.throughputTokens()));
                }
                Samples samples = new Samples();
                Iterator<JsonNode> next = stored.iterator();
                for (int round = 1 - warmUps(); round <= repetitions; round++) {
                    for (int count : load.tokens()) {
                        sample(
                                name,
                                round,
                                count,
                                next.next(),
                                Map.of(ConnectorFigures.HIT, instance.client),
                                alone,
                                samples);
                    }
                }
                AtomicInteger index = new AtomicInteger();
                write(samples, 1, row);
                throughput(
                        name,
                        ConnectorFigures.HIT,
                        instance.client,
                        () -> looping.get(Math.floorMod(index.getAndIncrement(), loop)),
                        alone,
                        row);
                write(instance.processes, row);
            }
        }

        /** @throws IOException if the answers that could be compared are too few for a figure */
        private void write(Samples samples, int ways, ObjectNode row) throws IOException {
            samples.write(row.putArray("first_token"));
            if (row.path("first_token").size() < ways * load.tokens().size()) {
                throw new IOException(
                        "all answers to prompts of one length were ties (%d in all), so none could be compared"
                                .formatted(ties));
            }
        }

        /** Writes the ports that processes listen on beside the one for HTTP, and how many answers were compared. */
        private void write(ProcessGroup processes, ObjectNode row) {
            ObjectNode ports = row.putObject("kv_ports");
            for (ChildProcess process : processes.members()) {
                ListeningPorts.count(process.pid())
                        .ifPresent(count -> ports.put(process.name(), Math.max(0, count - 1)));
            }
            row.put("answers_compared", compared).put("ties", ties);
        }

        private int warmUps() {
            return Math.max(1, repetitions / 2);
        }

        /** Tokens of a prompt that need not be computed: all full blocks ahead of its last token. */
        private static int expected(int count) {
            return (count - 1) / BLOCK_SIZE * BLOCK_SIZE;
        }

        /** Computes a new prompt, which the connector stores. */
        private JsonNode store(Instance instance, int count) throws IOException {
            JsonNode prompt = prompts.ids(count);
            instance.client.ask(prompt, 1, false, DEADLINE);
            return prompt;
        }

        /** Asks for a prompt in these ways and of the instance alone, first or last in turns. */
        private void sample(
                String name,
                int round,
                int count,
                JsonNode prompt,
                Map<String, CompletionsClient> ways,
                CompletionsClient alone,
                Samples samples)
                throws IOException {
            Map<String, Answer> answers = new LinkedHashMap<>();
            Optional<Answer> first =
                    round % 2 == 0 ? Optional.of(alone.ask(prompt, OUTPUT, false, DEADLINE)) : Optional.empty();
            for (Map.Entry<String, CompletionsClient> way : ways.entrySet()) {
                answers.put(way.getKey(), way.getValue().ask(prompt, OUTPUT, false, DEADLINE));
            }
            Answer own = first.isPresent() ? first.get() : alone.ask(prompt, OUTPUT, false, DEADLINE);
            if (round <= 0) {
                return;
            }
            for (Map.Entry<String, Answer> each : answers.entrySet()) {
                Answer answer = each.getValue();
                if (answer.cachedTokens() < expected(count)) {
                    throw new IOException("a prompt of %d tokens was not %s: %d tokens came through the connector"
                            .formatted(
                                    count,
                                    each.getKey().equals(ConnectorFigures.HIT) ? "loaded" : "handed over",
                                    answer.cachedTokens()));
                }
                if (isRight(prompt, answer, own, alone)) {
                    samples.add(each.getKey(), count, answer, own);
                }
                progress.accept(String.format(
                        Locale.ROOT,
                        "%s: %d tokens, %s: %.1f ms, alone %.1f ms",
                        name,
                        count,
                        each.getKey(),
                        answer.secondsToFirst() * 1e3,
                        own.secondsToFirst() * 1e3));
            }
        }

        /**
         * Whether an answer has the tokens of the instance alone. False if rounding decides between two of them.
         *
         * @throws WrongAnswerException if neither
         */
        private boolean isRight(JsonNode prompt, Answer answer, Answer own, CompletionsClient alone)
                throws IOException {
            List<Integer> is = answer.tokens().stream().map(Token::id).toList();
            List<Integer> wanted = own.tokens().stream().map(Token::id).toList();
            if (is.equals(wanted)) {
                compared++;
                return true;
            }
            List<Token> probable =
                    alone.ask(prompt, wanted.size(), true, DEADLINE).tokens();
            int at = 0;
            while (at < Math.min(is.size(), wanted.size()) && is.get(at).equals(wanted.get(at))) {
                at++;
            }
            double margin = at < probable.size() ? probable.get(at).margin().orElse(TIE) : TIE;
            if (margin < TIE) {
                ties++;
                return false;
            }
            throw new WrongAnswerException(String.format(
                    Locale.ROOT,
                    "a prompt of %d tokens was answered with the tokens %s, an instance alone answers %s, its token %d by %.2f in log probability above any other",
                    prompt.size(),
                    is,
                    wanted,
                    at,
                    margin));
        }

        private void throughput(
                String name,
                String way,
                CompletionsClient server,
                Supplier<JsonNode> next,
                CompletionsClient alone,
                ObjectNode row)
                throws IOException {
            progress.accept("%s: %d clients, %d tokens, %s".formatted(name, CLIENTS, load.throughputTokens(), way));
            long end = System.nanoTime() + each.toNanos();
            ClosedLoop loop = ClosedLoop.run(
                    server,
                    CLIENTS,
                    () -> System.nanoTime() - end < 0 ? Optional.of(next.get()) : Optional.empty(),
                    DEADLINE,
                    each.plus(DEADLINE));
            Set<JsonNode> distinct = new LinkedHashSet<>();
            loop.asked().forEach(asked -> distinct.add(asked.prompt()));
            progress.accept("%s: the same %d prompts alone".formatted(name, distinct.size()));
            Iterator<JsonNode> again = distinct.iterator();
            ClosedLoop own = ClosedLoop.run(
                    alone,
                    CLIENTS,
                    () -> {
                        synchronized (again) {
                            return again.hasNext() ? Optional.of(again.next()) : Optional.empty();
                        }
                    },
                    DEADLINE,
                    each.multipliedBy(4).plus(DEADLINE));
            Map<JsonNode, Answer> answers = new HashMap<>();
            own.asked().forEach(asked -> answers.put(asked.prompt(), asked.answer()));
            long through = 0;
            int anew = 0;
            for (ClosedLoop.Asked asked : loop.asked()) {
                Answer ownAnswer =
                        Optional.ofNullable(answers.get(asked.prompt())).orElseThrow();
                isRight(asked.prompt(), asked.answer(), ownAnswer, alone);
                through += asked.answer().cachedTokens();
                anew += asked.answer().cachedTokens() < expected(load.throughputTokens()) ? 1 : 0;
            }
            progress.accept(String.format(
                    Locale.ROOT,
                    "%s: %.1f requests/s, alone %.1f",
                    name,
                    loop.requestsPerSecond(),
                    own.requestsPerSecond()));
            row.putObject("throughput")
                    .put("prompt", way)
                    .put("requests", loop.asked().size())
                    .put("computed_anew", anew)
                    .put("requests_per_second", loop.requestsPerSecond())
                    .put("kv_bytes_per_second", through * load.bytesPerToken() / loop.seconds())
                    .put("alone_requests_per_second", own.requestsPerSecond());
        }

        /** Options of all instances. */
        private List<String> options() {
            return List.of(
                    "--max-model-len",
                    Integer.toString(Collections.max(load.tokens()) + OUTPUT),
                    // Blocks that an instance has computed itself would hide the connector's work.
                    "--no-enable-prefix-caching",
                    "--disable-uvicorn-access-log");
        }

        private CompletionsClient client(URI url) throws IOException {
            return CompletionsClient.connect("url", url.toString(), Optional.of(name()), DEADLINE);
        }

        /** The servers' name of the model. */
        private String name() {
            return String.valueOf(model.toAbsolutePath().normalize().getFileName());
        }

        /** The instance alone; another one if it has ended. */
        private CompletionsClient alone() throws IOException, InterruptedException {
            if (reference.filter(it -> it.process.process().isAlive()).isEmpty()) {
                reference.ifPresent(Instance::close);
                progress.accept("starting the instance alone");
                reference = Optional.of(start(ProcessGroup.create(), Optional.empty(), List.of()));
            }
            return reference.orElseThrow().client;
        }

        private Instance start(ConnectorCase from, long memory) throws IOException, InterruptedException {
            ProcessGroup processes = ProcessGroup.create();
            Optional<OtherProgram> redis = Optional.empty();
            try {
                if (from.hasRedis()) {
                    redis = Optional.of(OtherProgram.redis(
                            OtherProgram.find(ConnectorCase.REDIS).orElseThrow()));
                }
                Path files = Files.createDirectory(processes.directory().resolve("kv"));
                ObjectNode transfer = JSON.createObjectNode()
                        .put("kv_connector", from.kvConnector())
                        .put("kv_role", KvRole.BOTH.configName())
                        .put("kv_load_failure_policy", "recompute");
                transfer.set(
                        "kv_connector_extra_config",
                        from.config(files, memory, redis.map(OtherProgram::port).orElse(0)));
                return start(processes, redis, List.of("--kv-transfer-config", transfer.toString()));
            } catch (IOException | InterruptedException | RuntimeException e) {
                processes.close();
                redis.ifPresent(OtherProgram::close);
                throw e;
            }
        }

        /** @param processes closed with the instance, or if it does not start */
        private Instance start(ProcessGroup processes, Optional<OtherProgram> redis, List<String> more)
                throws IOException, InterruptedException {
            try {
                List<String> arguments = new ArrayList<>(List.of("serve", model.toString(), "--port", "0"));
                arguments.addAll(List.of("--threads", Integer.toString(LocalCluster.threads())));
                arguments.addAll(options());
                if (!warmUp) {
                    arguments.add("--no-warmup");
                }
                arguments.addAll(more);
                ServerProcess server = processes.serve("instance", baton, arguments);
                return new Instance(processes, redis, server, client(server.awaitReady(START_DEADLINE)));
            } catch (IOException | InterruptedException | RuntimeException e) {
                processes.close();
                throw e;
            }
        }

        @Override
        public void close() {
            reference.ifPresent(Instance::close);
            prompts.close();
            try {
                Runtime.getRuntime().removeShutdownHook(onSignal);
            } catch (IllegalStateException e) {
                // This process is ending.
            }
        }
    }
}
