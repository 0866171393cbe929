package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Instances.Instance;
import baton.kv.Deadline;
import baton.kv.FreePorts;
import baton.kv.Ticker;
import baton.testkit.Await;
import baton.testkit.InstalledProgram;
import java.net.URI;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Random;
import java.util.UUID;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.api.parallel.Isolated;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * {@code verify_kv} with a real vLLM: how far its right keys and values are from those of Baton's model, and whether references that lead to wrong
 * blocks are found; {@code baton verify} and {@code --shadow-share} with a fleet of vLLM alone. {@code -Dtests.handovers=N} hands N prompts over, or as many as
 * {@code -Dtests.seconds=N} allow, {@code -Dtests.seed=N} others, {@code -Dtests.model=DIR} tries another model, and {@code -Dtests.dtypes=bfloat16} one type only.
 */
@Tag("peers")
@Isolated("vLLM and its counterpart need the cores.")
@Timeout(3600)
class VllmVerifyTest {
    private static final int HANDOVERS = Integer.getInteger("tests.handovers", 100);
    private static final Path MODEL = Path.of(System.getProperty("tests.model", Instances.MODEL.toString()));
    private static final int SECONDS = Integer.getInteger("tests.seconds", 600);
    private static final int FAULTS = Integer.getInteger("tests.faults", 6);
    private static final int VERIFIED = Integer.getInteger("tests.prompts", 10);
    private static final int BLOCKS = 6;
    private static final int AT_ONCE = 16;
    private static final long SEED = Long.getLong("tests.seed", 15);
    private static final int MAX_TOKENS = 8;
    private static final String VERIFY = "--kv-transfer-config.verify_kv";

    @RegisterExtension
    final Instances instances = new Instances();

    /** Blocks that a reference leads to in place of the prompt's. */
    private enum Fault {
        REUSED,
        SWAPPED,
        SHIFTED,
        SAME_BEGINNING,
        HALF_FILLED
    }

    private static Instance decode(MixedFleet fleet, String verify) throws Exception {
        return fleet.starter()
                .serve(
                        "decode-" + verify,
                        "kv_consumer",
                        MixedFleet.EXTRA + "side_channel_port",
                        "0",
                        MixedFleet.EXTRA + "vllm_cpu_attn_isa",
                        "vec",
                        VERIFY,
                        verify);
    }

    private static Vllm.Setup setup(String dtype, int cpu) {
        return new Vllm.Setup(
                Objects.requireNonNull(MODEL.toAbsolutePath().getParent()), name(), "NixlConnector", dtype, cpu, 30);
    }

    private static String name() {
        return MODEL.getFileName().toString();
    }

    private static Stream<String> dtypes() {
        return Stream.of(System.getProperty("tests.dtypes", "float32,bfloat16").split(","));
    }

    @ParameterizedTest
    @MethodSource("dtypes")
    void rightBlocksAreTakenAndWrongOnesFound(String dtype) throws Exception {
        try (MixedFleet fleet = MixedFleet.start(instances, setup(dtype, 0))) {
            // All tokens where the model does not round, else the default.
            Instance verifying = decode(fleet, dtype.equals("float32") ? "full" : "auto");
            List<int[]> prompts = prompts();
            Deadline end = Deadline.after(Ticker.system(), Duration.ofSeconds(SECONDS));
            List<MixedPrompts.Asked> _ = MixedPrompts.ask(
                    prompts,
                    AT_ONCE,
                    prompt -> end.isOver() ? prompt : answer(verifying, prompt, 1, prefilled(fleet, prompt)));
            double loads = verifying.metric("baton:kv_unverified_loads_total", "");
            System.out.printf(
                    "%s: %.0f loads, %.0f of them refused; greatest distance in the first layer %.2e, in others %.2e%n",
                    dtype,
                    loads,
                    verifying.metric("baton:kv_verify_failures_total", ""),
                    verifying.metric("baton:kv_verify_distance", "\"first\""),
                    verifying.metric("baton:kv_verify_distance", "\"upper\""));
            assertThat(loads).isGreaterThan(Math.min(HANDOVERS, 1000) / 2.0);
            assertThat(verifying.metric("baton:kv_verify_failures_total", "")).isZero();
            verifying.kill();
            assertWrongBlocksAreFound(fleet, dtype);
            fleet.vllm().awaitRest();
        }
    }

