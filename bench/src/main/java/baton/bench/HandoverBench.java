package baton.bench;

import baton.bench.HandoverReport.Handover;
import baton.bench.HandoverReport.ModelReport;
import baton.bench.HandoverReport.Size;
import baton.bench.TransferReport.Rate;
import baton.engine.EngineConfig;
import baton.engine.EngineListener;
import baton.engine.FinishReason;
import baton.engine.GenerationEvent;
import baton.engine.GenerationRequest;
import baton.engine.LocalEngine;
import baton.engine.SamplingParams;
import baton.engine.model.Checkpoint;
import baton.engine.model.RandomCheckpoint;
import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.LoadFailurePolicy;
import baton.kv.connector.Measurement;
import java.io.BufferedReader;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
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
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ObjectNode;

/**
 * Measures the hand-over of prompts by {@code NixlConnector} from a prefill engine in another process to a decode engine here: from the
 * prefill's last token to the step that computes decode's first, by what the engines themselves record. A prompt comes again and again;
 * after the first time prefill finds it in its cache, decode never does.
 *
 * <p>Beside it, in the same run, the transfer alone: the same bytes, of another process, by the same transfer agent ({@link
 * TransferBench}). Both engines and all transfers share the machine's processors.
 *
 * @param threads that each engine computes with; empty: one for each processor
 * @param tokens of the prompts
 * @param repetitions for each length
 * @param progress told what is being done, line by line
 */
public record HandoverBench(OptionalInt threads, List<Integer> tokens, int repetitions, Consumer<String> progress) {
    public static final List<Integer> TOKENS = List.of(128, 512, 2048);

    private static final int BLOCK_SIZE = 16;
    private static final int OUTPUT = 1;
    private static final int WARM_UPS = 60;
    private static final int DEADLINE_SECONDS = 300;
    private static final Duration TRANSFER_ALONE = Duration.ofMillis(500);
    /** What the other process says to us begins with it; what else it prints does not count. */
    private static final String SAYS = "handover ";

    /** @throws ConfigException if a number makes no sense */
    public HandoverBench {
        if (repetitions <= 0) {
            throw new ConfigException("repetitions", "is " + repetitions + ", must be positive");
        }
        tokens = List.copyOf(tokens);
        if (tokens.isEmpty()) {
            throw new ConfigException("tokens", "is empty, must have at least one number");
        }
        for (int count : tokens) {
            if (count < BLOCK_SIZE || count % BLOCK_SIZE != 0) {
                throw new ConfigException(
                        "tokens", "has %d, must be multiples of the block size of %d".formatted(count, BLOCK_SIZE));
            }
        }
    }

    /**
     * Measures with the checkpoints in these directories, and, if asked to, with a random one of Llama-3.2-1B's shape, which it
     * writes into a temporary directory.
     *
     * @throws ConfigException if a checkpoint does not fit
     * @throws IOException if a checkpoint cannot be read, or the other process fails
     */
    public HandoverReport run(List<Path> models, boolean random1b) throws IOException {
        List<ModelReport> reports = new ArrayList<>();
        for (Path model : models) {
            reports.add(measure(model));
        }
        if (random1b) {
            reports.add(EngineBench.withRandomCheckpoint(RandomCheckpoint.llama1b(), progress, this::measure));
        }
        return new HandoverReport(List.copyOf(reports));
    }

    /** @param longest prompt */
    private static EngineConfig config(Path model, KvRole role, OptionalInt threads, int longest) {
        int maxModelLen = longest + OUTPUT;
        EngineConfig.Builder config = EngineConfig.of(model)
                .maxModelLen(maxModelLen)
                .maxNumBatchedTokens(Math.max(2048, longest))
                .blockSize(BLOCK_SIZE)
                // Prefill's prompts come again and are there; decode takes them again.
                .enablePrefixCaching(role == KvRole.PRODUCER)
                .numBlocks(3 * Math.ceilDiv(maxModelLen, BLOCK_SIZE))
                .kvTransfer(KvTransferConfig.builder("NixlConnector", role)
                        .loadFailurePolicy(LoadFailurePolicy.FAIL)
                        .extra("transfer_agent", "embedded")
                        .extra("side_channel_host", "127.0.0.1")
                        .extra("side_channel_port", 0)
                        .build());
        threads.ifPresent(config::threads);
        return config.build();
    }

