package baton.engine.local;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.engine.CpuBinding;
import baton.engine.EngineConfig;
import baton.engine.EngineConfigBuilder;
import baton.engine.EngineListener;
import baton.engine.EngineUnavailableException;
import baton.engine.GenerationEvent;
import baton.engine.GenerationRequest;
import baton.engine.ParallelConfig;
import baton.engine.RequestOutput;
import baton.engine.SamplingParams;
import baton.engine.model.Quantization;
import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.JsonFields;
import baton.kv.KvCache;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.KvConnector;
import baton.kv.connector.KvMatch;
import baton.kv.connector.KvRequest;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.WorkerConnector;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.UnaryOperator;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/** A prompt's KV cache from one offline engine to another, as in vLLM's offline example. */
class OfflineHandOverTest {
    @TempDir
    Path directory;

    private LLM llm(int blockSize, KvRole role) {
        return new LLM(config(blockSize, role).build());
    }

    private EngineConfigBuilder config(int blockSize, KvRole role) {
        return LLMTest.config()
                .blockSize(blockSize)
                // So that a token which is not computed can only have come from the connector.
                .enablePrefixCaching(false)
                .kvTransfer(KvTransferConfig.builder("SharedStorageConnector", role)
                        .extra("shared_storage_path", directory.toString())
                        .build());
    }

    @ParameterizedTest
    @ValueSource(ints = {16, 32})
    void theConsumersOutputEqualsThatOfOneEngineAlone(int blockSize) throws Exception {
        List<int[]> prompts = IntStream.of(
                        1, blockSize - 1, blockSize, blockSize + 1, 2 * blockSize, 2 * blockSize + 1, 2040)
                .mapToObj(length -> LLMTest.prompt(length, length))
                .toList();
        SamplingParams eight = SamplingParams.builder()
                .temperature(0)
                .ignoreEos(true)
                .maxTokens(8)
                .build();
        List<int[]> colocated;
        try (LLM alone = new LLM(LLMTest.config().blockSize(blockSize).build())) {
            colocated = tokens(alone.generateTokens(prompts, eight));
        }
        try (LLM producer = llm(blockSize, KvRole.PRODUCER)) {
            assertThat(producer.generateTokens(prompts, SamplingParams.greedy(1)))
                    .allMatch(output -> output.tokens().length == 1);
        }
        List<RequestOutput> handedOver = CompletableFuture.supplyAsync(() -> {
                    try (LLM consumer = llm(blockSize, KvRole.CONSUMER)) {
                        return consumer.generateTokens(prompts, eight);
                    }
                })
                .get(60, TimeUnit.SECONDS);
        for (int i = 0; i < prompts.size(); i++) {
            int length = prompts.get(i).length;
            assertThat(handedOver.get(i).tokens()).as("length %d", length).isEqualTo(colocated.get(i));
            // Whole blocks, and a token to compute is always left.
            assertThat(handedOver.get(i).cachedTokens())
                    .as("length %d", length)
                    .isEqualTo(Math.min(length / blockSize * blockSize, (length - 1) / blockSize * blockSize));
        }
    }

    /** Recorded answers that neither bf16 nor 8-bit weights bring into doubt. */
    @ParameterizedTest(name = "computed in {0}, {1}, cached in {2}")
    @CsvSource({
        "F32, NONE, BF16",
        "F16, NONE, F16",
        "F32, NONE, F8_E4M3",
        "BF16, NONE, F32",
        "F32, INT8, F32",
        "BF16, INT8, BF16"
    })
    void aCacheOfAnotherTypeAndQuantisedWeightsChangeNothing(DType dtype, Quantization quantization, DType cached)
            throws IOException {
        Map<String, JsonNode> recorded = new HashMap<>();
        JsonMapper.builder()
                .build()
                .readTree(Files.readString(LLMTest.MODEL.resolve("golden.json")))
                .get("prompts")
                .forEach(prompt -> recorded.put(prompt.get("name").asString(), prompt));
        List<JsonNode> asked = Stream.of("hello", "recall-40", "recall-120", "recall-600")
                .map(recorded::get)
                .toList();
        List<int[]> prompts =
                asked.stream().map(prompt -> ints(prompt.get("prompt_ids"))).toList();
        List<int[]> answers = asked.stream()
                .map(prompt -> Arrays.copyOf(
                        ints(prompt.get("output_ids")),
                        prompt.get("tokens_to_stop").asInt()))
                .toList();
        SamplingParams greedy = SamplingParams.greedy(32);
        UnaryOperator<EngineConfigBuilder> kind =
                config -> config.dtype(dtype).quantization(quantization).kvCacheDtype(cached);
        try (LLM chunked = new LLM(kind.apply(LLMTest.config())
                .maxNumSeqs(4)
                .maxNumBatchedTokens(50)
                .build())) {
            assertSame(chunked.generateTokens(prompts, greedy), answers);
        }
        try (LLM producer = new LLM(kind.apply(config(16, KvRole.PRODUCER)).build())) {
            producer.generateTokens(prompts, SamplingParams.greedy(1));
        }
        try (LLM consumer = new LLM(kind.apply(config(16, KvRole.CONSUMER)).build())) {
            List<RequestOutput> handedOver = consumer.generateTokens(prompts, greedy);
            assertSame(handedOver, answers);
            for (int i = 0; i < prompts.size(); i++) {
                assertThat(handedOver.get(i).cachedTokens()).isEqualTo((prompts.get(i).length - 1) / 16 * 16);
            }
        }
        // An engine that computes in another type takes nothing over, though its cache has the same layout.
        DType other = dtype == DType.F32 ? DType.BF16 : DType.F32;
        try (LLM stranger =
                new LLM(kind.apply(config(16, KvRole.CONSUMER)).dtype(other).build())) {
            assertThat(stranger.generateTokens(prompts, SamplingParams.greedy(1)))
                    .allMatch(output -> output.cachedTokens() == 0);
        }
    }