    /** Behind Baton's router, which asks the decode instance a second time, and, where it is installed, behind vllm-router. */
    @Test
    void aFleetOfVllmAloneIsVerified() throws Exception {
        Path environment = Vllm.assumeInstalled();
        Path logs = instances.directory("vllm");
        try (Vllm prefill = Vllm.start(environment, logs.resolve("prefill"), setup("float32", 0));
                Vllm decode = Vllm.start(environment, logs.resolve("decode"), setup("float32", 1))) {
            prefill.awaitReady();
            decode.awaitReady();
            Instance router = instances.route(
                    "vLLM alone",
                    List.of(),
                    List.of(),
                    "--prefill",
                    prefill.url().toString(),
                    "--decode",
                    decode.url().toString(),
                    "--flow",
                    "kv_transfer_params",
                    "--shadow-share",
                    "1");
            assertVerified("Baton's router", router.url(), decode);
            String shadows = "baton:router_shadow_requests_total";
            System.out.printf(
                    "shadow requests: %.0f equal, %.0f close, %.0f skipped, %.0f failed%n",
                    router.metric(shadows, "\"equal\""),
                    router.metric(shadows, "\"close\""),
                    router.metric(shadows, "\"skipped\""),
                    router.metric(shadows, "\"failed\""));
            assertThat(router.metric(shadows, "\"equal\"")).isPositive();
            assertThat(router.metric(shadows, "\"different\"")).isZero();
            if (System.getenv(InstalledProgram.FLEETS) != null) {
                int port = FreePorts.inARow(2);
                List<String> command = List.of(
                        InstalledProgram.assumeInstalled(InstalledProgram.FLEETS, "vllm-router")
                                .toString(),
                        "--vllm-pd-disaggregation",
                        "--kv-connector",
                        "nixl",
                        "--prefill",
                        prefill.url().toString(),
                        "--decode",
                        decode.url().toString(),
                        "--host",
                        "127.0.0.1",
                        "--port",
                        Integer.toString(port),
                        "--prometheus-port",
                        Integer.toString(port + 1));
                try (InstalledProgram other = InstalledProgram.start(logs.resolve("vllm-router"), command)) {
                    URI url = URI.create("http://127.0.0.1:" + port);
                    other.awaitHealthy(url.resolve("/health"));
                    assertVerified("vllm-router", url, decode);
                }
            }
            prefill.awaitRest();
            decode.awaitRest();
        }
    }

    private static void assertVerified(String router, URI url, Vllm reference) throws Exception {
        String transferred = "vllm:nixl_bytes_transferred_sum";
        double before = reference.metric(transferred);
        Program.Ended verified = Program.run(List.of(
                "verify",
                "--url",
                url.toString(),
                "--reference",
                reference.url().toString(),
                "--prompts",
                Integer.toString(VERIFIED),
                "--tolerance",
                "0.01"));
        System.out.print(router + ": " + verified.out());
        assertThat(verified.status()).as(verified.out() + verified.err()).isZero();
        Await.until(
                Instances.DEADLINE,
                () -> "nothing was handed over behind " + router,
                () -> reference.metric(transferred) > before);
    }

