package baton.bench;

import baton.bench.frame.Layout;
import baton.bench.frame.Rounds;
import baton.bench.frame.Timing;
import baton.cluster.JavaCommand;
import baton.cluster.WorkerProcess;
import baton.engine.EngineConfig;
import baton.engine.EngineConfigBuilder;
import baton.engine.local.LocalEngine;
import baton.engine.model.Checkpoint;
import baton.engine.model.ModelConfig;
import baton.engine.model.RandomCheckpoint;
import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.LoadFailurePolicy;
import baton.kv.Percentiles;
import baton.kv.Require;
import baton.transfer.TransferException;
import baton.transfer.nixl.NixlExit;
import java.io.BufferedReader;
import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.function.Consumer;
import java.util.stream.Collectors;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * Measures the hand-over of prompts from a prefill engine in another process to a decode engine here: from the end of prefill's last
 * forward pass to the step that computes decode's first token, by the engines' own records. Both legs of a request are sent at once, as the
 * router does, and, for connectors that then work differently, one after the other too, in turns. Each prompt that is measured is computed
 * anew.
 *
 * <p>Beside it, in the same run, the transfer alone: after each hand-over, when both engines have nothing to do, as many bytes in
 * blocks of the same size from the same process to this one by another transfer agent of the same kind. Both engines and all
 * transfers share the machine's processors.
 *
 * @param connectors names: {@code NixlConnector}, {@code NixlPushConnector}
 * @param threads that each engine computes with; empty: one for each processor
 * @param tokens of the prompts
 * @param repetitions for each length
 * @param progress receives a line for each step
 */
