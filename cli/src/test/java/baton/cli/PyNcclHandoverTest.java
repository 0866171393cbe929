package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Instances.Instance;
import baton.cli.Instances.Prompts;
import baton.cli.Instances.Reply;
import baton.engine.CpuBinding;
import baton.engine.EngineConfig;
import baton.engine.EngineConfigBuilder;
import baton.engine.EngineListener;
import baton.engine.GenerationRequest;
import baton.engine.ParallelConfig;
import baton.engine.RequestOutput;
import baton.engine.SamplingParams;
import baton.engine.local.GenerationCollector;
import baton.engine.local.LocalEngine;
import baton.kv.DType;
import baton.kv.FreePorts;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.connector.Measurement;
import baton.testkit.Await;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/**
 * PyNcclConnector with the real tiny model: greedy tokens are those of one engine alone, and the consumer computes nothing of a prompt.
 * {@code -Dtests.prompts=N} asks N prompts in each way.
 */
@Tag("thorough")
class PyNcclHandoverTest {
    private static final int PROMPTS = Integer.getInteger("tests.prompts", 24);
    private static final long SEED = Long.getLong("tests.seed", 5);
    private static final int MOST_AT_ONCE = 16;
    private static final int BLOCK = 16;
    private static final int ANSWER_TOKENS = 6;
    private static final SamplingParams ANSWER = SamplingParams.builder()
            .temperature(0)
            .maxTokens(ANSWER_TOKENS)
            .ignoreEos(true)
            .build();

    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    /** An engine in this process, and what it counted. */
    private static final class Side implements AutoCloseable {
        private final AtomicLong scheduledTokens = new AtomicLong();
        private final AtomicLong generated = new AtomicLong();
        private final Map<String, Double> sums = new ConcurrentHashMap<>();
        private final LocalEngine engine;

        Side(EngineConfig config) throws IOException {
            engine = LocalEngine.start(config, new EngineListener() {
                @Override
                public void onStep(StepStats stats) {
                    scheduledTokens.addAndGet(stats.scheduledTokens());
                    generated.addAndGet(stats.generatedTokens());
                }

                @Override
                public void onMeasurements(List<Measurement> measurements) {
                    measurements.forEach(each -> sums.merge(each.name(), each.value(), Double::sum));
                }
            });
        }

        Future<RequestOutput> ask(String id, int[] prompt, SamplingParams sampling) {
            GenerationRequest request = new GenerationRequest(id, prompt, sampling);
            GenerationCollector collector = new GenerationCollector(request);
            engine.submit(request, collector);
            return collector.result();
        }

        double sum(String name) {
            return sums.getOrDefault(name, 0.0);
        }

        void awaitRest() throws Exception {
            Await.until(
                    Duration.ofSeconds(30),
                    () -> "blocks in use: " + engine.status().usedBlocks(),
                    () -> engine.status().usedBlocks() == 0);
        }

        @Override
        public void close() {
            engine.close();
        }
    }

    private static EngineConfigBuilder config(ParallelConfig parallel) {
        return EngineConfig.of(Instances.MODEL)
                .dtype(DType.F32)
                .threads(1)
                .maxModelLen(1024)
                .blockSize(BLOCK)
                .numBlocks(700)
                .parallel(parallel);
    }

    private static KvTransferConfig connector(KvRole role, int port) {
        return KvTransferConfig.builder("PyNcclConnector", role)
                .rank(role == KvRole.PRODUCER ? 0 : 1)
                .parallelSize(2)
                .port(port)
                .extra("connect_wait_seconds", 60)
                .extra("lookup_timeout_seconds", 60)
                .build();
    }

    private static List<int[]> prompts() {
        Random random = new Random(SEED);
        List<int[]> prompts = new ArrayList<>();
        for (int length : List.of(1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1)) {
            prompts.add(Ledgers.prompt(length, length));
        }
        while (prompts.size() < PROMPTS) {
            int length = 1 + random.nextInt(random.nextInt(4) == 0 ? 400 : 100);
            int variant = random.nextInt(1_000_000);
            // Some prompts are repeated, or share a prefix with earlier ones.
            int[] earlier = prompts.get(random.nextInt(prompts.size()));
            prompts.add(
                    switch (random.nextInt(5)) {
                        case 0 -> earlier;
                        case 1 -> Arrays.copyOf(earlier, Math.max(1, earlier.length / 2));
                        default -> Ledgers.prompt(length, variant);
                    });
        }
        return prompts;
    }

