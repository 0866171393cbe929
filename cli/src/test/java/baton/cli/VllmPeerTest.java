package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Instances.Instance;
import baton.cli.Instances.Prompts;
import baton.cli.Instances.Reply;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * Hand-overs with a real vLLM 0.32 in both directions, behind Baton's router: greedy tokens are those of vLLM alone, in fp32. {@code
 * mvn -Ppeers -pl cli -am package} runs it, with {@code -Dtests.prompts=N} N prompts in each direction.
 */
@Tag("peers")
@Timeout(1200)
class VllmPeerTest {
    private static final int PROMPTS = Integer.getInteger("tests.prompts", 100);
    private static final long SEED = Long.getLong("tests.seed", 14);
    private static final int MAX_TOKENS = 12;
    private static final String EXTRA = "--kv-transfer-config.kv_connector_extra_config.";
    private static final String DO_REMOTE_DECODE = """
            {"do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": null,
             "remote_block_ids": null, "remote_host": null, "remote_port": null}""";

    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    @SuppressWarnings("NullAway.Init")
    private static Vllm vllm;

    @SuppressWarnings("NullAway.Init")
    private static Instance prefill;

    @SuppressWarnings("NullAway.Init")
    private static Instance decode;

    @SuppressWarnings("NullAway.Init")
    private static Instance toVllm;

    @SuppressWarnings("NullAway.Init")
    private static Instance fromVllm;

    @SuppressWarnings("NullAway.Init")
    private static String library;

    @SuppressWarnings("NullAway.Init")
    private static String version;

    private static int salts;

    @BeforeAll
    static void start() throws Exception {
        Path environment = Vllm.assumeInstalled();
        library = Vllm.nixlLibrary(environment).orElseThrow().toString();
        vllm = Vllm.start(environment, INSTANCES.directory("vllm").resolve("log"), "NixlConnector", 0);
        vllm.awaitReady();
        version = vllm.version();
        prefill = serve("prefill", "kv_producer");
        decode = serve("decode", "kv_consumer", EXTRA + "vllm_cpu_attn_isa", "vec");
        toVllm = INSTANCES.route(
                "to vLLM",
                List.of(prefill),
                List.of(),
                "--decode",
                vllm.url().toString(),
                "--flow",
                "kv_transfer_params");
        fromVllm = INSTANCES.route(
                "from vLLM",
                List.of(),
                List.of(decode),
                "--prefill",
                vllm.url().toString(),
                "--flow",
                "kv_transfer_params");
    }

    private static Instance serve(String name, String role, String... more) throws Exception {
        List<String> options = new ArrayList<>(List.of(
                "-Dbaton.nixl.library=" + Path.of(library).getParent(),
                "--block-size",
                Integer.toString(Vllm.BLOCK),
                EXTRA + "transfer_agent",
                "nixl",
                EXTRA + "vllm_compat.version",
                version,
                EXTRA + "vllm_compat.model",
                Vllm.MODEL,
                EXTRA + "vllm_compat.attn_backend_name",
                "CPU_ATTN"));
        options.addAll(List.of(more));
        return INSTANCES.serveBlocks(name, "NixlConnector", role, options.toArray(String[]::new));
    }

    @AfterEach
    void vllmComesToRest() throws Exception {
        vllm.awaitRest();
        assertThat(vllm.log()).doesNotContain("EngineDeadError");
    }

    @AfterAll
    static void stop() throws Exception {
        if (vllm != null) {
            vllm.close();
        }
    }

    /** Borders of blocks, then prompts at random, of which many begin alike. */
    private static List<int[]> prompts() {
        Random random = new Random(SEED);
        int[] shared = Ledgers.prompt(400, 3);
        List<int[]> prompts = new ArrayList<>();
        for (int length : new int[] {1, 2, 31, 32, 33, 64, 65, 1009}) {
            prompts.add(Ledgers.prompt(length, 1000 + length));
        }
        while (prompts.size() < PROMPTS) {
            int border = Vllm.BLOCK * (1 + random.nextInt(8)) + random.nextInt(3) - 1;
            int[] own = Ledgers.prompt(border, random.nextInt(10_000));
            prompts.add(
                    random.nextBoolean()
                            ? own
                            : IntStream.concat(
                                            Arrays.stream(shared).limit(random.nextInt(shared.length)),
                                            Arrays.stream(own))
                                    .toArray());
        }
        return prompts.subList(0, PROMPTS);
    }

    /** What vLLM answers alone: with a salt of its own nothing of it is in a cache. */
    private static int[] alone(int[] prompt) throws Exception {
        ObjectNode body = body(prompt).put("cache_salt", "alone-" + salts++);
        return vllm.post("/v1/completions", body.toString()).tokenIds();
    }

    private static ObjectNode body(int[] prompt) {
        return Instances.greedy(prompt, MAX_TOKENS).put("model", Vllm.MODEL).put("ignore_eos", true);
    }

    private static int[] ask(Instance router, int[] prompt) throws Exception {
        return router.post("/v1/completions", body(prompt).toString()).tokenIds();
    }

