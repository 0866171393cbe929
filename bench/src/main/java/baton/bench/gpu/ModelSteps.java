package baton.bench.gpu;

import baton.bench.RandomModel;
import baton.cuda.driver.NativeDriver.Search;
import baton.cuda.model.CudaBackend;
import baton.engine.EngineConfig;
import baton.engine.EngineConfigBuilder;
import baton.engine.EngineListener;
import baton.engine.GenerationRequest;
import baton.engine.RequestOutput;
import baton.engine.SamplingParams;
import baton.engine.backend.ModelBackend;
import baton.engine.backend.ModelBackends;
import baton.engine.local.GenerationCollector;
import baton.engine.local.LocalEngine;
import baton.engine.model.Device;
import baton.engine.model.RandomCheckpoint;
import baton.kv.DType;
import baton.kv.JsonFields;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.LoadFailurePolicy;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/** Steps that serve models on the device. */
final class ModelSteps {
    private static final int BLOCK = 16;
    private static final int LONG_PROMPT = 2048;
    private static final int CONTEXT = 128;
    private static final int STEPS = 128;
    private static final int REPETITIONS = 5;
    private static final int HANDED_OVER = 1024;
    private static final int ANSWER = 4;

    /**
     * The margin between the first logit and the second below which another rounding in bf16 may choose otherwise; the largest one seen is
     * 0.32.
     */
    private static final double BF16_MARGIN = 0.5;

    /** Where the prefill and the decode instance compute, and {@code kv_buffer_device}. */
    private record Way(Device prefill, Device decode, String buffer) {}

    private static final List<Way> WAYS = List.of(
            new Way(Device.CPU, Device.CUDA, "cpu"),
            new Way(Device.CUDA, Device.CPU, "cpu"),
            new Way(Device.CUDA, Device.CUDA, "cpu"),
            new Way(Device.CUDA, Device.CUDA, "cuda"));

    private ModelSteps() {}

    /** Backends of one process, of which those of a device share its driver. */
    private record Backends(Supplier<Search> search) {
        ModelBackend on(Device device) {
            return device.kind() == Device.Kind.CUDA ? new CudaBackend(search) : ModelBackends.on(device);
        }
    }

    private static EngineConfigBuilder config(Path model, DType dtype) {
        return EngineConfig.of(model).dtype(dtype).blockSize(BLOCK).enablePrefixCaching(false);
    }

    private static LocalEngine start(EngineConfig config, Backends backends, Device device) throws IOException {
        return LocalEngine.start(config, EngineListener.NONE, () -> backends.on(device));
    }

    private static SamplingParams greedy(int tokens) {
        return SamplingParams.builder()
                .temperature(0)
                .ignoreEos(true)
                .maxTokens(tokens)
                .build();
    }

    private static List<RequestOutput> ask(
            LocalEngine engine, List<int[]> prompts, SamplingParams sampling, Optional<JsonFields> params)
            throws Exception {
        List<GenerationCollector> collectors = new ArrayList<>();
        for (int[] prompt : prompts) {
            GenerationRequest request =
                    new GenerationRequest("asked-" + System.nanoTime(), prompt, sampling, params, Optional.empty(), 0);
            collectors.add(new GenerationCollector(request));
            engine.submit(request, collectors.getLast());
        }
        List<RequestOutput> outputs = new ArrayList<>();
        for (GenerationCollector collector : collectors) {
            outputs.add(collector.result().get(60, TimeUnit.SECONDS));
        }
        return outputs;
    }

    private static int[] ints(JsonNode array) {
        return array.valueStream().mapToInt(JsonNode::asInt).toArray();
    }

    private static int[] random(int length, int seed) {
        return new Random(seed).ints(length, 5, 2000).toArray();
    }

