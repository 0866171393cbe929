package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.EngineSide.Asked;
import baton.cli.Instances.Instance;
import baton.cli.Instances.Prompts;
import baton.cli.Instances.Reply;
import baton.engine.RequestOutput;
import baton.engine.SamplingParams;
import baton.kv.FreePorts;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.testkit.Await;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
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

    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    private static EngineSide start(KvRole role, int port, int tensor, int pipeline, int budget) throws Exception {
        return new EngineSide(EngineSide.config(EngineSide.BLOCK, tensor, pipeline)
                .numBlocks(700)
                .maxNumSeqs(32)
                .maxNumBatchedTokens(budget)
                .kvTransfer(connector(role, port))
                .build());
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

    /** Some prompts are repeated, or share a prefix with earlier ones. */
    private static int[] prompt(Random random, List<Asked> before) {
        int length = 1 + random.nextInt(random.nextInt(4) == 0 ? 400 : 100);
        int[] earlier = before.isEmpty()
                ? Ledgers.prompt(length, 0)
                : before.get(random.nextInt(before.size())).prompt();
        return switch (random.nextInt(5)) {
            case 0 -> earlier;
            case 1 -> Arrays.copyOf(earlier, Math.max(1, earlier.length / 2));
            default -> Ledgers.prompt(length, random.nextInt(1_000_000));
        };
    }

    /** At 1 to 16 at once, and in another order on the consumer's side. */
    @ParameterizedTest(name = "TP={0} PP={1}, steps of {2} tokens")
    @CsvSource({"1, 1, 2048", "1, 1, 128", "2, 1, 2048", "1, 2, 2048"})
    void tokensAreThoseOfOneEngineAloneAndThePromptIsNotComputed(int tensor, int pipeline, int budget)
            throws Exception {
        List<List<Asked>> waves =
                EngineSide.askOneAlone(PROMPTS, SEED, MOST_AT_ONCE / 2, MOST_AT_ONCE, PyNcclHandoverTest::prompt);
        Random random = new Random(SEED);
        int port = FreePorts.inARow(2 * tensor * pipeline);
        try (EngineSide prefill = start(KvRole.PRODUCER, port, tensor, pipeline, budget);
                EngineSide decode = start(KvRole.CONSUMER, port, tensor, pipeline, budget)) {
            int number = 0;
            for (List<Asked> wave : waves) {
                List<Future<RequestOutput>> prefilled = new ArrayList<>();
                for (Asked asked : wave) {
                    prefilled.add(prefill.ask(
                            "prefill-" + number++, asked.prompt(), SamplingParams.greedy(1), Optional.empty()));
                }
                for (int i = 0; i < wave.size(); i++) {
                    assertThat(EngineSide.tokens(prefilled.get(i)))
                            .containsExactly(wave.get(i).answer()[0]);
                }
                List<Asked> shuffled = new ArrayList<>(wave);
                Collections.shuffle(shuffled, random);
                List<Future<RequestOutput>> decoded = new ArrayList<>();
                for (Asked asked : shuffled) {
                    decoded.add(decode.ask("decode-" + number++, asked.prompt(), EngineSide.ANSWER, Optional.empty()));
                }
                for (int i = 0; i < wave.size(); i++) {
                    Asked asked = shuffled.get(i);
                    RequestOutput output = EngineSide.check(decoded.get(i), asked, "a prompt of seed " + SEED);
                    assertThat(output.cachedTokens()).isEqualTo(asked.prompt().length);
                }
            }
            prefill.awaitRest();
            decode.awaitRest();
            decode.assertNone("baton:kv_lookup_failures");
            prefill.assertNone("baton:kv_lookup_insert_failures");
            assertThat(decode.sum("baton:kv_lookups")).isEqualTo(PROMPTS * tensor * pipeline);
            // Each token but the first, which is sampled from the hidden state.
            assertThat(decode.generatedTokens.get()).isEqualTo(PROMPTS * (long) EngineSide.ANSWER_TOKENS);
            assertThat(decode.scheduledTokens.get()).isEqualTo(PROMPTS * (EngineSide.ANSWER_TOKENS - 1L));
        }
    }

    /** A prefill instance is asked for one sample only. */
    @Test
    void furtherSamplesAreComputedFromTheFirstOnesBlocks() throws Exception {
        int[] prompt = Ledgers.prompt(75, 9);
        int port = FreePorts.inARow(2);
        try (EngineSide prefill = start(KvRole.PRODUCER, port, 1, 1, 2048);
                EngineSide decode = start(KvRole.CONSUMER, port, 1, 1, 2048)) {
            var _ = EngineSide.tokens(prefill.ask("one", prompt, SamplingParams.greedy(1), Optional.empty()));
            SamplingParams three = SamplingParams.builder()
                    .temperature(0)
                    .maxTokens(EngineSide.ANSWER_TOKENS)
                    .ignoreEos(true)
                    .n(3)
                    .build();
            RequestOutput output =
                    decode.ask("three", prompt, three, Optional.empty()).get(90, TimeUnit.SECONDS);
            assertThat(output.completions()).hasSize(3).allSatisfy(each -> {
                assertThat(each.error()).isEmpty();
                assertThat(each.tokens())
                        .isEqualTo(output.completions().getFirst().tokens());
            });
            decode.awaitRest();
            decode.assertNone("baton:kv_lookup_failures");
            // The tokens of two samples behind the last full block.
            assertThat(decode.scheduledTokens.get()).isEqualTo(3 * (EngineSide.ANSWER_TOKENS - 1) + 2 * (75 - 64));
        }
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

        // In the middle: the awaited entry does not come.
        int[] prompt = Ledgers.prompt(120, 3);
        ExecutorService clients = Executors.newVirtualThreadPerTaskExecutor();
        try (clients) {
            Future<Reply> waiting = clients.submit(() -> decode.complete(prompt, 4));
            Await.until(
                    deadline,
                    () -> "no request waits for KV",
                    () -> decode.metric("vllm:num_requests_waiting", "")
                                    + decode.metric("vllm:num_requests_running", "")
                            > 0);
            prefill.kill();
            assertThat(waiting.get(Instances.DEADLINE.toSeconds(), TimeUnit.SECONDS)
                            .tokenIds())
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