    /** At 1 to 16 at once, and in another order on the consumer's side. */
    @ParameterizedTest(name = "TP={0} PP={1}, steps of {2} tokens")
    @CsvSource({"1, 1, 2048", "1, 1, 128", "2, 1, 2048", "1, 2, 2048"})
    void tokensAreThoseOfOneEngineAloneAndThePromptIsNotComputed(int tensor, int pipeline, int budget)
            throws Exception {
        List<int[]> prompts = prompts();
        List<int[]> expected = new ArrayList<>();
        Random random = new Random(SEED);
        ParallelConfig parallel = new ParallelConfig(tensor, pipeline, CpuBinding.NONE);
        int port = FreePorts.inARow(2 * tensor * pipeline);
        try (Side alone = new Side(
                config(ParallelConfig.SINGLE).enablePrefixCaching(false).build())) {
            List<Future<RequestOutput>> answers = new ArrayList<>();
            for (int[] prompt : prompts) {
                answers.add(alone.ask("alone-" + answers.size(), prompt, ANSWER));
            }
            for (Future<RequestOutput> answer : answers) {
                expected.add(tokens(answer));
            }
        }
        try (Side prefill = new Side(config(parallel)
                        .maxNumSeqs(32)
                        .maxNumBatchedTokens(budget)
                        .kvTransfer(connector(KvRole.PRODUCER, port))
                        .build());
                Side decode = new Side(config(parallel)
                        .maxNumSeqs(32)
                        .maxNumBatchedTokens(budget)
                        .kvTransfer(connector(KvRole.CONSUMER, port))
                        .build())) {
            for (int first = 0; first < prompts.size(); ) {
                int end = Math.min(prompts.size(), first + 1 + random.nextInt(MOST_AT_ONCE));
                List<Future<RequestOutput>> prefilled = new ArrayList<>();
                for (int i = first; i < end; i++) {
                    prefilled.add(prefill.ask("prefill-" + i, prompts.get(i), SamplingParams.greedy(1)));
                }
                for (int i = first; i < end; i++) {
                    assertThat(tokens(prefilled.get(i - first))).containsExactly(expected.get(i)[0]);
                }
                List<Integer> order =
                        new ArrayList<>(IntStream.range(first, end).boxed().toList());
                Collections.shuffle(order, random);
                Map<Integer, Future<RequestOutput>> decoded = new HashMap<>();
                for (int i : order) {
                    decoded.put(i, decode.ask("decode-" + i, prompts.get(i), ANSWER));
                }
                for (int i : order) {
                    RequestOutput output =
                            Optional.ofNullable(decoded.get(i)).orElseThrow().get(90, TimeUnit.SECONDS);
                    assertThat(output.completions().getFirst().error()).isEmpty();
                    assertThat(output.tokens())
                            .as("prompt %d of seed %d", i, SEED)
                            .isEqualTo(expected.get(i));
                    assertThat(output.cachedTokens()).isEqualTo(prompts.get(i).length);
                }
                first = end;
            }
            prefill.awaitRest();
            decode.awaitRest();
            assertThat(decode.sum("baton:kv_lookup_failures")).isZero();
            assertThat(decode.sum("baton:kv_lookups")).isEqualTo(prompts.size() * tensor * pipeline);
            assertThat(prefill.sum("baton:kv_lookup_insert_failures")).isZero();
            // Each token but the first, which is sampled from the hidden state.
            assertThat(decode.generated.get()).isEqualTo(prompts.size() * (long) ANSWER_TOKENS);
            assertThat(decode.scheduledTokens.get()).isEqualTo(prompts.size() * (ANSWER_TOKENS - 1L));
        }
    }

    /** A prefill instance is asked for one sample only. */
    @Test
    void furtherSamplesAreComputedFromWhatTheFirstOneTook() throws Exception {
        int[] prompt = Ledgers.prompt(75, 9);
        int port = FreePorts.inARow(2);
        try (Side prefill = new Side(config(ParallelConfig.SINGLE)
                        .kvTransfer(connector(KvRole.PRODUCER, port))
                        .build());
                Side decode = new Side(config(ParallelConfig.SINGLE)
                        .kvTransfer(connector(KvRole.CONSUMER, port))
                        .build())) {
            tokens(prefill.ask("one", prompt, SamplingParams.greedy(1)));
            SamplingParams three = SamplingParams.builder()
                    .temperature(0)
                    .maxTokens(ANSWER_TOKENS)
                    .ignoreEos(true)
                    .n(3)
                    .build();
            RequestOutput output = decode.ask("three", prompt, three).get(90, TimeUnit.SECONDS);
            assertThat(output.completions()).hasSize(3).allSatisfy(each -> {
                assertThat(each.error()).isEmpty();
                assertThat(each.tokens())
                        .isEqualTo(output.completions().getFirst().tokens());
            });
            decode.awaitRest();
            assertThat(decode.sum("baton:kv_lookup_failures")).isZero();
            // Of two samples, what follows the last full block.
            assertThat(decode.scheduledTokens.get()).isEqualTo(3 * (ANSWER_TOKENS - 1) + 2 * (75 - 64));
        }
    }

