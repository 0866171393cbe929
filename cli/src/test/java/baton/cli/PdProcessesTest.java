package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Instances.Instance;
import baton.cli.Instances.Reply;
import baton.kv.FreePorts;
import baton.testkit.Await;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.MethodOrderer;
import org.junit.jupiter.api.Order;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestMethodOrder;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.RegisterExtension;
import tools.jackson.databind.node.ObjectNode;

/**
 * Instances with {@code LMCacheConnectorV1} in LMCache's prefill/decode mode and a router, each a process of its own: every answer is that of
 * one instance alone. Messages and blocks are encrypted.
 */
@Timeout(300)
@TestMethodOrder(MethodOrderer.OrderAnnotation.class)
@Tag("thorough")
class PdProcessesTest {
    private static final int PROMPTS = 30;
    private static final int MAX_TOKENS = 8;
    private static final int BLOCK = 16;
    private static final String TRANSFER = "--kv-transfer-config.";
    private static final String EXTRA = TRANSFER + "kv_connector_extra_config.";

    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    private static Instance alone;
    private static Instance prefill;
    private static Instance decode;
    private static Instance router;

    @BeforeAll
    static void start() throws Exception {
        int port = FreePorts.inARow(1);
        alone = INSTANCES.serve("alone", "--dtype", "float32", "--no-enable-prefix-caching");
        // Prompts of more than 64 tokens are computed in chunks.
        prefill = serve(
                "prefill", "kv_producer", "sender", port, "--max-num-batched-tokens", "64", "--max-num-seqs", "16");
        decode = serve("decode", "kv_consumer", "receiver", port);
        router = INSTANCES.route("router", List.of(prefill), List.of(decode), "--flow", "content-keyed");
    }

    private static Instance serve(String name, String role, String pdRole, int port, String... options)
            throws Exception {
        List<String> all = new ArrayList<>(List.of(
                "--dtype",
                "float32",
                "--block-size",
                Integer.toString(BLOCK),
                TRANSFER + "kv_connector",
                "LMCacheConnectorV1",
                TRANSFER + "kv_role",
                role,
                EXTRA + "enable_pd",
                "true",
                EXTRA + "pd_role",
                pdRole,
                EXTRA + "pd_buffer_size",
                "67108864",
                EXTRA + "pd_buffer_device",
                "cpu",
                EXTRA + "pd_peer_host",
                "127.0.0.1",
                EXTRA + "pd_peer_init_port",
                Integer.toString(port),
                EXTRA + "blocking_timeout_secs",
                "3",
                EXTRA + "transport",
                "tcp",
                "--kv-auth-secret-file",
                Files.writeString(INSTANCES.directory("secret").resolve("secret"), "a secret of all instances")
                        .toString(),
                "--kv-encryption",
                "required"));
        all.addAll(List.of(options));
        return INSTANCES.serve(name, all.toArray(String[]::new));
    }

    private static int[] expected(int[] prompt) throws Exception {
        return alone.complete(prompt, MAX_TOKENS).tokenIds();
    }

    @Test
    @Order(1)
    void allFullBlocksOfAPromptComeFromThePrefillInstance() throws Exception {
        Random lengths = new Random(5);
        for (int i = 0; i < PROMPTS; i++) {
            int length = i < 4 ? new int[] {1, BLOCK, BLOCK + 1, 4 * BLOCK}[i] : 1 + lengths.nextInt(300);
            int[] prompt = Ledgers.prompt(length, 600 + i);
            Instances.Prompts before = decode.prompts();
            assertThat(router.complete(prompt, MAX_TOKENS).tokenIds())
                    .as("%d tokens", length)
                    .isEqualTo(expected(prompt))
                    .isNotEmpty();
            Instances.Prompts since = decode.prompts().since(before);
            // The last token is computed in any case.
            assertThat(since.computed()).as("%d tokens", length).isLessThanOrEqualTo(Math.max(1, length % BLOCK));
        }
        assertThat(decode.metric("baton:kv_pd_blocks_total", "received")).isPositive();
        assertThat(prefill.metric("baton:kv_pd_blocks_total", "failed")).isZero();
        assertThat(decode.metric("baton:kv_handoff_rejected_total", "corrupt")).isZero();
    }

    /** Blocks that the receiver has already are not read again. */
    @Test
    @Order(2)
    void aPrefixThatTheDecodeInstanceHasIsNotMovedAgain() throws Exception {
        int[] prompt = Ledgers.prompt(160, 900);
        int[] first = router.complete(prompt, MAX_TOKENS).tokenIds();
        double received = decode.metric("baton:kv_pd_blocks_total", "received");
        assertThat(router.complete(prompt, MAX_TOKENS).tokenIds()).isEqualTo(first);
        assertThat(decode.metric("baton:kv_pd_blocks_total", "received")).isEqualTo(received);
    }

    /** Prompts under way end as they can; prefill serves on, and finds the next decode instance at the same address. */
    @Test
    @Order(3)
    void aDecodeInstanceThatDiesCostsPrefillNothing() throws Exception {
        try (ExecutorService clients = Executors.newVirtualThreadPerTaskExecutor()) {
            List<Future<Reply>> waiting = new ArrayList<>();
            for (int i = 0; i < 6; i++) {
                ObjectNode leg = Instances.greedy(Ledgers.prompt(280, 700 + i), 1);
                waiting.add(clients.submit(() -> prefill.post("/v1/completions", leg.toString())));
            }
            decode.kill();
            for (Future<Reply> each : waiting) {
                assertThat(each.get(Instances.DEADLINE.toSeconds(), TimeUnit.SECONDS)
                                .status())
                        .isEqualTo(200);
            }
        }
        prefill.awaitRest();
        decode.restart();
        var _ = decode.url();
        AtomicInteger asked = new AtomicInteger();
        Await.until(Instances.DEADLINE, () -> "no block comes to the decode instance that was started again", () -> {
            int[] next = Ledgers.prompt(100, 1000 + asked.incrementAndGet());
            return router.complete(next, 1).status() == 200
                    && decode.metric("baton:kv_pd_blocks_total", "received") > 0;
        });
        int[] prompt = Ledgers.prompt(200, 710);
        assertThat(router.complete(prompt, MAX_TOKENS).tokenIds()).isEqualTo(expected(prompt));
    }

    /** Requests wait for blocks of a prefill instance that is gone, as long as they may, and are computed. */
    @Test
    @Order(4)
    void promptsOfAPrefillInstanceThatDiesAreComputed() throws Exception {
        prefill.kill();
        int[] prompt = Ledgers.prompt(150, 800);
        ObjectNode leg = Instances.greedy(prompt, MAX_TOKENS);
        leg.putObject("kv_transfer_params").put("lmcache.pd_transfer", "never");
        assertThat(decode.post("/v1/completions", leg.toString()).tokenIds()).isEqualTo(expected(prompt));
        int[] without = Ledgers.prompt(150, 801);
        assertThat(decode.complete(without, MAX_TOKENS).tokenIds()).isEqualTo(expected(without));
    }
}
