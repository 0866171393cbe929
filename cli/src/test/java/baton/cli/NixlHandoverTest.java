package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Instances.Instance;
import baton.cli.Instances.Prompts;
import baton.cli.Instances.Reply;
import baton.memory.Platform;
import baton.testkit.Await;
import java.io.BufferedReader;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.MethodSource;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * Prefill and decode in processes of their own, blocks read from memory to memory: greedy tokens are those of one instance alone,
 * and the decode instance's metrics say where the prompt came from. {@code -Dtests.prompts=N} asks N prompts at random too.
 */
@Tag("thorough")
class NixlHandoverTest {
    private static final int MAX_TOKENS = 12;
    private static final int BLOCK = 16;
    private static final String EXTRA = "--kv-transfer-config.kv_connector_extra_config.";

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
        router = route("router", prefill, decode);
    }

    private static Instance serve(String name, String role, String... more) throws Exception {
        return INSTANCES.serveBlocks(name, "NixlConnector", role, more);
    }

    private static Instance route(String name, Instance prefill, Instance decode) throws Exception {
        return INSTANCES.route(name, List.of(prefill), List.of(decode), "--flow", "kv_transfer_params");
    }

    static IntStream lengths() {
        return IntStream.of(1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1, 1009);
    }

    @ParameterizedTest(name = "{0} tokens")
    @MethodSource("lengths")
    void oneAtATime(int length) throws Exception {
        int[] prompt = Ledgers.prompt(length, 1000 + length);
        int[] expected = alone.complete(prompt, MAX_TOKENS).tokenIds();
        Prompts prefillBefore = prefill.prompts();
        Prompts decodeBefore = decode.prompts();

        Reply reply = router.complete(prompt, MAX_TOKENS);

        assertThat(reply.tokenIds()).isEqualTo(expected).isNotEmpty();
        assertThat(prefill.prompts().since(prefillBefore)).isEqualTo(new Prompts(length, 0, 0));
        Prompts decoded = decode.prompts().since(decodeBefore);
        // The last token is computed where it decodes.
        assertThat(decoded.transferred()).isGreaterThanOrEqualTo(length - 1);
        assertThat(decoded.computed()).isLessThanOrEqualTo(1);
    }

    /** Some share their first blocks with others, which both sides may have cached. */
    @Test
    void sixteenAtOnceWithSharedPrefixesStreamedAndNot() throws Exception {
        int[] shared = Ledgers.prompt(5 * BLOCK, 77);
        List<int[]> prompts = IntStream.range(0, 16)
                .mapToObj(i -> {
                    int[] own = Ledgers.prompt(3 + 11 * i, 200 + i);
                    return i % 2 == 0
                            ? own
                            : IntStream.concat(Arrays.stream(shared), Arrays.stream(own))
                                    .toArray();
                })
                .toList();
        assertSameAsAlone(prompts);
    }

    @Test
    void randomPromptsAsManyAsAskedFor() throws Exception {
        int count = Integer.getInteger("tests.prompts", 24);
        long seed = Long.getLong("tests.seed", 4);
        Random random = new Random(seed);
        int[] shared = Ledgers.prompt(400, 3);
        for (int done = 0; done < count; done += 16) {
            List<int[]> prompts = new ArrayList<>();
            for (int i = 0; i < Math.min(16, count - done); i++) {
                int border = BLOCK * (1 + random.nextInt(12)) + random.nextInt(3) - 1;
                int[] own = Ledgers.prompt(border, random.nextInt(1_000_000));
                prompts.add(
                        random.nextInt(3) > 0
                                ? own
                                : IntStream.concat(
                                                Arrays.stream(shared).limit(random.nextInt(shared.length)),
                                                Arrays.stream(own))
                                        .toArray());
            }
            assertSameAsAlone(prompts);
        }
    }

    private static void assertSameAsAlone(List<int[]> prompts) throws Exception {
        Prompts before = decode.prompts();
        List<int[]> expected = new ArrayList<>();
        List<int[]> answers = new ArrayList<>();
        try (ExecutorService clients = Executors.newVirtualThreadPerTaskExecutor()) {
            List<Future<Reply>> alones = prompts.stream()
                    .map(prompt -> clients.submit(() -> alone.complete(prompt, MAX_TOKENS)))
                    .toList();
            for (Future<Reply> reply : alones) {
                expected.add(reply.get(120, TimeUnit.SECONDS).tokenIds());
            }
            List<Future<int[]>> replies = IntStream.range(0, prompts.size())
                    .mapToObj(i -> clients.submit(() -> i % 3 == 0
                            ? streamed(prompts.get(i))
                            : router.complete(prompts.get(i), MAX_TOKENS).tokenIds()))
                    .toList();
            for (Future<int[]> reply : replies) {
                answers.add(reply.get(120, TimeUnit.SECONDS));
            }
        }
        assertThat(answers).containsExactlyElementsOf(expected);
        Prompts decoded = decode.prompts().since(before);
        assertThat(decoded.computed()).isLessThanOrEqualTo(prompts.size());
        assertThat(decoded.transferred()).isPositive();
    }

    private static int[] streamed(int[] prompt) throws Exception {
        List<Integer> tokens = new ArrayList<>();
        HttpResponse<InputStream> answer = router.stream("/v1/completions", Instances.greedy(prompt, MAX_TOKENS));
        assertThat(answer.statusCode()).isEqualTo(200);
        try (BufferedReader reader = new BufferedReader(new InputStreamReader(answer.body(), StandardCharsets.UTF_8))) {
            for (String line = reader.readLine(); line != null; line = reader.readLine()) {
                if (line.startsWith("data: {")) {
                    JsonNode ids = Instances.JSON
                            .readTree(line.substring("data: ".length()))
                            .path("choices")
                            .path(0)
                            .path("token_ids");
                    ids.valueStream().forEach(id -> tokens.add(id.asInt()));
                }
            }
        }
        return tokens.stream().mapToInt(Integer::intValue).toArray();
    }

    /** The bodies that vLLM's toy_proxy_server.py sends. */
    @Test
    void vllmsProxyCanDriveTheInstances() throws Exception {
        int[] prompt = Ledgers.prompt(5 * BLOCK + 3, 9);
        int[] expected = alone.complete(prompt, MAX_TOKENS).tokenIds();
        Prompts before = decode.prompts();

        JsonNode params = prefillAsVllmsProxyDoes(prompt);
        assertThat(params.path("do_remote_prefill").asBoolean()).isTrue();
        assertThat(params.path("do_remote_decode").asBoolean()).isFalse();
        assertThat(params.path("remote_block_ids").path(0).size()).isEqualTo(6);
        assertThat(params.path("remote_host").asString()).isEqualTo("127.0.0.1");
        ObjectNode body = Instances.greedy(prompt, MAX_TOKENS);
        body.set("kv_transfer_params", params);
        Reply reply = decode.post("/v1/completions", body.toString(), "X-Request-Id", "proxy-1");

        assertThat(reply.tokenIds()).isEqualTo(expected);
        assertThat(decode.prompts().since(before).transferred()).isGreaterThanOrEqualTo(prompt.length - 1);
    }

    private static JsonNode prefillAsVllmsProxyDoes(int[] prompt) throws Exception {
        ObjectNode body = Instances.greedy(prompt, 1).put("stream", false).put("max_completion_tokens", 1);
        body.set("kv_transfer_params", Instances.JSON.readTree("""
                {"do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": null,
                 "remote_block_ids": null, "remote_host": null, "remote_port": null}"""));
        Reply reply = prefill.post("/v1/completions", body.toString(), "X-Request-Id", "proxy-1");
        assertThat(reply.status()).as(reply.body()).isEqualTo(200);
        return reply.json().path("kv_transfer_params");
    }

    @Test
    void chatRequestsAreHandedOver() throws Exception {
        ObjectNode body =
                Instances.JSON.createObjectNode().put("temperature", 0).put("max_tokens", 24);
        body.putArray("messages")
                .addObject()
                .put("role", "user")
                .put("content", "The age of Nora is 87.\nTomas lives in Harrow.\n\nIn which town does Tomas live?");
        Prompts before = decode.prompts();
        Reply reply = router.post("/v1/chat/completions", body.toString());
        assertThat(reply.choice().path("message").path("content").asString())
                .isEqualTo(alone.post("/v1/chat/completions", body.toString())
                        .choice()
                        .path("message")
                        .path("content")
                        .asString())
                .contains("Harrow");
        assertThat(decode.prompts().since(before).transferred()).isPositive();
    }

    /** Each feature of Linux or x86 has a fallback, which is logged once and changes no answer. */
    @Test
    void instancesHandOverOnPlatformsWithoutLinuxFeatures() throws Exception {
        String platform = "-D" + Platform.PROPERTY + "=macosx-arm64";
        Instance from = serve("mac-prefill", "kv_producer", platform);
        Instance to = serve("mac-decode", "kv_consumer", platform);
        Instance front = route("mac-router", from, to);
        int[] prompt = Ledgers.prompt(300, 41);
        assertThat(front.complete(prompt, MAX_TOKENS).tokenIds())
                .isEqualTo(alone.complete(prompt, MAX_TOKENS).tokenIds());
        assertThat(to.prompts().transferred()).isGreaterThanOrEqualTo(prompt.length - 1);
        for (Instance each : List.of(from, to)) {
            assertThat(each.log())
                    .containsOnlyOnce("memory cannot be mapped by other processes of this host on macosx-arm64")
                    .containsOnlyOnce("memory is copied by Java: macosx-arm64 here")
                    .containsOnlyOnce("on macosx-arm64 the JVM allocates memory");
        }
    }

    /** The blocks of a hand-off that is never read, and of one during which the reader is killed. */
    @Test
    void blocksThatAreNeverReadOrLoseTheirReaderAreFreed() throws Exception {
        Instance lender = serve("lender", "kv_producer", EXTRA + "kv_lease_duration", "3");
        Instance killedReader = serve("killed reader", "kv_consumer");
        Instance front = route("front", lender, killedReader);
        int[] prompt = Ledgers.prompt(300, 21);
        int[] expected = alone.complete(prompt, MAX_TOKENS).tokenIds();
        assertThat(front.complete(prompt, MAX_TOKENS).tokenIds()).isEqualTo(expected);
        lender.awaitRest();

        ObjectNode body = Instances.greedy(Ledgers.prompt(200, 22), 1800).put("ignore_eos", true);
        HttpResponse<InputStream> answer = front.stream("/v1/completions", body);
        assertThat(answer.statusCode()).isEqualTo(200);
        killedReader.kill();
        answer.body().close();
        lender.awaitRest();

        // A prefill leg without its decode leg.
        ObjectNode lonely = Instances.greedy(prompt, 1);
        lonely.set("kv_transfer_params", Instances.JSON.readTree("{\"do_remote_decode\": true}"));
        assertThat(lender.post("/v1/completions", lonely.toString()).status()).isEqualTo(200);
        lender.awaitRest();

        killedReader.restart();
        Await.until(
                Duration.ofSeconds(60),
                () -> "the router does not see the restarted instance",
                () -> front.metric("baton:router_instances_up", "") == 2);
        assertThat(front.complete(prompt, MAX_TOKENS).tokenIds()).isEqualTo(expected);
    }

    /** The prefill instance has the default lease of 30 s. */
    @Test
    void blocksThatAKilledReaderHasNotReadAreFreedBeforeTheirLeaseExpires() throws Exception {
        Instance busy = serve("busy", "kv_consumer", "--max-num-seqs", "1");
        Instance front = route("busy-router", prefill, busy);
        // They know each other.
        front.complete(Ledgers.prompt(100, 60), 1);
        HttpResponse<InputStream> running = busy.stream(
                "/v1/completions",
                Instances.greedy(Ledgers.prompt(20, 61), 1900).put("ignore_eos", true));
        assertThat(running.statusCode()).isEqualTo(200);
        double orphaned = prefill.metric("baton:kv_orphaned_leases_total", "");
        try (ExecutorService clients = Executors.newVirtualThreadPerTaskExecutor()) {
            Future<Reply> waiting = clients.submit(() -> front.complete(Ledgers.prompt(200, 62), 1));
            Await.until(
                    Instances.DEADLINE, () -> "nothing waits", () -> busy.metric("vllm:num_requests_waiting", "") == 1);
            // A few steps later the reader has sent its heartbeat.
            double tokens = busy.metric("vllm:generation_tokens_total", "");
            Await.until(
                    Instances.DEADLINE,
                    () -> "it stands still",
                    () -> busy.metric("vllm:generation_tokens_total", "") > tokens + 8);
            assertThat(prefill.metric("baton:kv_blocks_used", "")).isPositive();
            busy.kill();
            prefill.awaitRest();
            assertThat(prefill.metric("baton:kv_orphaned_leases_total", "")).isEqualTo(orphaned + 1);
            // The router has it served by the next instance.
            busy.restart();
            assertThat(waiting.get(Instances.DEADLINE.toSeconds(), TimeUnit.SECONDS)
                            .status())
                    .isEqualTo(200);
        }
        running.body().close();
    }

    /** Errors of the server, and errors of the engine. */
    @ParameterizedTest(name = "{0}={1}")
    @CsvSource({"temperature, -1", "max_tokens, 1000000", "logit_bias, '{\"1000000\": 1}'"})
    void aDecodeRequestThatIsRefusedGivesTheBlocksBackAtOnce(String field, String value) throws Exception {
        ObjectNode first = Instances.greedy(Ledgers.prompt(200, 51), 1);
        first.set("kv_transfer_params", Instances.JSON.readTree("{\"do_remote_decode\": true}"));
        JsonNode params =
                prefill.post("/v1/completions", first.toString()).json().path("kv_transfer_params");
        double expired = prefill.metric("vllm:nixl_num_kv_expired_reqs_total", "");
        ObjectNode second = Instances.greedy(Ledgers.prompt(200, 51), MAX_TOKENS);
        second.set("kv_transfer_params", params);
        second.set(field, Instances.JSON.readTree(value));
        assertThat(decode.post("/v1/completions", second.toString()).status()).isEqualTo(400);
        prefill.awaitRest();
        assertThat(prefill.metric("vllm:nixl_num_kv_expired_reqs_total", "")).isEqualTo(expired);
    }

    /** A prefill instance that dies with its blocks asked for, and one that comes back in another life on the same address. */
    @Test
    void promptsOfKilledPrefillInstancesAreRecomputed() throws Exception {
        Instance dying = serve("dying", "kv_producer");
        int[] prompt = Ledgers.prompt(300, 31);
        int[] expected = alone.complete(prompt, MAX_TOKENS).tokenIds();
        ObjectNode first = Instances.greedy(prompt, 1);
        first.set("kv_transfer_params", Instances.JSON.readTree("{\"do_remote_decode\": true}"));
        JsonNode params = dying.post("/v1/completions", first.toString()).json().path("kv_transfer_params");
        assertThat(params.isObject()).isTrue();
        dying.kill();

        Prompts before = decode.prompts();
        ObjectNode second = Instances.greedy(prompt, MAX_TOKENS);
        second.set("kv_transfer_params", params);
        assertThat(decode.post("/v1/completions", second.toString()).tokenIds()).isEqualTo(expected);
        assertThat(decode.prompts().since(before).transferred()).isZero();
    }

    /** A drained prefill instance waits for the reader of its blocks, and refuses new requests. */
    @Test
    void aDrainedPrefillInstanceFinishesItsHandoffs() throws Exception {
        Instance leaving = serve("leaving", "kv_producer");
        int[] prompt = Ledgers.prompt(200, 41);
        int[] expected = alone.complete(prompt, MAX_TOKENS).tokenIds();
        ObjectNode first = Instances.greedy(prompt, 1);
        first.set("kv_transfer_params", Instances.JSON.readTree("{\"do_remote_decode\": true}"));
        JsonNode params =
                leaving.post("/v1/completions", first.toString()).json().path("kv_transfer_params");
        leaving.terminate();
        Await.until(
                Instances.DEADLINE,
                () -> "it takes requests",
                () -> leaving.get("/health").status() == 503);
        Reply refused = leaving.complete(prompt, 1);
        assertThat(refused.status()).isEqualTo(503);
        assertThat(refused.response().headers().firstValue("Retry-After")).isPresent();

        Prompts before = decode.prompts();
        ObjectNode second = Instances.greedy(prompt, MAX_TOKENS);
        second.set("kv_transfer_params", params);
        assertThat(decode.post("/v1/completions", second.toString()).tokenIds()).isEqualTo(expected);
        assertThat(decode.prompts().since(before).transferred()).isGreaterThanOrEqualTo(prompt.length - 1);
        assertThat(leaving.awaitExit()).isZero();
    }
}