    /** Recorded answers of tiny-ledger: how many are the same, and the margin of the recorded token where another is chosen first. */
    static void golden(GpuCheck check, ObjectNode json) throws Exception {
        Backends backends = new Backends(check.search());
        int tokens = check.simulated() ? 2 : 32;
        List<JsonNode> recorded = JsonMapper.builder()
                .build()
                .readTree(Files.readString(check.model().resolve("golden.json")))
                .get("prompts")
                .valueStream()
                .filter(prompt ->
                        !check.simulated() || prompt.get("name").asString().equals("hello"))
                .toList();
        for (DType dtype : check.simulated() ? List.of(DType.F32) : List.of(DType.F32, DType.BF16)) {
            ObjectNode result = json.putObject(dtype.toString());
            try (LocalEngine engine = start(
                    config(check.model(), dtype)
                            .maxModelLen(check.simulated() ? 64 : 2048)
                            .numBlocks(check.simulated() ? 8 : 4096)
                            .build(),
                    backends,
                    Device.CUDA)) {
                List<int[]> prompts = recorded.stream()
                        .map(prompt -> ints(prompt.get("prompt_ids")))
                        .toList();
                List<RequestOutput> answers = ask(engine, prompts, greedy(tokens), Optional.empty());
                int same = 0;
                double largest = 0;
                for (int i = 0; i < answers.size(); i++) {
                    int different = Arrays.mismatch(
                            answers.get(i).tokens(),
                            Arrays.copyOf(ints(recorded.get(i).get("output_ids")), tokens));
                    if (different < 0) {
                        same++;
                    } else {
                        largest = Math.max(
                                largest,
                                recorded.get(i).get("margins").get(different).asDouble());
                    }
                }
                result.put("prompts", answers.size()).put("same", same).put("largest_margin_of_others", largest);
                require(
                        same == answers.size() || dtype == DType.BF16 && largest <= BF16_MARGIN,
                        "%d of %d answers are as recorded, others differ where the margin is up to %.3f"
                                .formatted(same, answers.size(), largest));
            } catch (Exception e) {
                result.put("error", e.toString());
                json.put("error", dtype + ": " + e);
            }
        }
    }

    private static void require(boolean right, String wrong) {
        if (!right) {
            throw new IllegalStateException(wrong);
        }
    }

    static void handovers(GpuCheck check, ObjectNode json) throws Exception {
        Backends backends = new Backends(check.search());
        int handedOver = check.simulated() ? 2 * BLOCK : HANDED_OVER;
        int[] prompt = random(handedOver + 3, 8);
        int[] alone;
        try (LocalEngine engine = start(config(check.model(), DType.F32).build(), backends, Device.CPU)) {
            alone = ask(engine, List.of(prompt), greedy(ANSWER), Optional.empty())
                    .getFirst()
                    .tokens();
        }
        ArrayNode results = json.putArray("ways");
        List<String> connectors = List.of("NixlConnector", "NixlPushConnector", "SharedStorageConnector");
        for (String connector : check.simulated() ? connectors.subList(0, 1) : connectors) {
            for (Way way : check.simulated() ? WAYS.subList(WAYS.size() - 1, WAYS.size()) : WAYS) {
                if (connector.startsWith("Nixl") || way.buffer.equals("cpu")) {
                    ObjectNode result = results.addObject()
                            .put("connector", connector)
                            .put("prefill", way.prefill.toString())
                            .put("decode", way.decode.toString())
                            .put("kv_buffer_device", way.buffer);
                    try {
                        handOver(check.model(), backends, connector, way, prompt, alone, result);
                    } catch (Exception e) {
                        result.put("error", e.toString());
                        json.put("error", connector + " " + way + ": " + e);
                    }
                }
            }
        }
    }

    private static void handOver(
            Path model, Backends backends, String connector, Way way, int[] prompt, int[] alone, ObjectNode result)
            throws Exception {
        Path shared = Files.createTempDirectory("baton-gpu-handover");
        try (LocalEngine prefill = start(
                        config(model, connector, KvRole.PRODUCER, way.buffer, shared, prompt.length),
                        backends,
                        way.prefill);
                LocalEngine decode = start(
                        config(model, connector, KvRole.CONSUMER, way.buffer, shared, prompt.length),
                        backends,
                        way.decode)) {
            Optional<JsonFields> params = connector.startsWith("Nixl")
                    ? Optional.of(JsonFields.parse("kv_transfer_params", "{\"do_remote_decode\": true}"))
                    : Optional.empty();
            RequestOutput first =
                    ask(prefill, List.of(prompt), greedy(1), params).getFirst();
            long begun = System.nanoTime();
            RequestOutput answer = ask(decode, List.of(prompt), greedy(ANSWER), first.kvTransferParams())
                    .getFirst();
            boolean same = Arrays.equals(answer.tokens(), alone);
            result.put("seconds", (System.nanoTime() - begun) * 1e-9)
                    .put("cached_tokens", answer.cachedTokens())
                    .put("same", same);
            require(
                    same,
                    "the answer is %s, without a hand-over it is %s"
                            .formatted(Arrays.toString(answer.tokens()), Arrays.toString(alone)));
            int least = prompt.length / BLOCK * BLOCK;
            require(
                    answer.cachedTokens() >= least,
                    "%d tokens were handed over, the whole blocks have %d".formatted(answer.cachedTokens(), least));
        }
    }