    @Test
    void batonsPrefillHandsOverToVllm() throws Exception {
        for (int[] prompt : prompts()) {
            assertThat(ask(toVllm, prompt)).as("%d tokens", prompt.length).isEqualTo(alone(prompt));
        }
        assertThat(vllm.log()).contains("NIXL compatibility check passed");
        assertThat(metric("vllm:nixl_num_failed_transfers_total")).isZero();
        assertThat(metric("vllm:nixl_bytes_transferred_sum")).isPositive();
        assertThat(prefill.metric("vllm:nixl_num_kv_expired_reqs_total", "")).isZero();
    }

    @Test
    void vllmsPrefillHandsOverToBaton() throws Exception {
        Prompts before = decode.prompts();
        for (int[] prompt : prompts()) {
            assertThat(ask(fromVllm, prompt)).as("%d tokens", prompt.length).isEqualTo(alone(prompt));
        }
        assertThat(decode.prompts().since(before).computed()).isLessThanOrEqualTo(PROMPTS);
        assertThat(decode.metric("baton:kv_unverified_loads_total", "")).isPositive();
        assertThat(decode.metric("vllm:nixl_num_failed_transfers_total", "")).isZero();
        assertThat(metric("vllm:nixl_num_kv_expired_reqs_total")).isZero();
    }

    @Test
    void goldenPromptsHaveTheirAnswersInBothDirections() throws Exception {
        JsonNode golden = Instances.JSON.readTree(Files.readString(Instances.MODEL.resolve("golden.json")));
        for (JsonNode each : golden.path("prompts")) {
            int[] prompt = Instances.ints(each.path("prompt_ids"));
            int[] expected = Instances.ints(each.path("output_ids"));
            for (Instance router : List.of(toVllm, fromVllm)) {
                ObjectNode body = body(prompt).put("max_tokens", expected.length);
                assertThat(router.post("/v1/completions", body.toString()).tokenIds())
                        .as("%s: %s", router, each.path("name").asString())
                        .isEqualTo(expected);
            }
        }
    }

    /** A reference with wrong numbers does no harm to vLLM, and the prompt is computed. */
    @ParameterizedTest
    @ValueSource(strings = {"tp_size", "remote_engine_id", "remote_block_ids", "remote_num_tokens"})
    void aWrongReferenceToVllmIsComputed(String field) throws Exception {
        // Of its own: a reference that is not signed is believed as far as its numbers can be.
        int[] prompt = Ledgers.prompt(100, 5000 + salts++);
        ObjectNode first = body(prompt).put("max_tokens", 1);
        first.set("kv_transfer_params", Instances.JSON.readTree(DO_REMOTE_DECODE));
        Reply leg = vllm.post("/v1/completions", first.toString());
        ObjectNode params = (ObjectNode) leg.json().path("kv_transfer_params");
        ObjectNode wrong = params.deepCopy();
        switch (field) {
            case "tp_size" -> wrong.put(field, 4);
            case "remote_engine_id" -> wrong.put(field, "another");
            case "remote_block_ids" ->
                wrong.putArray(field).addArray().add(0).add(1).add(2).add(1_000_000);
            default -> wrong.put(field, 10_000_000);
        }
        ObjectNode second = body(prompt);
        second.set("kv_transfer_params", wrong);
        assertThat(decode.post("/v1/completions", second.toString()).tokenIds()).isEqualTo(alone(prompt));
        // vLLM's side channel and its worker answer as before.
        second.set("kv_transfer_params", params);
        decode.post("/v1/completions", second.toString());
        assertThat(ask(fromVllm, Ledgers.prompt(50, 5))).isEqualTo(alone(Ledgers.prompt(50, 5)));
    }

    @Test
    void blocksWithoutChecksumsAreRefusedWhereTheyMustBeVerified() throws Exception {
        Instance strict = serve(
                "strict", "kv_consumer", EXTRA + "vllm_cpu_attn_isa", "vec", EXTRA + "require_verified_kv", "true");
        Instance router = INSTANCES.route(
                "to strict",
                List.of(),
                List.of(strict),
                "--prefill",
                vllm.url().toString(),
                "--flow",
                "kv_transfer_params");
        int[] prompt = Ledgers.prompt(100, 8);
        assertThat(ask(router, prompt)).isEqualTo(alone(prompt));
        assertThat(strict.prompts().transferred()).isZero();
        assertThat(strict.metric("baton:kv_handoff_rejected_total", "\"unverified\""))
                .isPositive();
    }

    @Test
    void cpuBlocksAreRefusedWhereTheirOrderIsNotTold() throws Exception {
        Instance unknowing = serve("unknowing", "kv_consumer");
        Instance router = INSTANCES.route(
                "to unknowing",
                List.of(),
                List.of(unknowing),
                "--prefill",
                vllm.url().toString(),
                "--flow",
                "kv_transfer_params");
        int[] prompt = Ledgers.prompt(100, 9);
        assertThat(ask(router, prompt)).isEqualTo(alone(prompt));
        assertThat(unknowing.prompts().transferred()).isZero();
        assertThat(unknowing.log()).contains("vllm_cpu_attn_isa must say how");
    }

    private static double metric(String name) throws Exception {
        double[] found = vllm.get("/metrics")
                .body()
                .lines()
                .filter(line -> line.startsWith(name + "{"))
                .mapToDouble(line -> Double.parseDouble(line.substring(line.lastIndexOf(' ') + 1)))
                .toArray();
        assertThat(found).as(name).isNotEmpty();
        return Arrays.stream(found).sum();
    }
}
