package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.EngineSide.Asked;
import baton.engine.RequestOutput;
import baton.engine.SamplingParams;
import baton.kv.FreePorts;
import baton.kv.JsonFields;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.LoadFailurePolicy;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
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

    private static final List<List<Asked>> WAVES = new ArrayList<>();

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

        EngineSide start(KvRole role, int port) throws Exception {
            boolean prefills = role == KvRole.PRODUCER;
            KvTransferConfig transfer = KvTransferConfig.builder("MooncakeConnector", role)
                    .engineId("engine-" + role.configName())
                    .loadFailurePolicy(LoadFailurePolicy.FAIL)
                    .extra("mooncake_protocol", "tcp")
                    .extra("bootstrap_port", port)
                    .build();
            return new EngineSide(
                    EngineSide.config(EngineSide.BLOCK, prefills ? prefillRanks : decodeRanks, prefills ? stages : 1)
                            .maxModelLen(512)
                            .numBlocks(prefills ? 600 : blocks)
                            .maxNumSeqs(32)
                            .maxNumBatchedTokens(budget)
                            .kvTransfer(transfer)
                            .build());
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

    @BeforeAll
    static void askOneEngineAlone() throws Exception {
        WAVES.addAll(EngineSide.askOneAlone(PROMPTS, SEED, MOST_AT_ONCE / 2, MOST_AT_ONCE, EngineSide::anyOrAlike));
    }

    @AfterAll
    static void forget() {
        WAVES.clear();
    }

    /** Every other pair of requests is sent at once, the decode request first. */
    @ParameterizedTest(name = "{0}")
    @MethodSource("cells")
    void tokensAreThoseOfOneEngineAlone(Cell cell) throws Exception {
        int port = FreePorts.inARow(1);
        try (EngineSide prefill = cell.start(KvRole.PRODUCER, port);
                EngineSide decode = cell.start(KvRole.CONSUMER, FreePorts.inARow(1))) {
            int number = 0;
            for (List<Asked> wave : WAVES) {
                List<Future<RequestOutput>> decoded = new ArrayList<>();
                for (Asked asked : wave) {
                    String id = "cmpl-" + number++;
                    Optional<JsonFields> reference = Optional.of(reference(port, id));
                    if (number % 2 == 0) {
                        decoded.add(decode.ask(id, asked.prompt(), EngineSide.ANSWER, reference));
                        Future<RequestOutput> unusedAnswer = prefill(prefill, id, asked);
                    } else {
                        Optional<JsonFields> answer = prefill(prefill, id, asked)
                                .get(300, TimeUnit.SECONDS)
                                .kvTransferParams();
                        assertThat(answer).isEqualTo(reference);
                        decoded.add(decode.ask(id, asked.prompt(), EngineSide.ANSWER, answer));
                    }
                }
                for (int i = 0; i < wave.size(); i++) {
                    Asked asked = wave.get(i);
                    EngineSide.check(
                            decoded.get(i), asked, "%d tokens, -Dtests.seed=%d".formatted(asked.prompt().length, SEED));
                }
            }
            for (EngineSide side : List.of(prefill, decode)) {
                side.assertNone(
                        "baton:kv_handoff_rejected",
                        "baton:kv_unverified_loads",
                        "baton:mooncake_bad_messages",
                        "baton:mooncake_refused_requests",
                        "vllm:mooncake_num_failed_transfers",
                        "vllm:mooncake_num_failed_recvs");
            }
            assertThat(prefill.sum("vllm:mooncake_bytes_transferred")).isPositive();
        }
    }

    private static Future<RequestOutput> prefill(EngineSide prefill, String id, Asked asked) {
        return prefill.ask(
                id,
                asked.prompt(),
                SamplingParams.greedy(1),
                Optional.of(JsonFields.parse(
                        "kv_transfer_params", "{\"do_remote_decode\": true, \"transfer_id\": \"xfer-" + id + "\"}")));
    }

    /** The parameters that a router sends to a decode instance. */
    private static JsonFields reference(int port, String id) {
        return JsonFields.parse(
                "kv_transfer_params",
                "{\"do_remote_prefill\": true, \"do_remote_decode\": false, \"remote_engine_id\": \"engine-kv_producer\", "
                        + "\"remote_bootstrap_addr\": \"http://127.0.0.1:" + port + "\", \"transfer_id\": \"xfer-"
                        + id
                        + "\"}");
    }
}
