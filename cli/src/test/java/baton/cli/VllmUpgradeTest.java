package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Instances.Instance;
import java.io.IOException;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.api.parallel.Isolated;
import tools.jackson.databind.JsonNode;

/**
 * Pools of vLLM of two versions at one host, of which one is upgraded after the other, with one prefill and one decode instance of Baton that both hand over
 * with. No vLLM 0.33 for CPUs is published: one of the two real vLLM 0.32 has the version and the NIXL connector's version of 0.33, so its handshakes have and
 * demand the hash of 0.33. The messages of both versions are the same.
 */
@Tag("peers")
@Isolated("vLLM and its counterpart need the cores.")
@Timeout(1200)
class VllmUpgradeTest {
    private static final String NEW = "0.33.0";

    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    private static Vllm before;
    private static Vllm after;
    private static Instance prefill;
    private static Instance decode;

    @BeforeAll
    static void start() throws Exception {
        Path environment = Vllm.assumeInstalled();
        Vllm.Setup setup = Vllm.Setup.of("float32");
        before = Vllm.start(environment, INSTANCES.directory("before").resolve("log"), setup);
        after = Vllm.start(
                environment,
                INSTANCES.directory("after").resolve("log"),
                setup,
                Map.of("PYTHONPATH", plugin(INSTANCES.directory("plugin")).toString()));
        before.awaitReady();
        after.awaitReady();
        assertThat(after.log()).contains("upgraded to " + NEW);
        assertThat(before.version()).isNotEqualTo(NEW);
        MixedFleet.Starter starter =
                new MixedFleet.Starter(INSTANCES, Vllm.nixlLibrary(environment).orElseThrow(), before.version(), setup);
        prefill = serve(starter, "prefill", "kv_producer");
        decode = serve(starter, "decode", "kv_consumer");
    }

    /** A plug-in of vLLM's, which each of its processes loads. */
    private static Path plugin(Path directory) throws IOException {
        Files.writeString(directory.resolve("as_upgraded.py"), """
                def upgrade():
                    import vllm
                    from vllm.distributed.kv_transfer.kv_connector.v1.nixl import metadata

                    vllm.__version__ = "%s"
                    metadata.NIXL_CONNECTOR_VERSION = 15
                    print("upgraded to", vllm.__version__, flush=True)
                """.formatted(NEW));
        Path info = Files.createDirectory(directory.resolve("as_upgraded-0.dist-info"));
        Files.writeString(info.resolve("METADATA"), "Metadata-Version: 2.1\nName: as-upgraded\nVersion: 0\n");
        Files.writeString(
                info.resolve("entry_points.txt"), "[vllm.general_plugins]\nas_upgraded = as_upgraded:upgrade\n");
        return directory;
    }

    private static Instance serve(MixedFleet.Starter starter, String name, String role) throws Exception {
        String compat = MixedFleet.EXTRA + "vllm_compat.";
        return starter.serveWithoutHash(
                name,
                role,
                MixedFleet.EXTRA + "side_channel_port",
                "0",
                MixedFleet.EXTRA + "vllm_cpu_attn_isa",
                "vec",
                compat + "version+",
                before.version(),
                compat + "version+",
                NEW,
                compat + "model",
                Vllm.MODEL,
                compat + "attn_backend_name",
                "CPU_ATTN");
    }

    @AfterAll
    static void stop() throws Exception {
        for (Vllm each : new Vllm[] {before, after}) {
            if (each != null) {
                each.close();
            }
        }
    }

    private static String url(Vllm vllm) throws Exception {
        return vllm.url() + "?connector=NixlConnector&version="
                + URLEncoder.encode(vllm.equals(after) ? NEW : vllm.version(), StandardCharsets.UTF_8);
    }

    /** All golden prompts, by turns for each pair of instances. */
    private static void assertGolden(String name, List<String> prefills, List<String> decodes) throws Exception {
        List<String> options = new ArrayList<>(List.of("--flow", "auto"));
        prefills.forEach(url -> options.addAll(List.of("--prefill", url)));
        decodes.forEach(url -> options.addAll(List.of("--decode", url)));
        Instance router = INSTANCES.route(name, List.of(), List.of(), options.toArray(String[]::new));
        for (JsonNode each : MixedPrompts.golden()) {
            int[] expected = Instances.ints(each.path("output_ids"));
            assertThat(MixedPrompts.through(router, expected.length, name)
                            .answer(Instances.ints(each.path("prompt_ids"))))
                    .as("%s: %s", name, each.path("name").asString())
                    .isEqualTo(expected);
        }
    }

    private static double transferred(Vllm vllm) throws Exception {
        return vllm.metric("vllm:nixl_bytes_transferred_sum");
    }

    private static void assertWithoutFault() throws Exception {
        for (Vllm each : List.of(before, after)) {
            each.awaitRest();
            assertThat(each.metric("vllm:nixl_num_failed_transfers_total")).isZero();
            assertThat(each.metric("vllm:nixl_num_kv_expired_reqs_total")).isZero();
            assertThat(each.log()).doesNotContain("EngineDeadError", "handshake_setup_failed");
        }
        assertThat(decode.metric("vllm:nixl_num_failed_transfers_total", "")).isZero();
        assertThat(prefill.metric("vllm:nixl_num_kv_expired_reqs_total", "")).isZero();
    }

    @Test
    void onePrefillInstanceIsReadByInstancesOfBothVersions() throws Exception {
        double old = transferred(before);
        double upgraded = transferred(after);
        assertGolden("both read", List.of(prefill.url().toString()), List.of(url(before), url(after)));
        assertThat(transferred(before)).isGreaterThan(old);
        assertThat(transferred(after)).isGreaterThan(upgraded);
        assertWithoutFault();
    }

    @Test
    void oneDecodeInstanceReadsInstancesOfBothVersions() throws Exception {
        int already = decode.prompts().transferred();
        assertGolden(
                "both are read",
                List.of(url(before), url(after)),
                List.of(decode.url().toString()));
        assertThat(decode.prompts().transferred()).isGreaterThan(already);
        assertWithoutFault();
    }

    /** The decode pool is upgraded first, then the prefill pool. */
    @Test
    void aPoolIsUpgradedBeforeTheOther() throws Exception {
        double upgraded = transferred(after);
        assertGolden(
                "decode first",
                List.of(url(before), prefill.url().toString()),
                List.of(url(after), decode.url().toString()));
        assertThat(transferred(after)).isGreaterThan(upgraded);
        double old = transferred(before);
        assertGolden(
                "prefill first",
                List.of(url(after), prefill.url().toString()),
                List.of(url(before), decode.url().toString()));
        assertThat(transferred(before)).isGreaterThan(old);
        assertWithoutFault();
    }
}