    private void assertWrongBlocksAreFound(MixedFleet fleet, String dtype) throws Exception {
        Map<Fault, Integer> changed = new EnumMap<>(Fault.class);
        Map<Fault, Integer> found = new EnumMap<>(Fault.class);
        Random random = new Random(5);
        // Each request has a salt of its own, so the peer is not left out.
        Instance verifying = decode(fleet, "auto");
        Instance trusting = decode(fleet, "off");
        for (int i = 0; i < FAULTS; i++) {
            int[] prompt = Ledgers.prompt(BLOCKS * Vllm.BLOCK - 5, 9000 + i);
            int[] right = answer(fleet.decode(), prompt, MAX_TOKENS, prefilled(fleet, prompt));
            for (Fault fault : Fault.values()) {
                int[] other = Ledgers.prompt(prompt.length, 20_000 + i);
                int at = 1 + random.nextInt(BLOCKS - 3);
                int[] unverified = answer(trusting, prompt, MAX_TOKENS, wrong(fleet, fault, prompt, other, at));
                double before = verifying.metric("baton:kv_verify_failures_total", "");
                int[] answer = answer(verifying, prompt, MAX_TOKENS, wrong(fleet, fault, prompt, other, at));
                double after = verifying.metric("baton:kv_verify_failures_total", "");
                changed.merge(fault, Arrays.equals(unverified, right) ? 0 : 1, Integer::sum);
                found.merge(fault, (int) (after - before), Integer::sum);
                assertThat(after).as("%s of prompt %d", fault, i).isEqualTo(before + 1);
                if (dtype.equals("float32")) {
                    assertThat(answer).as("%s of prompt %d", fault, i).isEqualTo(right);
                }
            }
        }
        verifying.kill();
        trusting.kill();
        System.out.printf("%s: of %d each, answers changed %s, found %s%n", dtype, FAULTS, changed, found);
    }

    /** Most begin otherwise than all others. */
    private static List<int[]> prompts() {
        List<int[]> prompts = new ArrayList<>(MixedPrompts.single(Math.min(HANDOVERS, 100), SEED));
        Random random = new Random(SEED);
        while (prompts.size() < HANDOVERS) {
            prompts.add(random.ints(2 + random.nextInt(120), 5, 2048).toArray());
        }
        return prompts;
    }

    private static ObjectNode body(int[] prompt, int maxTokens) {
        return MixedFleet.body(prompt, maxTokens).put("model", name());
    }

    /** The reference to a prompt's blocks. */
    private static ObjectNode prefilled(MixedFleet fleet, int[] prompt) throws Exception {
        ObjectNode body = body(prompt, 1);
        body.set("kv_transfer_params", MixedFleet.doRemoteDecode());
        return (ObjectNode) fleet.vllm()
                .post("/v1/completions", body.toString())
                .json()
                .path("kv_transfer_params")
                .deepCopy();
    }

    /** Nothing of the prompt is cached. */
    private static int[] answer(Instance decode, int[] prompt, int maxTokens, JsonNode reference) throws Exception {
        ObjectNode body =
                body(prompt, maxTokens).put("cache_salt", UUID.randomUUID().toString());
        body.set("kv_transfer_params", reference);
        return decode.post("/v1/completions", body.toString()).tokenIds();
    }

    private static int[] blocks(ObjectNode reference) {
        JsonNode all = reference.path("remote_block_ids");
        return Instances.ints(all.path(0).isArray() ? all.path(0) : all);
    }

    /**
     * A reference to a prompt's blocks that leads to others.
     *
     * @param at the first that is wrong
     */
    private static ObjectNode wrong(MixedFleet fleet, Fault fault, int[] prompt, int[] other, int at) throws Exception {
        ObjectNode reference = prefilled(fleet, prompt);
        int[] own = blocks(reference);
        int[] wrong = own.clone();
        switch (fault) {
            case REUSED -> wrong[at] = blocks(prefilled(fleet, other))[at];
            case SWAPPED -> {
                wrong[at] = own[at + 1];
                wrong[at + 1] = own[at];
            }
            case SHIFTED -> IntStream.range(0, own.length).forEach(i -> wrong[(i + 1) % own.length] = own[i]);
            case SAME_BEGINNING -> {
                int[] mixed = other.clone();
                System.arraycopy(prompt, 0, mixed, 0, at * Vllm.BLOCK);
                System.arraycopy(blocks(prefilled(fleet, mixed)), at, wrong, at, own.length - at);
            }
            case HALF_FILLED -> {
                // The rest of the block has its earlier content.
                int[] begun = Arrays.copyOf(prompt, at * Vllm.BLOCK + Vllm.BLOCK / 2);
                wrong[at] = blocks(prefilled(fleet, begun))[at];
            }
        }
        ArrayNode ids = reference.putArray("remote_block_ids");
        ArrayNode list = Instances.JSON.createArrayNode();
        IntStream.of(wrong).forEach(list::add);
        ids.add(list);
        return reference;
    }
}
