package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Instances.Instance;
import baton.cli.Instances.Prompts;
import baton.cli.Instances.Reply;
import baton.testkit.Await;
import com.sun.net.httpserver.HttpServer;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.IntStream;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/** Both legs at once by the router: prefill pushes into a decode instance that already waits. */
@Tag("thorough")
class PushRouteTest {
    private static final int MAX_TOKENS = 12;

    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    private static Instance alone;
    private static Instance prefill;
    private static Instance decode;
    private static Instance router;

    @BeforeAll
    static void start() throws Exception {
        alone = INSTANCES.serve("alone", "--dtype", "float32", "--no-enable-prefix-caching");
        prefill = INSTANCES.serveBlocks("prefill", "NixlConnector", "kv_producer");
        decode = INSTANCES.serveBlocks("decode", "NixlConnector", "kv_consumer");
        router = INSTANCES.route(
                "router",
                List.of(prefill),
                List.of(decode),
                "--flow",
                "kv_transfer_params_push",
                "--prefill-fallback",
                "decode");
    }

    private static void assertTransferred(int[] prompt, int[] expected) throws Exception {
        Prompts before = decode.prompts();
        Reply reply = router.complete(prompt, MAX_TOKENS);
        assertThat(reply.tokenIds()).isEqualTo(expected).isNotEmpty();
        assertThat(reply.response().headers().firstValue("X-Baton-Local-Prefill"))
                .isEmpty();
        assertThat(decode.prompts().since(before).transferred()).isGreaterThanOrEqualTo(prompt.length - 1);
    }

    /** The first request of a router. */
    @Test
    void theFirstPromptOfARouterIsPushed() throws Exception {
        Instance fresh =
                INSTANCES.route("fresh router", List.of(prefill), List.of(decode), "--flow", "kv_transfer_params_push");
        assertWritten(fresh, Ledgers.prompt(200, 4998));
    }

    private static void assertWritten(Instance by, int[] prompt) throws Exception {
        int[] expected = alone.complete(prompt, MAX_TOKENS).tokenIds();
        double written = prefill.metric("vllm:nixl_bytes_transferred_sum", "");
        double read = decode.metric("vllm:nixl_bytes_transferred_sum", "");
        assertThat(by.complete(prompt, MAX_TOKENS).tokenIds()).isEqualTo(expected);
        Await.until(
                Instances.DEADLINE,
                () -> "the prefill instance has not counted its writes",
                () -> prefill.metric("vllm:nixl_bytes_transferred_sum", "") > written);
        assertThat(decode.metric("vllm:nixl_bytes_transferred_sum", "")).isEqualTo(read);
    }

    /** The instance has restarted quickly, before the router's next look at it. */
    @Test
    void promptsForAStoppedEngineAreComputedAtOnce() throws Exception {
        int[] prompt = Ledgers.prompt(120, 4997);
        int[] expected = alone.complete(prompt, MAX_TOKENS).tokenIds();
        ObjectNode params =
                (ObjectNode) prefill.get("/kv_transfer_params").json().path("kv_transfer_params");
        assertThat(params.path("do_remote_prefill").asBoolean()).isTrue();
        double stale = decode.metric("baton:kv_handoff_rejected_total", "stale");
        ObjectNode body = Instances.greedy(prompt, MAX_TOKENS);
        body.set("kv_transfer_params", params.put("remote_engine_id", "an engine before"));
        Reply reply = decode.post("/v1/completions", body.toString(), "X-Request-Id", "to-an-engine-before");
        assertThat(reply.tokenIds()).isEqualTo(expected);
        assertThat(decode.metric("baton:kv_handoff_rejected_total", "stale")).isEqualTo(stale + 1);
    }

    /** One that tells, and then only nonsense, is asked on; the log has it once. */
    @Test
    void aMalformedAnswerIsLoggedOnce() throws Exception {
        AtomicInteger asked = new AtomicInteger();
        HttpServer odd = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        odd.createContext("/", exchange -> {
            boolean tells = exchange.getRequestURI().getPath().equals("/kv_transfer_params");
            byte[] answer = (tells && asked.incrementAndGet() > 1
                            ? "nonsense"
                            : "{\"kv_transfer_params\":{\"remote_engine_id\":\"e\",\"remote_host\":\"127.0.0.1\",\"remote_port\":9}}")
                    .getBytes(StandardCharsets.UTF_8);
            exchange.sendResponseHeaders(200, answer.length);
            exchange.getResponseBody().write(answer);
            exchange.close();
        });
        odd.start();
        try {
            Instance wondering = INSTANCES.route(
                    "wondering router",
                    List.of(),
                    List.of(decode),
                    "--prefill",
                    "http://127.0.0.1:" + odd.getAddress().getPort(),
                    "--flow",
                    "kv_transfer_params_push");
            Await.until(
                    Instances.DEADLINE,
                    () -> "it is not asked on",
                    () -> wondering.metric("baton:router_asked_ahead_total", "failed") >= 2);
            assertThat(wondering.log().lines().filter(line -> line.contains("GET /kv_transfer_params: ")))
                    .singleElement()
                    .asString()
                    .contains(
                            "prefill instance http://127.0.0.1:"
                                    + odd.getAddress().getPort(),
                            "not valid JSON");
            assertThat(wondering.metric("baton:router_instances_up", "prefill")).isEqualTo(1);
        } finally {
            odd.stop(0);
        }
    }

