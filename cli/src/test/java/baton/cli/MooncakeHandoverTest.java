package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

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
import baton.kv.JsonFields;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.LoadFailurePolicy;
import baton.kv.connector.Measurement;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.Queue;
import java.util.Random;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * Prefill and decode instances with the real tiny model and {@code MooncakeConnector} between them: greedy tokens are those of one
 * engine alone. {@code -Dtests.prompts=N} asks N prompts in each constellation.
 */
@Timeout(600)
class MooncakeHandoverTest {
    private static final int PROMPTS = Integer.getInteger("tests.prompts", 12);
    private static final long SEED = Long.getLong("tests.seed", 6);
    private static final int MOST_AT_ONCE = 12;
    private static final int BLOCK = 16;
    private static final int[] BORDERS = {1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1};
    private static final SamplingParams ANSWER =
            SamplingParams.builder().temperature(0).maxTokens(6).ignoreEos(true).build();

    private static final List<List<Asked>> WAVES = new ArrayList<>();

    private record Asked(int[] prompt, int[] answer) {}

    /**
     * @param budget tokens computed in a step: below a prompt's length it is computed in chunks
     * @param blocks of the decode instance's pool: few are evicted again and again
     */
    record Cell(int prefillRanks, int decodeRanks, int stages, int budget, int blocks) {
        @Override
        public String toString() {
            return "TP %d to %d, PP %d to 1, %d tokens a step, %d blocks"
                    .formatted(prefillRanks, decodeRanks, stages, budget, blocks);
        }
    }

    static List<Cell> cells() {
        return List.of(
                new Cell(1, 1, 1, 2048, 600),
                new Cell(1, 1, 1, 100, 60),
                new Cell(2, 1, 1, 2048, 600),
                new Cell(1, 2, 1, 100, 600),
                new Cell(1, 1, 2, 2048, 600));
    }

    private static EngineConfigBuilder config(int ranks, int stages, int budget, int blocks) {
        // Sums in another order differ too much in bf16 where ranks share a model.
        return EngineConfig.of(Instances.MODEL)
                .dtype(DType.F32)
                .threads(1)
                .maxModelLen(512)
                .blockSize(BLOCK)
                .numBlocks(blocks)
                .maxNumSeqs(32)
                .maxNumBatchedTokens(budget)
                .parallel(
                        ranks * stages == 1
                                ? ParallelConfig.SINGLE
                                : new ParallelConfig(ranks, stages, ParallelConfig.SINGLE.cpuBinding()));
    }

    @BeforeAll
    static void askOneEngineAlone() throws Exception {
        Random random = new Random(SEED);
        EngineConfig alone = config(1, 1, 2048, 600).enablePrefixCaching(false).build();
        try (LocalEngine engine = LocalEngine.start(alone, EngineListener.NONE)) {
            for (int prompts = 0; prompts < PROMPTS; ) {
                int size = Math.min(PROMPTS - prompts, 1 + random.nextInt(MOST_AT_ONCE));
                List<int[]> wave = new ArrayList<>();
                List<Future<RequestOutput>> answers = new ArrayList<>();
                for (int i = 0; i < size; i++) {
                    int length = prompts < BORDERS.length ? BORDERS[prompts] : 1 + random.nextInt(300);
                    // Some begin alike, so that a part is in the prefix cache.
                    int[] prompt = Ledgers.prompt(length, random.nextBoolean() ? 7 : random.nextInt(1_000_000));
                    wave.add(prompt);
                    answers.add(submit(engine, "alone-" + prompts++, prompt, ANSWER, Optional.empty()));
                }
                List<Asked> asked = new ArrayList<>();
                for (int i = 0; i < size; i++) {
                    asked.add(new Asked(wave.get(i), tokens(answers.get(i).get(300, TimeUnit.SECONDS))));
                }
                WAVES.add(asked);
            }
        }
    }

    @AfterAll
    static void forget() {
        WAVES.clear();
    }