    private static EngineConfig config(
            Path model, String connector, KvRole role, String buffer, Path shared, int promptTokens) {
        KvTransferConfig.Builder transfer = KvTransferConfig.builder(
                        connector, connector.startsWith("Nixl") ? KvRole.BOTH : role)
                .engineId(role + "-" + System.nanoTime())
                .bufferDevice(buffer)
                .loadFailurePolicy(LoadFailurePolicy.FAIL);
        if (connector.startsWith("Nixl")) {
            transfer.extra("side_channel_host", "127.0.0.1")
                    .extra("side_channel_port", 0)
                    .extra("transfer_agent", "embedded");
        } else {
            transfer.extra("shared_storage_path", shared.toString());
        }
        return config(model, DType.F32)
                .maxModelLen(promptTokens + ANSWER)
                .numBlocks(4 * (promptTokens + ANSWER) / BLOCK)
                .kvTransfer(transfer.build())
                .build();
    }

    /** Steps of a random model of Llama-3.2-1B's shape in bf16: decoding in batches of 1 and 32, and prefill of 2,048 tokens. */
    static void model1b(GpuCheck check, ObjectNode json) throws Exception {
        if (check.simulated()) {
            json.put(GpuCheck.LEFT_OUT, "a simulated device takes hours for it");
            return;
        }
        Backends backends = new Backends(check.search());
        Exception[] failure = new Exception[1];
        RandomModel.with(RandomCheckpoint.llama1b(), Duration.ofMinutes(2), check.progress(), directory -> {
            try (LocalEngine engine = start(
                    config(directory, DType.BF16)
                            .maxModelLen(LONG_PROMPT + 16)
                            .maxNumBatchedTokens(LONG_PROMPT)
                            .numBlocks(32 * (CONTEXT + STEPS + BLOCK) / BLOCK + LONG_PROMPT / BLOCK + 2)
                            .build(),
                    backends,
                    Device.CUDA)) {
                measure(engine, json);
            } catch (Exception e) {
                failure[0] = e;
            }
            return true;
        });
        if (failure[0] != null) {
            throw failure[0];
        }
    }

    private static void measure(LocalEngine engine, ObjectNode json) throws Exception {
        List<int[]> prompt = List.of(random(LONG_PROMPT, 1));
        json.put("prefill_seconds", best(engine, prompt, 1)).put("prefill_tokens", LONG_PROMPT);
        ArrayNode decode = json.putArray("decode");
        for (int batch : new int[] {1, 8, 32}) {
            List<int[]> prompts = new ArrayList<>();
            for (int i = 0; i < batch; i++) {
                prompts.add(random(CONTEXT, i));
            }
            double seconds = (best(engine, prompts, STEPS) - best(engine, prompts, 1)) / (STEPS - 1);
            decode.addObject()
                    .put("batch", batch)
                    .put("step_seconds", seconds)
                    .put("tokens_per_second", batch / seconds);
        }
    }

    private static double best(LocalEngine engine, List<int[]> prompts, int tokens) throws Exception {
        double best = Double.MAX_VALUE;
        for (int i = 0; i < REPETITIONS; i++) {
            long begun = System.nanoTime();
            List<RequestOutput> _ = ask(engine, prompts, greedy(tokens), Optional.empty());
            best = Math.min(best, (System.nanoTime() - begun) * 1e-9);
        }
        return best;
    }
}