    private static int[] tokens(Future<RequestOutput> output) throws Exception {
        RequestOutput done = output.get(90, TimeUnit.SECONDS);
        assertThat(done.completions().getFirst().error()).isEmpty();
        return done.tokens();
    }

    /** Two servers and a router; vLLM's test_disagg, and then each of the servers dies. */
    @Test
    void serversThatDieAreDoneWithoutAndFoundAgain() throws Exception {
        int port = FreePorts.inARow(2);
        Instance prefill = serve("pynccl-prefill", "kv_producer", 0, port);
        Instance decode = serve("pynccl-decode", "kv_consumer", 1, port);
        Instance alone = INSTANCES.serve("pynccl-alone", "--dtype", "float32");
        Instance router = INSTANCES.route("pynccl-router", List.of(prefill), List.of(decode));
        Duration deadline = Duration.ofMinutes(1);

        handsOver(router, prefill, decode, alone, 70);

        decode.kill();
        assertThat(prefill.complete(Ledgers.prompt(40, 1), 4).status()).isEqualTo(200);
        decode.restart();
        assertThat(decode.url()).isNotNull();
        Await.until(
                deadline,
                () -> "the router does not find it",
                () -> router.get("/health").status() == 200);
        handsOver(router, prefill, decode, alone, 90);

        // In the middle: what the consumer waits for does not come.
        int[] prompt = Ledgers.prompt(120, 3);
        ExecutorService clients = Executors.newVirtualThreadPerTaskExecutor();
        try (clients) {
            Future<Reply> waiting = clients.submit(() -> decode.complete(prompt, 4));
            Await.until(
                    deadline,
                    () -> "nobody waits for KV",
                    () -> decode.metric("vllm:num_requests_waiting", "")
                                    + decode.metric("vllm:num_requests_running", "")
                            > 0);
            prefill.kill();
            assertThat(waiting.get(60, TimeUnit.SECONDS).tokenIds())
                    .isEqualTo(alone.complete(prompt, 4).tokenIds());
        }
        assertThat(decode.metric("baton:kv_lookup_failures_total", "disconnected"))
                .isEqualTo(1);
        prefill.restart();
        assertThat(prefill.url()).isNotNull();
        Await.until(
                deadline,
                () -> "the router does not find it",
                () -> router.get("/health").status() == 200);
        handsOver(router, prefill, decode, alone, 110);
    }

    private static Instance serve(String name, String role, int rank, int port) throws IOException {
        return INSTANCES.serve(name, "--dtype", "float32", "--kv-transfer-config", """
                {"kv_connector": "PyNcclConnector", "kv_role": "%s", "kv_rank": %d, "kv_parallel_size": 2,
                 "kv_port": %d, "kv_buffer_size": "1e8", "kv_load_failure_policy": "recompute",
                 "kv_connector_extra_config": {"connect_wait_seconds": 2, "lookup_timeout_seconds": 60}}
                """.formatted(role, rank, port));
    }

    private static void handsOver(Instance router, Instance prefill, Instance decode, Instance alone, int length)
            throws Exception {
        int[] prompt = Ledgers.prompt(length, length);
        Await.until(
                Duration.ofMinutes(1),
                () -> "not connected\n" + decode.logTail(),
                () -> decode.log().lastIndexOf("Connected with the producer")
                                > decode.log().lastIndexOf("is gone")
                        && prefill.log().lastIndexOf("Connected with the consumer")
                                > prefill.log().lastIndexOf("is gone"));
        Prompts before = decode.prompts();
        Reply reply = router.complete(prompt, 5);
        assertThat(reply.status()).as(reply.body()).isEqualTo(200);
        assertThat(reply.tokenIds()).isEqualTo(alone.complete(prompt, 5).tokenIds());
        assertThat(decode.prompts().since(before)).isEqualTo(new Prompts(0, 0, length));
    }
}