    /** Every other pair of requests is sent at once, the decode request first. */
    @ParameterizedTest(name = "{0}")
    @MethodSource("cells")
    void tokensAreThoseOfOneEngineAlone(Cell cell) throws Exception {
        try (Side prefill = new Side(cell, KvRole.PRODUCER);
                Side decode = new Side(cell, KvRole.CONSUMER)) {
            int number = 0;
            for (List<Asked> wave : WAVES) {
                List<Future<RequestOutput>> decoded = new ArrayList<>();
                List<Asked> order = new ArrayList<>();
                for (Asked asked : wave) {
                    String id = "cmpl-" + number++;
                    if (number % 2 == 0) {
                        decoded.add(
                                submit(decode.engine, id, asked.prompt, ANSWER, Optional.of(prefill.reference(id))));
                        Future<RequestOutput> unusedAnswer = prefill.prefill(id, asked.prompt);
                    } else {
                        JsonFields answer = prefill.prefill(id, asked.prompt)
                                .get(300, TimeUnit.SECONDS)
                                .kvTransferParams()
                                .orElseThrow();
                        assertThat(answer).isEqualTo(prefill.reference(id));
                        decoded.add(submit(decode.engine, id, asked.prompt, ANSWER, Optional.of(answer)));
                    }
                    order.add(asked);
                }
                for (int i = 0; i < order.size(); i++) {
                    RequestOutput output = decoded.get(i).get(300, TimeUnit.SECONDS);
                    int[] prompt = order.get(i).prompt;
                    String what = "%d tokens, -Dtests.seed=%d".formatted(prompt.length, SEED);
                    assertThat(tokens(output)).as(what).isEqualTo(order.get(i).answer);
                    assertThat(prompt.length - output.cachedTokens())
                            .as("computed of " + what)
                            .isLessThanOrEqualTo(1);
                }
            }
            for (Side side : List.of(prefill, decode)) {
                for (String trouble : List.of(
                        "baton:kv_handoff_rejected",
                        "baton:kv_unverified_loads",
                        "baton:mooncake_bad_messages",
                        "baton:mooncake_refused_requests",
                        "vllm:mooncake_num_failed_transfers",
                        "vllm:mooncake_num_failed_recvs")) {
                    assertThat(side.sum(trouble)).as("%s of %s", trouble, cell).isZero();
                }
            }
            assertThat(prefill.sum("vllm:mooncake_bytes_transferred")).isPositive();
        }
    }

    private static Future<RequestOutput> submit(
            LocalEngine engine, String id, int[] prompt, SamplingParams sampling, Optional<JsonFields> params) {
        GenerationRequest request = new GenerationRequest(id, prompt, sampling, params, Optional.empty(), 0);
        GenerationCollector collector = new GenerationCollector(request);
        engine.submit(request, collector);
        return collector.result();
    }

    private static int[] tokens(RequestOutput output) {
        assertThat(output.completions().getFirst().error()).isEmpty();
        return output.tokens();
    }

    private static final class Side implements AutoCloseable {
        private final LocalEngine engine;
        private final int port;
        private final Queue<Measurement> measured = new ConcurrentLinkedQueue<>();

        Side(Cell cell, KvRole role) throws IOException {
            boolean prefills = role == KvRole.PRODUCER;
            port = FreePorts.inARow(1);
            KvTransferConfig transfer = KvTransferConfig.builder("MooncakeConnector", role)
                    .engineId("engine-" + role.configName())
                    .loadFailurePolicy(LoadFailurePolicy.FAIL)
                    .extra("mooncake_protocol", "tcp")
                    .extra("bootstrap_port", port)
                    .build();
            int ranks = prefills ? cell.prefillRanks : cell.decodeRanks;
            engine = LocalEngine.start(
                    config(ranks, prefills ? cell.stages : 1, cell.budget, prefills ? 600 : cell.blocks)
                            .kvTransfer(transfer)
                            .build(),
                    new EngineListener() {
                        @Override
                        public void onMeasurements(List<Measurement> measurements) {
                            measured.addAll(measurements);
                        }
                    });
        }

        Future<RequestOutput> prefill(String id, int[] prompt) {
            return submit(
                    engine,
                    id,
                    prompt,
                    SamplingParams.greedy(1),
                    Optional.of(JsonFields.parse(
                            "kv_transfer_params",
                            "{\"do_remote_decode\": true, \"transfer_id\": \"xfer-" + id + "\"}")));
        }

        /** What a router sends to a decode instance. */
        JsonFields reference(String id) {
            return JsonFields.parse(
                    "kv_transfer_params",
                    "{\"do_remote_prefill\": true, \"do_remote_decode\": false, \"remote_engine_id\": \"engine-kv_producer\", "
                            + "\"remote_bootstrap_addr\": \"http://127.0.0.1:" + port + "\", \"transfer_id\": \"xfer-"
                            + id
                            + "\"}");
        }

        double sum(String name) {
            return measured.stream()
                    .filter(each -> each.name().equals(name))
                    .mapToDouble(Measurement::value)
                    .sum();
        }

        @Override
        public void close() {
            engine.close();
        }
    }
}