    private static int[] ints(JsonNode array) {
        return array.values().stream().mapToInt(JsonNode::asInt).toArray();
    }

    private static void assertSame(List<RequestOutput> outputs, List<int[]> expected) {
        assertThat(tokens(outputs).stream().map(Arrays::toString).toList())
                .isEqualTo(expected.stream().map(Arrays::toString).toList());
    }

    /** The ranks of the two engines share heads and layers as each likes. */
    @ParameterizedTest(name = "TP={0} PP={1} to TP={2} PP={3}")
    @CsvSource({"2, 1, 1, 1", "1, 1, 2, 1", "1, 2, 1, 1", "8, 1, 2, 2", "1, 1, 1, 4"})
    void theTwoEnginesMayHaveDifferentRanks(int fromTensor, int fromPipeline, int toTensor, int toPipeline) {
        List<int[]> prompts = IntStream.of(15, 17, 100, 500)
                .mapToObj(length -> LLMTest.prompt(length, length))
                .toList();
        SamplingParams eight = SamplingParams.builder()
                .temperature(0)
                .ignoreEos(true)
                .maxTokens(8)
                .build();
        List<int[]> colocated;
        try (LLM alone = new LLM(LLMTest.config().build())) {
            colocated = tokens(alone.generateTokens(prompts, eight));
        }
        try (LLM producer = new LLM(config(16, KvRole.PRODUCER)
                .parallel(new ParallelConfig(fromTensor, fromPipeline, CpuBinding.NONE))
                .build())) {
            List<RequestOutput> first = producer.generateTokens(prompts, SamplingParams.greedy(1));
            for (int i = 0; i < prompts.size(); i++) {
                assertThat(first.get(i).tokens()).containsExactly(colocated.get(i)[0]);
            }
        }
        try (LLM consumer = new LLM(config(16, KvRole.CONSUMER)
                .parallel(new ParallelConfig(toTensor, toPipeline, CpuBinding.NONE))
                .build())) {
            List<RequestOutput> handedOver = consumer.generateTokens(prompts, eight);
            for (int i = 0; i < prompts.size(); i++) {
                int length = prompts.get(i).length;
                assertThat(handedOver.get(i).tokens()).as("length %d", length).isEqualTo(colocated.get(i));
                assertThat(handedOver.get(i).cachedTokens())
                        .as("length %d", length)
                        .isEqualTo((length - 1) / 16 * 16);
            }
            LLMTest.await(() -> consumer.engine().status().usedBlocks() == 0);
        }
    }

    private static List<int[]> tokens(List<RequestOutput> outputs) {
        return outputs.stream().map(RequestOutput::tokens).toList();
    }

    /**
     * A connector of a user's own that throws when it builds a step for a prompt of 13 tokens, and that writes the ids of rejected requests
     * into the file {@code refusals}.
     */
    public static final class Fragile implements KvConnector {
        @Override
        public Set<String> names() {
            return Set.of();
        }

        @Override
        public SchedulerConnector scheduler(ConnectorContext context) {
            return new SchedulerConnector() {
                @Override
                public void onRefused(String requestId, JsonFields kvTransferParams) {
                    try {
                        Path refusals = Path.of(
                                context.config().extra().string("refusals").orElseThrow());
                        Files.writeString(refusals, requestId + "\n", StandardOpenOption.APPEND);
                    } catch (IOException e) {
                        throw new UncheckedIOException(e);
                    }
                }

                @Override
                public KvMatch match(KvRequest request, int computedTokens) {
                    return new KvMatch.None();
                }

                @Override
                public void onAllocated(KvRequest request, int[] table, int computedTokens, int externalTokens) {}

                @Override
                public ConnectorMetadata buildMetadata(ScheduledStep step) {
                    if (step.requests().stream().anyMatch(each -> each.request().promptLength() == 13)) {
                        throw new IllegalStateException("thirteen");
                    }
                    return new ConnectorMetadata.None();
                }

                @Override
                public Release onFinished(KvRequest request, RequestEnd end, int[] blockTable) {
                    if (request.promptLength() == 13) {
                        throw new IllegalStateException("thirteen again");
                    }
                    return Release.NOW;
                }

                @Override
                public void close() {}
            };
        }