    @Test
    void tokensAreThoseOfOneInstanceAloneAndPrefillHasWrittenTheBlocks() throws Exception {
        double written = prefill.metric("vllm:nixl_bytes_transferred_sum", "");
        double read = decode.metric("vllm:nixl_bytes_transferred_sum", "");
        for (int length : new int[] {17, 2, 16, 300}) {
            int[] prompt = Ledgers.prompt(length, 5000 + length);
            assertTransferred(prompt, alone.complete(prompt, MAX_TOKENS).tokenIds());
        }
        assertThat(prefill.metric("vllm:nixl_bytes_transferred_sum", "")).isGreaterThan(written);
        assertThat(decode.metric("vllm:nixl_bytes_transferred_sum", "")).isEqualTo(read);
    }

    @Test
    void manyAtOnceWithTheSameRequestId() throws Exception {
        List<int[]> prompts = IntStream.range(0, 12)
                .mapToObj(i -> Ledgers.prompt(20 + 13 * i, 600 + i))
                .toList();
        List<int[]> expected = new ArrayList<>();
        for (int[] prompt : prompts) {
            expected.add(alone.complete(prompt, MAX_TOKENS).tokenIds());
        }
        Prompts before = decode.prompts();
        List<CompletableFuture<HttpResponse<String>>> answers = new ArrayList<>();
        for (int[] prompt : prompts) {
            answers.add(router.postAndGoOn(
                    "/v1/completions", Instances.greedy(prompt, MAX_TOKENS), "X-Request-Id", "same"));
        }
        int tokens = 0;
        for (int i = 0; i < answers.size(); i++) {
            Reply reply = Reply.of(answers.get(i).get(Instances.DEADLINE.toSeconds(), TimeUnit.SECONDS));
            assertThat(reply.tokenIds()).as("prompt %s", i).isEqualTo(expected.get(i));
            assertThat(reply.response().headers().firstValue("X-Request-Id")).contains("same");
            tokens += prompts.get(i).length - 1;
        }
        assertThat(decode.prompts().since(before).transferred()).isGreaterThanOrEqualTo(tokens);
    }

    @Test
    void severalPromptsOfOneRequest() throws Exception {
        ObjectNode body = Instances.greedy(Ledgers.prompt(1, 1), MAX_TOKENS);
        ArrayNode prompts = body.putArray("prompt");
        prompts.add(Instances.JSON.valueToTree(Ledgers.prompt(90, 71)));
        prompts.add(Instances.JSON.valueToTree(Ledgers.prompt(40, 72)));
        JsonNode expected =
                alone.post("/v1/completions", body.toString()).json().path("choices");
        Prompts before = decode.prompts();
        Reply reply = router.post("/v1/completions", body.toString());
        assertThat(reply.status()).as(reply.body()).isEqualTo(200);
        for (int i = 0; i < 2; i++) {
            assertThat(Instances.ints(reply.json().path("choices").path(i).path("token_ids")))
                    .isEqualTo(Instances.ints(expected.path(i).path("token_ids")))
                    .isNotEmpty();
        }
        assertThat(decode.prompts().since(before).transferred()).isGreaterThanOrEqualTo(89 + 39);
    }

    /** One of them has its prompt's blocks written, the other computes it: neither waits for blocks that do not come. */
    @Test
    void severalSamplesOfOnePrompt() throws Exception {
        ObjectNode body = Instances.greedy(Ledgers.prompt(90, 73), MAX_TOKENS).put("n", 2);
        JsonNode expected =
                alone.post("/v1/completions", body.toString()).json().path("choices");
        for (int i = 0; i < 2; i++) {
            Reply reply = router.post("/v1/completions", body.toString());
            assertThat(reply.status()).as(reply.body()).isEqualTo(200);
            assertThat(reply.json().path("choices").size()).isEqualTo(2);
            for (int choice = 0; choice < 2; choice++) {
                assertThat(Instances.ints(
                                reply.json().path("choices").path(choice).path("token_ids")))
                        .isEqualTo(Instances.ints(expected.path(choice).path("token_ids")))
                        .isNotEmpty();
            }
        }
    }

    /** Blocks that are wanted and never come, and a client that does not wait for them, leave nothing behind. */
    @Test
    void aPrefillThatDiesIsReplacedByDecodeUntilItIsBack() throws Exception {
        int[] prompt = Ledgers.prompt(250, 81);
        int[] expected = alone.complete(prompt, MAX_TOKENS).tokenIds();
        assertTransferred(prompt, expected);

        prefill.freeze();
        CompletableFuture<HttpResponse<String>> waiting =
                router.postAndGoOn("/v1/completions", Instances.greedy(prompt, MAX_TOKENS));
        CompletableFuture<HttpResponse<String>> left =
                router.postAndGoOn("/v1/completions", Instances.greedy(Ledgers.prompt(250, 82), MAX_TOKENS));
        Await.until(
                Instances.DEADLINE,
                () -> "the decode instance has no request that waits",
                () -> decode.metric("vllm:num_requests_waiting", "") + decode.metric("vllm:num_requests_running", "")
                        == 2);
        left.cancel(true);
        prefill.kill();
        Reply reply = Reply.of(waiting.get(Instances.DEADLINE.toSeconds(), TimeUnit.SECONDS));
        assertThat(reply.tokenIds()).isEqualTo(expected);
        assertThat(reply.response().headers().firstValue("X-Baton-Local-Prefill"))
                .contains("failed");
        decode.awaitRest();

        double told = router.metric("baton:router_asked_ahead_total", "\"told\"");
        prefill.restart();
        Await.until(
                Instances.DEADLINE,
                () -> "the router has not heard from it",
                () -> router.metric("baton:router_asked_ahead_total", "\"told\"") > told);
        assertWritten(router, Ledgers.prompt(250, 83));
        int[] again = Ledgers.prompt(120, 84);
        assertTransferred(again, alone.complete(again, MAX_TOKENS).tokenIds());
    }
}