    private ModelReport measure(Path model) throws IOException {
        List<Integer> fitting = fitting(model);
        int longest = Collections.max(fitting);
        progress.accept(model.getFileName() + ": a prefill engine in another process, a decode engine here");
        Recorder recorder = new Recorder();
        try (Prefill prefill = new Prefill(model, threads, longest);
                LocalEngine decode = LocalEngine.start(config(model, KvRole.CONSUMER, threads, longest), recorder)) {
            prefill.awaitReady();
            int vocabulary = decode.model().vocabularySize();
            double firstHandshake =
                    one(prefill, decode, recorder, longest, vocabulary).span("handshake");
            Map<Integer, List<Handover>> handovers = new HashMap<>();
            // The first rounds touch all of both pools, and the JVM compiles what moves and checks.
            for (int round = 1 - WARM_UPS; round <= repetitions; round++) {
                for (int count : fitting) {
                    Handover handover = one(prefill, decode, recorder, count, vocabulary);
                    if (round > 0) {
                        handovers.computeIfAbsent(count, _ -> new ArrayList<>()).add(handover);
                    }
                }
            }
            long tokenBytes =
                    decode.model().kvLayout(BLOCK_SIZE, decode.model().dtype()).blockBytes() / BLOCK_SIZE;
            Map<Integer, Rate> alone = tokenBytes == TransferBench.TOKEN_BYTES ? alone(fitting) : Map.of();
            return new ModelReport(
                    decode.model().name(),
                    firstHandshake,
                    fitting.stream()
                            .map(count -> new Size(
                                    count,
                                    count * tokenBytes,
                                    List.copyOf(handovers.getOrDefault(count, List.of())),
                                    Optional.ofNullable(alone.get(count))))
                            .toList());
        }
    }

    /** The prompts that leave room for a token of output. */
    private List<Integer> fitting(Path model) throws IOException {
        try (Checkpoint checkpoint = Checkpoint.open(model)) {
            int positions = checkpoint.config().maxPositions();
            List<Integer> fitting =
                    tokens.stream().filter(count -> count + OUTPUT <= positions).toList();
            if (fitting.isEmpty()) {
                throw new ConfigException(
                        "tokens", "is %s, but %s has max_position_embeddings=%d".formatted(tokens, model, positions));
            }
            return fitting;
        }
    }

    /** The transfers alone, while the engines have nothing to do. */
    private Map<Integer, Rate> alone(List<Integer> fitting) throws IOException {
        TransferReport report = new TransferBench(
                        Math.min(4, Runtime.getRuntime().availableProcessors()), fitting, TRANSFER_ALONE, progress)
                .run();
        Map<Integer, Rate> rates = new HashMap<>();
        report.sizes().forEach(size -> rates.put(size.tokens(), size.rate("shared memory")));
        return rates;
    }

    private static int[] prompt(int length, int vocabulary) {
        return new Random(length).ints(length, 5, vocabulary).toArray();
    }

    private Handover one(Prefill prefill, LocalEngine decode, Recorder recorder, int length, int vocabulary)
            throws IOException {
        int[] prompt = prompt(length, vocabulary);
        recorder.clear();
        JsonFields answer = prefill.prefill(length);
        BlockingQueue<GenerationEvent.Finished> ends = new LinkedBlockingQueue<>();
        long submitted = System.nanoTime();
        decode.submit(
                new GenerationRequest(
                        "handover-" + submitted,
                        prompt,
                        SamplingParams.builder()
                                .temperature(0)
                                .ignoreEos(true)
                                .maxTokens(OUTPUT)
                                .build(),
                        answer.object("params"),
                        Optional.empty(),
                        0),
                event -> {
                    if (event instanceof GenerationEvent.Finished end) {
                        ends.add(end);
                    }
                });
        int transferred = await(ends).usage().transferredTokens();
        if (transferred < length) {
            throw new IOException("only %d of %d tokens were handed over".formatted(transferred, length));
        }
        Map<String, Double> spans = recorder.take();
        prefill.spans().forEach(spans::put);
        spans.put("pass on", (submitted - answer.integer("answered").orElseThrow()) / 1e9);
        Handover handover = new Handover(spans);
        progress.accept(String.format(Locale.ROOT, "%d tokens: %.3f ms", length, handover.seconds() * 1e3));
        return handover;
    }

    /** Waits for the end of one engine's part in a request. */
    private static GenerationEvent.Finished await(BlockingQueue<GenerationEvent.Finished> ends) throws IOException {
        try {
            GenerationEvent.Finished end = ends.poll(DEADLINE_SECONDS, TimeUnit.SECONDS);
            if (end == null) {
                throw new IOException("a request did not end in " + DEADLINE_SECONDS + " s");
            }
            if (end.reason() == FinishReason.ERROR) {
                throw new IOException("a request failed: " + end.error().orElse("no reason given"));
            }
            return end;
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IOException("interrupted", e);
        }
    }

    /** What the product records of a hand-over, in seconds. */
    private static final class Recorder implements EngineListener {
        private final Map<String, Double> spans = new HashMap<>();

        synchronized void clear() {
            spans.clear();
        }

        synchronized Map<String, Double> take() {
            Map<String, Double> taken = new HashMap<>(spans);
            spans.clear();
            return taken;
        }

