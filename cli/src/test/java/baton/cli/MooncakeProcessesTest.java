package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Instances.Instance;
import baton.cli.Instances.Reply;
import baton.testkit.Await;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.MethodOrderer;
import org.junit.jupiter.api.Order;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestMethodOrder;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.RegisterExtension;
import tools.jackson.databind.node.ObjectNode;

/** Instances with {@code MooncakeConnector} and a router, each a process of its own: every answer is that of one instance alone. */
@Timeout(300)
@TestMethodOrder(MethodOrderer.OrderAnnotation.class)
@Tag("thorough")
class MooncakeProcessesTest {
    private static final int MAX_TOKENS = 8;
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
        alone = INSTANCES.serve("alone", "--dtype", "float32", "--no-enable-prefix-caching");
        prefill = serve("prefill", "kv_producer");
        decode = serve("decode", "kv_consumer");
        router = INSTANCES.route("router", List.of(prefill), List.of(decode), "--flow", "mooncake");
    }

    private static Instance serve(String name, String role) throws Exception {
        return INSTANCES.serve(
                name,
                "--dtype",
                "float32",
                TRANSFER + "kv_connector",
                "MooncakeConnector",
                TRANSFER + "kv_role",
                role,
                TRANSFER + "kv_load_failure_policy",
                "recompute",
                EXTRA + "mooncake_protocol",
                "tcp",
                EXTRA + "bootstrap_port",
                "0",
                EXTRA + "abort_request_timeout",
                "3",
                EXTRA + "transfer_timeout",
                "5",
                EXTRA + "handshake_timeout",
                "1");
    }

    private static int[] expected(int[] prompt) throws Exception {
        return alone.complete(prompt, MAX_TOKENS).tokenIds();
    }

    private static ObjectNode reference() throws Exception {
        return (ObjectNode) prefill.get("/kv_transfer_params").json().path("kv_transfer_params");
    }

    private static String decodeLeg(int[] prompt, ObjectNode params) {
        ObjectNode body = Instances.greedy(prompt, MAX_TOKENS);
        body.set("kv_transfer_params", params);
        return body.toString();
    }

    /** The first prompt too: the router has asked the prefill instance where its registry is. */
    @Test
    @Order(1)
    void promptsAreWrittenByThePrefillInstance() throws Exception {
        for (int i = 0; i < 6; i++) {
            int[] prompt = Ledgers.prompt(new int[] {200, 1, 16, 17, 300, 33}[i], 600 + i);
            Instances.Prompts before = decode.prompts();
            assertThat(router.complete(prompt, MAX_TOKENS).tokenIds())
                    .isEqualTo(expected(prompt))
                    .isNotEmpty();
            if (prompt.length > 1) {
                assertThat(decode.prompts().since(before).transferred()).isGreaterThanOrEqualTo(prompt.length - 1);
            }
        }
        assertThat(prefill.metric("vllm:mooncake_bytes_transferred_sum", "")).isPositive();
    }

    /** A registry that takes connections and never answers: the prompt is computed when the time is up. */
    @Test
    @Order(2)
    void aSilentRegistryIsNotWaitedForForEver() throws Exception {
        try (ServerSocket silent = new ServerSocket(0, 16, InetAddress.getLoopbackAddress())) {
            int[] prompt = Ledgers.prompt(100, 900);
            ObjectNode params = reference()
                    .put("remote_engine_id", "e")
                    .put("remote_bootstrap_addr", "http://127.0.0.1:" + silent.getLocalPort())
                    .put("transfer_id", "t");
            assertThat(decode.post("/v1/completions", decodeLeg(prompt, params)).tokenIds())
                    .isEqualTo(expected(prompt));
        }
    }

    /** Prefill gives the blocks back when the time is up, and goes on. */
    @Test
    @Order(3)
    void aDecodeInstanceThatDiesCostsPrefillNothing() throws Exception {
        Instance dies = serve("decode that dies", "kv_consumer");
        int[] prompt = Ledgers.prompt(150, 800);
        try (ExecutorService clients = Executors.newVirtualThreadPerTaskExecutor()) {
            String leg = decodeLeg(prompt, reference().put("transfer_id", "t"));
            Future<?> unusedReply = clients.submit(() -> dies.post("/v1/completions", leg));
            Await.until(
                    Instances.DEADLINE,
                    () -> "the request does not wait",
                    () -> dies.metric("vllm:num_requests_waiting", "") == 1);
            dies.kill();
        }
        ObjectNode leg = Instances.greedy(prompt, 1);
        leg.putObject("kv_transfer_params").put("do_remote_decode", true).put("transfer_id", "t");
        assertThat(prefill.post("/v1/completions", leg.toString())
                        .json()
                        .path("kv_transfer_params")
                        .path("transfer_id")
                        .asString())
                .isEqualTo("t");
        int[] next = Ledgers.prompt(120, 801);
        assertThat(router.complete(next, MAX_TOKENS).tokenIds()).isEqualTo(expected(next));
    }

    /** Requests that wait for a prefill instance that never gets its request, and then is killed; and one that comes later. */
    @Test
    @Order(4)
    void promptsOfAPrefillInstanceThatDiesAreComputed() throws Exception {
        ObjectNode reference = reference();
        try (ExecutorService clients = Executors.newVirtualThreadPerTaskExecutor()) {
            List<Future<Reply>> waiting = new ArrayList<>();
            for (int i = 0; i < 3; i++) {
                String leg = decodeLeg(
                        Ledgers.prompt(150, 700 + i), reference.deepCopy().put("transfer_id", "never-" + i));
                waiting.add(clients.submit(() -> decode.post("/v1/completions", leg)));
            }
            Await.until(
                    Instances.DEADLINE,
                    () -> "the requests do not wait",
                    () -> decode.metric("vllm:num_requests_waiting", "") == 3);
            prefill.kill();
            for (int i = 0; i < 3; i++) {
                assertThat(waiting.get(i)
                                .get(Instances.DEADLINE.toSeconds(), TimeUnit.SECONDS)
                                .tokenIds())
                        .isEqualTo(expected(Ledgers.prompt(150, 700 + i)));
            }
        }
        int[] prompt = Ledgers.prompt(150, 710);
        String leg = decodeLeg(
                prompt, reference.deepCopy().put("remote_engine_id", "new").put("transfer_id", "x"));
        assertThat(decode.post("/v1/completions", leg).tokenIds()).isEqualTo(expected(prompt));
    }
}
