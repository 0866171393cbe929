package baton.bench;

import baton.bench.HandoverReport.Handover;
import baton.bench.HandoverReport.ModelReport;
import baton.bench.HandoverReport.Size;
import baton.cluster.JavaCommand;
import baton.cluster.WorkerProcess;
import baton.engine.EngineConfig;
import baton.engine.GenerationEvent;
import baton.engine.GenerationRequest;
import baton.engine.SamplingParams;
import baton.engine.local.LocalEngine;
import baton.engine.model.Checkpoint;
import baton.engine.model.ModelConfig;
import baton.engine.model.RandomCheckpoint;
import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.LoadFailurePolicy;
import baton.transfer.TransferException;
import baton.transfer.nixl.NixlExit;
import java.io.BufferedReader;
import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Random;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.function.Consumer;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ObjectNode;

/**
 * Measures the hand-over of prompts from a prefill engine in another process to a decode engine here: from the end of prefill's last
 * forward pass to the step that computes decode's first token, by what the engines themselves record. Both legs of a request are
 * sent at once, as the router does, and, where that is something else, one after the other too, in turns. Each prompt that is
 * measured is computed anew.
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

    /** For each step of the other process, each request and each transfer. */
    static final Duration DEADLINE = Duration.ofMinutes(5);

    /** @throws ConfigException if a number makes no sense */
    public HandoverBench {
        if (repetitions <= 0) {
            throw new ConfigException("repetitions", "is " + repetitions + ", must be positive");
        }
        connectors = List.copyOf(connectors);
        if (connectors.isEmpty()) {
            throw new ConfigException("connector", "is empty, must have at least one name");
        }
        for (String connector : connectors) {
            if (!CONNECTORS.contains(connector)) {
                throw ConfigException.unsupported("connector", connector, String.join(" or ", CONNECTORS));
            }
        }
        tokens = TokenCounts.require(tokens, BLOCK_SIZE);
    }

    /**
     * Measures with the checkpoints in these directories, and, if asked to, with a random one of Llama-3.2-1B's shape, which it
     * writes into a temporary directory. A model that has too few positions for all of the prompts is left out.
     *
     * @throws ConfigException if a checkpoint does not fit, or all are left out
     * @throws IOException if a checkpoint cannot be read, or the other process fails
     */
    public HandoverReport run(List<Path> models, boolean random1b) throws IOException {
        List<ModelReport> reports = new ArrayList<>();
        List<String> leftOut = new ArrayList<>();
        for (Path model : models) {
            reports.addAll(measure(model, leftOut));
        }
        ModelConfig random = RandomCheckpoint.llama1b();
        if (random1b && fitting(random).isEmpty()) {
            leftOut.add(tooShort(random));
        } else if (random1b) {
            reports.addAll(RandomModel.with(random, DEADLINE, progress, directory -> measure(directory, leftOut)));
        }
        if (reports.isEmpty()) {
            throw new ConfigException(
                    "tokens",
                    "is %s, with one more for the output too many for all models: %s"
                            .formatted(tokens, String.join(", ", leftOut)));
        }
        return new HandoverReport(List.copyOf(reports), List.copyOf(leftOut));
    }

    /** @param longest prompt */
    private static EngineConfig config(Path model, String connector, KvRole role, OptionalInt threads, int longest) {
        int maxModelLen = longest + OUTPUT;
        EngineConfig.Builder config = EngineConfig.of(model)
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

    private List<ModelReport> measure(Path model, List<String> leftOut) throws IOException {
        List<ModelReport> reports = new ArrayList<>();
        ModelConfig config;
        try (Checkpoint checkpoint = Checkpoint.open(model)) {
            config = checkpoint.config();
        }
        List<Integer> fitting = fitting(config);
        if (fitting.isEmpty()) {
            leftOut.add(tooShort(config));
            return reports;
        }
        for (String connector : connectors) {
            reports.addAll(measure(model, connector, fitting));
        }
        return reports;
    }

    /** Measurements of one order of the legs: at once, or one after the other. */
    private record Way(boolean atOnce, Map<Integer, List<Handover>> handovers, Map<Integer, List<Double>> transfers) {
        Way(boolean atOnce) {
            this(atOnce, new HashMap<>(), new HashMap<>());
        }

        void add(int tokens, Handover handover, double transfer) {
            handovers.computeIfAbsent(tokens, _ -> new ArrayList<>()).add(handover);
            transfers.computeIfAbsent(tokens, _ -> new ArrayList<>()).add(transfer);
        }

        Size size(int tokens, long blockBytes) {
            return new Size(
                    tokens,
                    tokens / BLOCK_SIZE * blockBytes,
                    List.copyOf(handovers.getOrDefault(tokens, List.of())),
                    Timing.of(transfers.getOrDefault(tokens, List.of())));
        }
    }

    private List<ModelReport> measure(Path model, String connector, List<Integer> fitting) throws IOException {
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
                double firstHandshake =
                        pair.handOver(longest, WARM, false, progress).span("handshake");
                // NixlConnector reads after prefill's answer; NixlPushConnector is for both legs at once.
                List<Way> ways = connector.equals("NixlConnector")
                        ? List.of(new Way(true), new Way(false))
                        : List.of(new Way(true));
                // The first rounds touch all of both pools, and the JVM compiles what moves and checks.
                for (int round = 1 - WARM_UPS; round <= repetitions; round++) {
                    for (int count : fitting) {
                        for (int i = 0; i < ways.size(); i++) {
                            int which = round > 0 ? round * ways.size() + i : WARM;
                            Handover handover =
                                    pair.handOver(count, which, ways.get(i).atOnce(), progress);
                            double transfer = alone.seconds(count / BLOCK_SIZE);
                            if (round > 0) {
                                ways.get(i).add(count, handover, transfer);
                            }
                        }
                    }
                }
                return ways.stream()
                        .map(way -> new ModelReport(
                                decode.model().name(),
                                connector,
                                way.atOnce(),
                                firstHandshake,
                                fitting.stream()
                                        .map(count -> way.size(count, blockBytes))
                                        .toList()))
                        .toList();
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

    private static String tooShort(ModelConfig config) {
        return "%s has max_position_embeddings=%d".formatted(config.name(), config.maxPositions());
    }

    /** @param which of the prompts of that length */
    private static int[] prompt(int length, int which, int vocabulary) {
        return new Random((long) which << 32 | length)
                .ints(length, 5, vocabulary)
                .toArray();
    }

    private static GenerationRequest request(String id, int[] prompt, Optional<JsonFields> params) {
        return new GenerationRequest(
                id,
                prompt,
                SamplingParams.builder()
                        .temperature(0)
                        .ignoreEos(true)
                        .maxTokens(OUTPUT)
                        .build(),
                params,
                Optional.empty(),
                0);
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

        /** @param atOnce whether decode is asked when prefill is; not for the first */
        Handover handOver(int length, int which, boolean atOnce, Consumer<String> progress) throws IOException {
            String id = "handover-" + ++requests + ".";
            int[] prompt = prompt(length, which, decode.model().vocabularySize());
            recorder.clear();
            prefill.begin(id, length, which);
            BlockingQueue<GenerationEvent.Finished> ends = new LinkedBlockingQueue<>();
            long submitted = atOnce ? submit(id, prompt, target, ends) : 0;
            JsonFields answer = prefill.receive();
            long answered = answer.integer("answered").orElseThrow();
            Optional<JsonFields> params = answer.object("params");
            if (!atOnce) {
                submitted = submit(id, prompt, params, ends);
                target = params.map(Pair::target);
            }
            int transferred = RequestEnd.await(ends, DEADLINE).usage().transferredTokens();
            if (transferred < length) {
                throw new IOException("only %d of %d tokens were handed over".formatted(transferred, length));
            }
            Map<String, Double> spans = recorder.take();
            JsonFields sealed = prefill.receive();
            spans.put("seal", sealed.number("seal").orElseThrow());
            spans.put("answer", (answered - sealed.integer("sealed").orElseThrow()) / 1e9);
            spans.put("pass on", (submitted - answered) / 1e9);
            Handover handover = new Handover(spans);
            progress.accept(String.format(
                    Locale.ROOT,
                    "%d tokens, %s: %.3f ms",
                    length,
                    atOnce ? "at once" : "one after the other",
                    handover.seconds() * 1e3));
            return handover;
        }

        private long submit(
                String id, int[] prompt, Optional<JsonFields> params, BlockingQueue<GenerationEvent.Finished> ends) {
            long submitted = System.nanoTime();
            decode.submit(request(id, prompt, params), event -> {
                if (event instanceof GenerationEvent.Finished end) {
                    ends.add(end);
                }
            });
            return submitted;
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
                BlockingQueue<GenerationEvent.Finished> ends = new LinkedBlockingQueue<>();
                long[] answered = new long[1];
                int[] prompt = prompt(
                        Integer.parseInt(request[1]),
                        Integer.parseInt(request[2]),
                        engine.model().vocabularySize());
                engine.submit(
                        request(
                                request[0],
                                prompt,
                                Optional.of(JsonFields.parse("kv_transfer_params", "{\"do_remote_decode\": true}"))),
                        event -> {
                            if (event instanceof GenerationEvent.Finished end) {
                                answered[0] = System.nanoTime();
                                ends.add(end);
                            }
                        });
                JsonFields params =
                        RequestEnd.await(ends, DEADLINE).kvTransferParams().orElseThrow();
                ObjectNode answer = json.createObjectNode().put("answered", answered[0]);
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