public record HandoverBench(
        List<String> connectors,
        OptionalInt threads,
        List<Integer> tokens,
        int repetitions,
        Consumer<String> progress) {
    public static final List<Integer> TOKENS = List.of(128, 512, 2048);
    public static final List<String> CONNECTORS = List.of("NixlConnector", "NixlPushConnector");

    private static final int BLOCK_SIZE = 16;
    private static final int OUTPUT = 1;
    private static final int WARM_UPS = 10;
    /** Number of the prompt that is repeated, so that prefill finds it in its prefix cache. */
    private static final int WARM = 0;

    /** The limit of each step of the other process, each request and each transfer. */
    static final Duration DEADLINE = Duration.ofMinutes(5);

    /** The parts of a hand-over in their order, where decode was asked with prefill's answer. */
    private static final List<String> PHASES =
            List.of("seal", "answer", "pass on", "queue", "handshake", "blocks", "seals", "check", "start");

    /** The same where both were asked at once: {@code push} is the time of the last layer and of its notification. */
    private static final List<String> AT_ONCE_PHASES = List.of("seal", "push", "seals", "check", "start");

    /** How the figures are shown. */
    public static final Layout FIGURES = new Layout()
            .head(
                    "Handing prompts over: from prefill's last forward pass to decode's first step; milliseconds, median (best)")
            .each(
                    "models",
                    new Layout()
                            .line("\n{model}, {connector}, {legs}; first contact {first_handshake_seconds|%.1f|1e3} ms")
                            .each("sizes", ofSize()))
            .leftOut();

    private static Layout ofSize() {
        Layout size = new Layout()
                .line("\n{tokens|%,d} tokens, {bytes|%.1f|9.5367431640625e-7} MiB, {repetitions} times")
                .line("  hand-over        {seconds|%8.3f|1e3} ({best_seconds|%.3f|1e3})")
                .line("  transfer alone   {transfer_seconds|%8.3f|1e3} ({best_transfer_seconds|%.3f|1e3})")
                .line("  ratio            {ratio|%8.2f} ({best_ratio|%.2f})");
        for (String phase : List.of(
                "seal", "answer", "pass on", "queue", "handshake", "blocks", "push", "seals", "check", "start")) {
            size.line("    %-15s{phases/%2$s|%%8.3f|1e3} ({best_phases/%2$s|%%.3f|1e3})".formatted(phase, phase));
        }
        return size.line("  (transfer within){spans/transfer|%8.3f|1e3}");
    }

    /** @throws ConfigException if a number makes no sense */
    public HandoverBench {
        Require.positive("repetitions", repetitions);
        connectors = List.copyOf(connectors);
        if (connectors.isEmpty()) {
            throw new ConfigException("connector", "is empty, must have at least one name");
        }
        for (String connector : connectors) {
            if (!CONNECTORS.contains(connector)) {
                throw ConfigException.unsupported("connector", connector, String.join(" or ", CONNECTORS));
            }
        }
        Require.multiples("tokens", tokens, BLOCK_SIZE);
    }

    /**
     * Measures with the checkpoints in these directories, and, if asked to, with a random one of Llama-3.2-1B's shape, which it
     * writes into a temporary directory. A model that has too few positions for all of the prompts is left out.
     *
     * @throws ConfigException if a checkpoint does not fit, or all are left out
     * @throws IOException if a checkpoint cannot be read, or the other process fails
     */
    public void run(List<Path> models, boolean random1b, ObjectNode json) throws IOException {
        ArrayNode leftOut = json.putArray("left_out");
        ArrayNode measured = json.putArray("models");
        for (Path model : models) {
            try (Checkpoint checkpoint = Checkpoint.open(model)) {
                if (fits(checkpoint.config(), leftOut)) {
                    measure(model, fitting(checkpoint.config()), measured);
                }
            }
        }
        ModelConfig random = RandomCheckpoint.llama1b();
        if (random1b && fits(random, leftOut)) {
            RandomModel.with(random, DEADLINE, progress, directory -> {
                measure(directory, fitting(random), measured);
                return true;
            });
        }
        if (measured.isEmpty()) {
            throw new ConfigException(
                    "tokens",
                    "is %s, with one more for the output too many for all models: %s"
                            .formatted(
                                    tokens,
                                    leftOut.valueStream()
                                            .map(JsonNode::asString)
                                            .collect(Collectors.joining(", "))));
        }
    }

    private boolean fits(ModelConfig config, ArrayNode leftOut) {
        boolean fits = !fitting(config).isEmpty();
        if (!fits) {
            leftOut.add("%s has max_position_embeddings=%d".formatted(config.name(), config.maxPositions()));
        }
        return fits;
    }

    /** @param longest prompt */
    private static EngineConfig config(Path model, String connector, KvRole role, OptionalInt threads, int longest) {
        int maxModelLen = longest + OUTPUT;
        EngineConfigBuilder config = EngineConfig.of(model)
                .maxModelLen(maxModelLen)
                .maxNumBatchedTokens(Math.max(2048, longest))
                .blockSize(BLOCK_SIZE)
                // Prefill finds repeated prompts in its cache; decode receives each of them anew.
                .enablePrefixCaching(role == KvRole.PRODUCER)
                .numBlocks(3 * Math.ceilDiv(maxModelLen, BLOCK_SIZE))
                .kvTransfer(KvTransferConfig.builder(connector, role)
                        .loadFailurePolicy(LoadFailurePolicy.FAIL)
                        .extra("transfer_agent", "embedded")
                        .extra("side_channel_host", "127.0.0.1")
                        .extra("side_channel_port", 0)
                        .build());
        threads.ifPresent(config::threads);
        return config.build();
    }

    private void measure(Path model, List<Integer> fitting, ArrayNode models) throws IOException {
        for (String connector : connectors) {
            measure(model, connector, fitting, models);
        }
    }

    /** Spans and times of transfers of one length, with both legs at once or one after the other. */
    private record Samples(boolean atOnce, int tokens, List<Map<String, Double>> handovers, Rounds transfers) {
        Samples(boolean atOnce, int tokens) {
            this(atOnce, tokens, new ArrayList<>(), new Rounds());
        }

        private double[] spans(String name) {
            return handovers.stream()
                    .mapToDouble(spans -> span(spans, name))
                    .sorted()
                    .toArray();
        }

        void write(ObjectNode node) {
            Timing transfer = Timing.of(transfers.values("transfer"));
            double[] whole = handovers.stream()
                    .mapToDouble(HandoverBench::seconds)
                    .sorted()
                    .toArray();
            double median = Percentiles.of(whole, 50);
            node.put("repetitions", handovers.size())
                    .put("seconds", median)
                    .put("best_seconds", whole[0])
                    .put("transfer_seconds", transfer.median())
                    .put("best_transfer_seconds", transfer.best())
                    .put("ratio", median / transfer.median())
                    .put("best_ratio", whole[0] / transfer.best());
            ObjectNode phases = node.putObject("phases");
            ObjectNode best = node.putObject("best_phases");
            for (String phase : atOnce ? AT_ONCE_PHASES : PHASES) {
                phases.put(phase, Percentiles.of(spans(phase), 50));
                best.put(phase, spans(phase)[0]);
            }
            ObjectNode all = node.putObject("spans");
            handovers.getFirst().keySet().forEach(name -> all.put(name, Percentiles.of(spans(name), 50)));
        }
    }

    /** Seconds of a span; {@code push} is all that is no other phase, with both legs at once. */
    private static double span(Map<String, Double> spans, String name) {
        if (name.equals("push")) {
            return Math.max(0, seconds(spans) - sum(spans, "seal", "seals", "check", "start"));
        }
        return sum(spans, name);
    }

    private static double sum(Map<String, Double> spans, String... names) {
        double sum = 0;
        for (String name : names) {
            Double seconds = spans.get(name);
            if (seconds == null) {
                throw new IllegalStateException("span=%s was not recorded, only %s".formatted(name, spans.keySet()));
            }
            sum += seconds;
        }
        return sum;
    }

    /** The seconds from the end of prefill's last forward pass to decode's first step. */
    private static double seconds(Map<String, Double> spans) {
        // With both legs at once, decode was submitted before prefill's answer: "pass on" is negative.
        double seconds = sum(spans, "seal", "answer", "pass on", "to first step");
        // Prefill's thread may be descheduled before it reports that the checksums are made; decode can read them
        // earlier.
        return Math.max(seconds, sum(spans, "seals", "check", "start"));
    }

    private void measure(Path model, String connector, List<Integer> fitting, ArrayNode models) throws IOException {
        int longest = Collections.max(fitting);
        progress.accept("%s, %s: a prefill engine in another process, a decode engine here"
                .formatted(model.getFileName(), connector));
        HandoverRecorder recorder = new HandoverRecorder();
        try (Prefill prefill = new Prefill(model, connector, threads, longest);
                LocalEngine decode =
                        LocalEngine.start(config(model, connector, KvRole.CONSUMER, threads, longest), recorder)) {
            long blockBytes =
                    decode.model().kvLayout(BLOCK_SIZE, decode.model().dtype()).blockBytes();
            JsonFields ready = prefill.receive();
            try (TransferAlone alone = TransferAlone.of(ready, longest / BLOCK_SIZE, blockBytes)) {
                Pair pair = new Pair(prefill, decode, recorder);
                double firstHandshake = sum(pair.handOver(longest, WARM, false, progress), "handshake");
                // NixlConnector reads after prefill's answer; NixlPushConnector is for both legs at once.
                List<Boolean> ways = connector.equals("NixlConnector") ? List.of(true, false) : List.of(true);
                Map<Boolean, ArrayNode> sizes = new LinkedHashMap<>();
                for (boolean atOnce : ways) {
                    sizes.put(
                            atOnce,
                            models.addObject()
                                    .put("model", decode.model().name())
                                    .put("connector", connector)
                                    .put("legs", atOnce ? "both legs at once" : "one leg after the other")
                                    .put("first_handshake_seconds", firstHandshake)
                                    .putArray("sizes"));
                }
                Map<Samples, ObjectNode> samples = new LinkedHashMap<>();
                for (int count : fitting) {
                    sizes.forEach((atOnce, array) -> samples.put(
                            new Samples(atOnce, count),
                            array.addObject().put("tokens", count).put("bytes", count / BLOCK_SIZE * blockBytes)));
                }
                // The first rounds touch all of both pools, and the JVM compiles the code that moves and checks.
                for (int round = 1 - WARM_UPS; round <= repetitions; round++) {
                    int which = round > 0 ? round * ways.size() : WARM;
                    for (Samples each : samples.keySet()) {
                        Map<String, Double> spans = pair.handOver(
                                each.tokens, round > 0 && !each.atOnce ? which + 1 : which, each.atOnce, progress);
                        double transfer = alone.seconds(each.tokens / BLOCK_SIZE);
                        if (round > 0) {
                            each.handovers.add(spans);
                            each.transfers.add("transfer", transfer);
                        }
                    }
                    if (round > 0) {
                        samples.forEach(Samples::write);
                    }
                }
            }
        } catch (TransferException e) {
            throw new IOException(e.getMessage(), e);
        }
    }

    /** The prompts that leave room for a token of output. */
    private List<Integer> fitting(ModelConfig config) {
        return tokens.stream()
                .filter(count -> count + OUTPUT <= config.maxPositions())
                .toList();
    }

    /** The prefill engine and the decode engine. */
    private static final class Pair {
        private final Prefill prefill;
        private final LocalEngine decode;
        private final HandoverRecorder recorder;
        /** Connection parameters of the prefill engine for decode legs, taken from its first answer as the router does. */
        private Optional<JsonFields> target = Optional.empty();

        private int requests;

        Pair(Prefill prefill, LocalEngine decode, HandoverRecorder recorder) {
            this.prefill = prefill;
            this.decode = decode;
            this.recorder = recorder;
        }

        /**
         * The spans of a hand-over.
         *
         * @param atOnce whether decode is asked when prefill is; not for the first
         */
        Map<String, Double> handOver(int length, int which, boolean atOnce, Consumer<String> progress)
                throws IOException {
            String id = "handover-" + ++requests + ".";
            int[] prompt = EngineRequest.prompt(decode, length, which);
            recorder.clear();
            prefill.begin(id, length, which);
            Optional<EngineRequest> early =
                    atOnce ? Optional.of(EngineRequest.submit(decode, id, prompt, target)) : Optional.empty();
            JsonFields answer = prefill.receive();
            long answered = answer.integer("answered").orElseThrow();
            Optional<JsonFields> params = answer.object("params");
            EngineRequest request = early.orElseGet(() -> EngineRequest.submit(decode, id, prompt, params));
            if (!atOnce) {
                target = params.map(Pair::target);
            }
            int transferred = request.await(DEADLINE).usage().transferredTokens();
            if (transferred < length) {
                throw new IOException("only %d of %d tokens were handed over".formatted(transferred, length));
            }
            Map<String, Double> spans = recorder.take();
            JsonFields sealed = prefill.receive();
            spans.put("seal", sealed.number("seal").orElseThrow());
            spans.put("answer", (answered - sealed.integer("sealed").orElseThrow()) / 1e9);
            spans.put("pass on", (request.submitted() - answered) / 1e9);
            progress.accept(String.format(
                    Locale.ROOT,
                    "%d tokens, %s: %.3f ms",
                    length,
                    atOnce ? "at once" : "one after the other",
                    seconds(spans) * 1e3));
            return spans;
        }

        private static JsonFields target(JsonFields params) {
            ObjectNode all = params.toJson().deepCopy();
            all.retain("do_remote_prefill", "remote_engine_id", "remote_host", "remote_port", "tp_size", "pp_size");
            return JsonFields.of("kv_transfer_params", all);
        }
    }

    /** The process with the prefill engine. */
    private static final class Prefill implements AutoCloseable {
        private final WorkerProcess worker;

        Prefill(Path model, String connector, OptionalInt threads, int longest) throws IOException {
            List<String> arguments = new ArrayList<>(List.of(model.toString(), connector, String.valueOf(longest)));
            threads.ifPresent(count -> arguments.add(String.valueOf(count)));
            worker = WorkerProcess.start(
                    "prefill", JavaCommand.likeThisProcess(HandoverBench.class.getName()), arguments);
        }

        /** Has a prompt prefilled; the next answer has {@code params} and the time {@code answered}. */
        void begin(String id, int length, int which) {
            worker.send(id + " " + length + " " + which);
        }

        JsonFields receive() throws IOException {
            return JsonFields.parse("prefill", worker.receive(DEADLINE));
        }

        @Override
        public void close() {
            worker.close();
        }
    }

    /** The prefill process: prefills one prompt for each line of its input. */
    public static void main(String[] args) throws Exception {
        NixlExit.atShutdown();
        JsonMapper json = JsonMapper.builder().build();
        int longest = Integer.parseInt(args[2]);
        OptionalInt threads = args.length > 3 ? OptionalInt.of(Integer.parseInt(args[3])) : OptionalInt.empty();
        HandoverRecorder recorder = new HandoverRecorder();
        EngineConfig config = config(Path.of(args[0]), args[1], KvRole.PRODUCER, threads, longest);
        try (LocalEngine engine = LocalEngine.start(config, recorder)) {
            long blockBytes =
                    engine.model().kvLayout(BLOCK_SIZE, engine.model().dtype()).blockBytes();
            answer(json, TransferAlone.offer(json, longest / BLOCK_SIZE, blockBytes));
            BufferedReader in = WorkerProcess.requests();
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                String[] request = line.split(" ");
                recorder.clear();
                EngineRequest prefilled = EngineRequest.submit(
                        engine,
                        request[0],
                        EngineRequest.prompt(engine, Integer.parseInt(request[1]), Integer.parseInt(request[2])),
                        Optional.of(JsonFields.parse("kv_transfer_params", "{\"do_remote_decode\": true}")));
                JsonFields params = prefilled.await(DEADLINE).kvTransferParams().orElseThrow();
                ObjectNode answer = json.createObjectNode().put("answered", prefilled.ended());
                answer.set("params", params.toJson());
                answer(json, answer);
                answer(
                        json,
                        json.createObjectNode()
                                .put("seal", recorder.await("seal"))
                                .put("sealed", recorder.sealed()));
            }
        }
    }

    private static void answer(JsonMapper json, ObjectNode what) {
        WorkerProcess.answer(json.writeValueAsString(what));
    }
}
