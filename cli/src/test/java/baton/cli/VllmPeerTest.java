package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Instances.Instance;
import baton.cli.Instances.Prompts;
import baton.cli.Instances.Reply;
import baton.cli.MixedPrompts.Asked;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.api.parallel.Isolated;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * Hand-overs with a real vLLM 0.32 in both directions, behind Baton's router: greedy tokens are those of vLLM alone, in fp32. {@code
 * mvn -Ppeers -pl cli -am package} runs it, with {@code -Dtests.prompts=N} N prompts in each direction.
 */
@Tag("peers")
@Isolated("vLLM and its counterpart need the cores.")
@Timeout(1200)
class VllmPeerTest {
    private static final int PROMPTS = Integer.getInteger("tests.prompts", 100);
    private static final int CONVERSATIONS = Integer.getInteger("tests.conversations", 8);
    private static final int AT_ONCE = 4;
    private static final long SEED = Long.getLong("tests.seed", 14);
    private static final int MAX_TOKENS = 12;

    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    @AutoClose
    private static MixedFleet fleet;

    private static Vllm vllm;

    /** The answers of vLLM alone. */
    private static List<Asked> single;

    private static List<Asked> turns;

    private static final AtomicInteger SALTS = new AtomicInteger();

    @BeforeAll
    static void start() throws Exception {
        fleet = MixedFleet.start(INSTANCES, Vllm.Setup.of("float32"));
        vllm = fleet.vllm();
        single = MixedPrompts.ask(MixedPrompts.single(PROMPTS, SEED), 1, VllmPeerTest::alone);
        turns = MixedPrompts.converse(MixedPrompts.conversations(CONVERSATIONS, SEED), 1, VllmPeerTest::alone);
    }

    @AfterEach
    void vllmComesToRest() throws Exception {
        vllm.awaitRest();
        assertThat(vllm.log()).doesNotContain("EngineDeadError");
    }

    /** vLLM's answer alone: with a salt of its own no token of it is in a cache. */
    private static int[] alone(int[] prompt) throws Exception {
        ObjectNode body = MixedFleet.body(prompt, MAX_TOKENS).put("cache_salt", "alone-" + SALTS.incrementAndGet());
        return vllm.post("/v1/completions", body.toString()).tokenIds();
    }

    private static int[] ask(Instance router, int[] prompt) throws Exception {
        return MixedPrompts.through(router, MAX_TOKENS, "single").answer(prompt);
    }

    private static void assertSame(List<Asked> answers, List<Asked> expected) {
        assertThat(answers).hasSameSizeAs(expected);
        for (int i = 0; i < expected.size(); i++) {
            assertThat(answers.get(i).prompt()).isEqualTo(expected.get(i).prompt());
            assertThat(answers.get(i).answer())
                    .as("prompt %d, of %d tokens", i, expected.get(i).prompt().length)
                    .isEqualTo(expected.get(i).answer());
        }
    }

    @Test
    void batonsPrefillHandsOverToVllm() throws Exception {
        double before = vllm.metric("vllm:nixl_bytes_transferred_sum");
        assertSame(
                MixedPrompts.ask(
                        MixedPrompts.single(PROMPTS, SEED),
                        AT_ONCE,
                        MixedPrompts.through(fleet.toVllm(), MAX_TOKENS, "many to vLLM")),
                single);
        assertThat(vllm.log()).contains("NIXL compatibility check passed");
        assertThat(vllm.metric("vllm:nixl_bytes_transferred_sum")).isGreaterThan(before);
        assertToVllmWithoutFault();
    }

    private static void assertToVllmWithoutFault() throws Exception {
        assertThat(vllm.metric("vllm:nixl_num_failed_transfers_total")).isZero();
        assertThat(fleet.prefill().metric("vllm:nixl_num_kv_expired_reqs_total", ""))
                .isZero();
    }

    @Test
    void vllmsPrefillHandsOverToBaton() throws Exception {
        Prompts before = fleet.decode().prompts();
        assertSame(
                MixedPrompts.ask(
                        MixedPrompts.single(PROMPTS, SEED),
                        AT_ONCE,
                        MixedPrompts.through(fleet.fromVllm(), MAX_TOKENS, "many from vLLM")),
                single);
        assertThat(fleet.decode().prompts().since(before).computed()).isLessThanOrEqualTo(PROMPTS);
        assertThat(fleet.decode().metric("baton:kv_unverified_loads_total", "")).isPositive();
        assertFromVllmWithoutFault();
    }

    private static void assertFromVllmWithoutFault() throws Exception {
        assertThat(fleet.decode().metric("vllm:nixl_num_failed_transfers_total", ""))
                .isZero();
        assertThat(vllm.metric("vllm:nixl_num_kv_expired_reqs_total")).isZero();
    }

    @Test
    void conversationsWithSharedPrefixesGoFromBatonToVllm() throws Exception {
        assertSame(converse(fleet.toVllm()), turns);
        assertToVllmWithoutFault();
    }