        @Override
        public synchronized void onMeasurements(List<Measurement> measurements) {
            for (Measurement each : measurements) {
                if (each.name().equals("baton:kv_handover")) {
                    spans.merge(each.labels().getOrDefault("phase", ""), each.value(), Double::sum);
                } else if (each.name().equals("vllm:nixl_xfer_time")) {
                    spans.put("transfer", each.value());
                }
            }
            notifyAll();
        }

        @Override
        public synchronized void onFinished(RequestStats stats) {
            spans.put("to first step", stats.queueSeconds());
        }

        /** A span that comes after the request's end. */
        synchronized double await(String span) throws InterruptedException, IOException {
            long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(DEADLINE_SECONDS);
            while (!spans.containsKey(span)) {
                long left = deadline - System.nanoTime();
                if (left <= 0) {
                    throw new IOException("no span " + span + " was recorded");
                }
                TimeUnit.NANOSECONDS.timedWait(this, left);
            }
            return spans.getOrDefault(span, 0.0);
        }
    }

    /** The process with the prefill engine. */
    private static final class Prefill implements AutoCloseable {
        private final Process process;
        private final BufferedReader out;
        private final PrintStream in;

        Prefill(Path model, OptionalInt threads, int longest) throws IOException {
            List<String> command = new ArrayList<>(List.of(
                    Path.of(System.getProperty("java.home"), "bin", "java").toString(),
                    "--enable-native-access=ALL-UNNAMED",
                    "--sun-misc-unsafe-memory-access=allow",
                    "-cp",
                    System.getProperty("java.class.path"),
                    HandoverBench.class.getName(),
                    model.toString(),
                    String.valueOf(longest)));
            threads.ifPresent(count -> command.add(String.valueOf(count)));
            process = new ProcessBuilder(command)
                    .redirectError(ProcessBuilder.Redirect.INHERIT)
                    .start();
            out = process.inputReader(StandardCharsets.UTF_8);
            in = new PrintStream(process.getOutputStream(), true, StandardCharsets.UTF_8);
        }

        void awaitReady() throws IOException {
            said();
        }

        /** Prefills a prompt; {@code params}, and when it was {@code answered}. */
        JsonFields prefill(int length) throws IOException {
            in.println(length);
            return said();
        }

        Map<String, Double> spans() throws IOException {
            JsonFields said = said();
            return Map.of(
                    "answer",
                    said.number("answer").orElseThrow(),
                    "seal",
                    said.number("seal").orElseThrow());
        }

        private JsonFields said() throws IOException {
            while (true) {
                String line = out.readLine();
                if (line == null) {
                    throw new EOFException("the prefill process has ended early");
                }
                if (line.startsWith(SAYS)) {
                    return JsonFields.parse("prefill", line.substring(SAYS.length()));
                }
            }
        }

        @Override
        public void close() {
            in.close();
            try {
                if (!process.waitFor(30, TimeUnit.SECONDS)) {
                    process.destroyForcibly();
                }
            } catch (InterruptedException _) {
                process.destroyForcibly();
                Thread.currentThread().interrupt();
            }
        }
    }

    /** The prefill process: prefills one prompt for each line of its input. */
    public static void main(String[] args) throws Exception {
        JsonMapper json = JsonMapper.builder().build();
        OptionalInt threads = args.length > 2 ? OptionalInt.of(Integer.parseInt(args[2])) : OptionalInt.empty();
        Recorder recorder = new Recorder();
        EngineConfig config = config(Path.of(args[0]), KvRole.PRODUCER, threads, Integer.parseInt(args[1]));
        try (LocalEngine engine = LocalEngine.start(config, recorder)) {
            System.out.println(SAYS + "{}");
            BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                recorder.clear();
                BlockingQueue<GenerationEvent.Finished> ends = new LinkedBlockingQueue<>();
                long[] answered = new long[1];
                engine.submit(
                        new GenerationRequest(
                                "prefill-" + System.nanoTime(),
                                prompt(Integer.parseInt(line), engine.model().vocabularySize()),
                                SamplingParams.builder()
                                        .temperature(0)
                                        .ignoreEos(true)
                                        .maxTokens(OUTPUT)
                                        .build(),
                                Optional.of(JsonFields.parse("kv_transfer_params", "{\"do_remote_decode\": true}")),
                                Optional.empty(),
                                0),
                        event -> {
                            if (event instanceof GenerationEvent.Finished end) {
                                answered[0] = System.nanoTime();
                                ends.add(end);
                            }
                        });
                JsonFields params = await(ends).kvTransferParams().orElseThrow();
                ObjectNode answer = json.createObjectNode().put("answered", answered[0]);
                answer.set("params", params.toJson());
                System.out.println(SAYS + json.writeValueAsString(answer));
                ObjectNode spans = json.createObjectNode();
                for (String span : List.of("answer", "seal")) {
                    spans.put(span, recorder.await(span));
                }
                System.out.println(SAYS + json.writeValueAsString(spans));
            }
        }
    }
}