        @Override
        public WorkerConnector worker(ConnectorContext context, Rank rank) {
            return new WorkerConnector() {
                @Override
                public void register(KvCache cache) {}

                @Override
                public void startLoad(ConnectorMetadata metadata) {}

                @Override
                public void close() {}
            };
        }
    }

    /** A request for which there is no room may be tried with another instance, which then needs the blocks that it refers to. */
    @Test
    void theConnectorIsNotifiedOfRejectedRequestsButNotOfThoseThatMayBeRetriedElsewhere(@TempDir Path directory)
            throws IOException {
        Path refusals = Files.createFile(directory.resolve("refusals"));
        EngineConfig config = LLMTest.config()
                .maxNumSeqs(1)
                .maxWaiting(1)
                .kvTransfer(KvTransferConfig.builder("OfflineHandOverTest$Fragile", KvRole.BOTH)
                        .modulePath("baton.engine.local")
                        .extra("refusals", refusals.toString())
                        .build())
                .build();
        try (LocalEngine engine = LocalEngine.start(config, EngineListener.NONE)) {
            SamplingParams endless = SamplingParams.builder()
                    .temperature(0)
                    .maxTokens(1500)
                    .ignoreEos(true)
                    .build();
            assertThatThrownBy(() -> engine.submit(handedOver("empty", new int[0], endless), _ -> {}))
                    .isInstanceOf(ConfigException.class);
            // At most max_waiting rejections wait for the engine's thread, more are dropped.
            LLMTest.await(() -> refusals.toFile().length() > 0);
            List<GenerationEvent.Finished> ended = new CopyOnWriteArrayList<>();
            Consumer<GenerationEvent> sink = event -> {
                if (event instanceof GenerationEvent.Finished finished) {
                    ended.add(finished);
                }
            };
            engine.submit(handedOver("runs", LLMTest.prompt(1, 20), endless), sink);
            engine.submit(handedOver("waits", LLMTest.prompt(1, 20), endless), sink);
            assertThatThrownBy(() -> engine.submit(handedOver("late", LLMTest.prompt(2, 20), endless), _ -> {}))
                    .isInstanceOf(EngineUnavailableException.class);
            assertThatThrownBy(() -> engine.submit(handedOver("foreign", new int[] {1 << 20}, endless), _ -> {}))
                    .isInstanceOf(ConfigException.class);
            engine.abort("waits");
            engine.abort("runs");
            LLMTest.await(() -> ended.size() == 2);
            // The engine serves on, and the connector was notified of the rejected requests in order.
            engine.submit(handedOver("next", LLMTest.prompt(3, 12), SamplingParams.greedy(2)), sink);
            LLMTest.await(() -> ended.size() == 3);
            assertThat(ended.getLast().usage().outputTokens()).isEqualTo(2);
            assertThat(Files.readAllLines(refusals)).containsExactly("empty", "foreign");
        }
    }

    private static GenerationRequest handedOver(String id, int[] prompt, SamplingParams sampling) {
        JsonFields params = JsonFields.parse("kv_transfer_params", "{\"do_remote_prefill\": true}");
        return new GenerationRequest(id, prompt, sampling, Optional.of(params), Optional.empty(), 0);
    }

    @Test
    void aUsersConnectorThatThrowsIsClosedAndTheEngineServesOnWithoutIt() {
        try (LLM llm = new LLM(LLMTest.config()
                .kvTransfer(KvTransferConfig.builder("OfflineHandOverTest$Fragile", KvRole.BOTH)
                        .modulePath("baton.engine.local")
                        .build())
                .build())) {
            SamplingParams two = SamplingParams.greedy(2);
            assertThat(llm.generateTokens(List.of(LLMTest.prompt(1, 12)), two)
                            .getFirst()
                            .tokens())
                    .hasSize(2);
            List<int[]> prompts = new ArrayList<>();
            for (int length = 10; length < 16; length++) {
                prompts.add(LLMTest.prompt(length, length));
            }
            assertThat(llm.generateTokens(prompts, SamplingParams.greedy(500))).allSatisfy(output -> {
                assertThat(output.completions().getFirst().error()).isEmpty();
                assertThat(output.tokens()).isNotEmpty();
            });
            assertThat(llm.engine().status().failure()).isEmpty();
            // The status follows the last event.
            LLMTest.await(() -> llm.engine().status().usedBlocks() == 0);
            assertThat(llm.generateTokens(List.of(LLMTest.prompt(13, 13)), two)
                            .getFirst()
                            .tokens())
                    .hasSize(2);
        }
    }
}