    @Test
    void conversationsWithSharedPrefixesGoFromVllmToBaton() throws Exception {
        Prompts before = fleet.decode().prompts();
        assertSame(converse(fleet.fromVllm()), turns);
        Prompts come = fleet.decode().prompts().since(before);
        assertThat(come.computed()).isLessThanOrEqualTo(turns.size());
        assertThat(come.cached()).as("of prefixes that are shared").isPositive();
        assertThat(come.transferred()).isPositive();
        assertFromVllmWithoutFault();
    }

    private static List<Asked> converse(Instance router) throws Exception {
        return MixedPrompts.converse(
                MixedPrompts.conversations(CONVERSATIONS, SEED),
                AT_ONCE,
                MixedPrompts.through(router, MAX_TOKENS, "turns " + router));
    }

    @Test
    void goldenPromptsHaveTheirAnswersInBothDirections() throws Exception {
        for (JsonNode each : MixedPrompts.golden()) {
            int[] prompt = Instances.ints(each.path("prompt_ids"));
            int[] expected = Instances.ints(each.path("output_ids"));
            for (Instance router : List.of(fleet.toVllm(), fleet.fromVllm())) {
                assertThat(MixedPrompts.through(router, expected.length, "golden " + router)
                                .answer(prompt))
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
        int[] prompt = Ledgers.prompt(100, 5000 + SALTS.incrementAndGet());
        ObjectNode first = MixedFleet.body(prompt, 1);
        first.set("kv_transfer_params", MixedFleet.doRemoteDecode());
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
        ObjectNode second = MixedFleet.body(prompt, MAX_TOKENS);
        second.set("kv_transfer_params", wrong);
        assertThat(fleet.decode().post("/v1/completions", second.toString()).tokenIds())
                .isEqualTo(alone(prompt));
        // vLLM's side channel and its worker answer as before.
        second.set("kv_transfer_params", params);
        fleet.decode().post("/v1/completions", second.toString());
        assertThat(ask(fleet.fromVllm(), Ledgers.prompt(50, 5))).isEqualTo(alone(Ledgers.prompt(50, 5)));
    }

    @Test
    void theHashOfAVllmThatIsListedAsAPeerNeedNotBeSet() throws Exception {
        String[] options = {
            MixedFleet.EXTRA + "side_channel_port",
            "0",
            MixedFleet.EXTRA + "peers+",
            "127.0.0.1:" + vllm.sideChannel(),
            MixedFleet.EXTRA + "vllm_compat",
            "mirror",
            MixedFleet.EXTRA + "vllm_cpu_attn_isa",
            "vec"
        };
        Instance prefills = fleet.starter().serveWithoutHash("mirror-prefill", "kv_producer", options);
        Instance decodes = fleet.starter().serveWithoutHash("mirror-decode", "kv_consumer", options);
        int[] prompt = Ledgers.prompt(200, 11);
        double before = vllm.metric("vllm:nixl_bytes_transferred_sum");
        Instance toVllm = fleet.starter().route("mirror to vLLM", prefills.url(), vllm.url());
        assertThat(MixedPrompts.through(toVllm, MAX_TOKENS, "mirror").answer(prompt))
                .isEqualTo(alone(prompt));
        assertThat(vllm.metric("vllm:nixl_bytes_transferred_sum")).isGreaterThan(before);
        assertThat(prefills.log()).contains("is a vLLM instance; it gets its own compatibility hash");
        Instance fromVllm = fleet.starter().route("mirror from vLLM", vllm.url(), decodes.url());
        assertThat(MixedPrompts.through(fromVllm, MAX_TOKENS, "mirror").answer(prompt))
                .isEqualTo(alone(prompt));
        assertThat(decodes.prompts().transferred()).isEqualTo(prompt.length);
        prefills.kill();
        decodes.kill();
    }

    @Test
    void blocksWithoutChecksumsAreRefusedWhereTheyMustBeVerified() throws Exception {
        Instance strict = fleet.starter()
                .serve(
                        "strict",
                        "kv_consumer",
                        MixedFleet.EXTRA + "side_channel_port",
                        "0",
                        MixedFleet.EXTRA + "vllm_cpu_attn_isa",
                        "vec",
                        MixedFleet.EXTRA + "require_verified_kv",
                        "true");
        Instance router = fleet.starter().route("to strict", vllm.url(), strict.url());
        int[] prompt = Ledgers.prompt(100, 8);
        assertThat(ask(router, prompt)).isEqualTo(alone(prompt));
        assertThat(strict.prompts().transferred()).isZero();
        assertThat(strict.metric("baton:kv_handoff_rejected_total", "\"unverified\""))
                .isPositive();
    }

    @Test
    void cpuBlocksAreRefusedWhereTheirOrderIsUnknown() throws Exception {
        Instance unknowing =
                fleet.starter().serve("unknowing", "kv_consumer", MixedFleet.EXTRA + "side_channel_port", "0");
        Instance router = fleet.starter().route("to unknowing", vllm.url(), unknowing.url());
        int[] prompt = Ledgers.prompt(100, 9);
        assertThat(ask(router, prompt)).isEqualTo(alone(prompt));
        assertThat(unknowing.prompts().transferred()).isZero();
        assertThat(unknowing.log()).contains("vllm_cpu_attn_isa must say how");
    }
}
