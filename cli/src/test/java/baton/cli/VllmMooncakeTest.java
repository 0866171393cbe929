package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.cli.Instances.Instance;
import baton.kv.FreePorts;
import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Objects;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.RegisterExtension;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * Prompts go from a Baton prefill instance to a worker of vLLM 0.33's MooncakeConnector, and from there to a Baton decode instance. The
 * environment variable {@code BATON_VLLM33_PYTHON} names an interpreter that has vLLM's connector, which its sources on the path suffice for, and
 * the package {@code mooncake}.
 */
@Tag("peers")
@Timeout(300)
class VllmMooncakeTest {
    private static final String VARIABLE = "BATON_VLLM33_PYTHON";
    private static final String ANSWER = "answer ";

    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    private static Process vllm;
    private static BufferedReader out;
    private static BufferedWriter in;

    private static int registry;

    @BeforeAll
    static void start() throws IOException {
        String python = System.getenv(VARIABLE);
        assumeTrue(
                python != null,
                VARIABLE + " is not set: it names a Python interpreter with vLLM 0.33's connectors and mooncake");
        registry = FreePorts.inARow(1);
        Path script = INSTANCES.directory("vllm").resolve("vllm_mooncake.py");
        try (InputStream source =
                Objects.requireNonNull(VllmMooncakeTest.class.getResourceAsStream("vllm_mooncake.py"))) {
            Files.copy(source, script);
        }
        vllm = new ProcessBuilder(python, script.toString(), Integer.toString(registry))
                .redirectError(ProcessBuilder.Redirect.INHERIT)
                .start();
        out = vllm.inputReader();
        in = vllm.outputWriter();
        line("ready");
    }

    @AfterAll
    static void stop() {
        if (vllm != null) {
            vllm.destroyForcibly();
        }
    }

    private static String line(String beginning) throws IOException {
        String line = out.readLine();
        while (!line.startsWith(beginning)) {
            line = out.readLine();
        }
        return line.substring(beginning.length());
    }

    private static JsonNode ask(ObjectNode task) throws IOException {
        in.write(task + "\n");
        in.flush();
        return Instances.JSON.readTree(line(ANSWER));
    }

    private static ObjectNode task(String name, String transferId, int[] prompt) {
        ObjectNode task = Instances.JSON.createObjectNode().put(name, transferId);
        task.set(
                "blocks",
                Instances.JSON.valueToTree(
                        IntStream.range(0, Math.ceilDiv(prompt.length, 16)).toArray()));
        return task;
    }

    private static Instance serve(String role) throws IOException {
        return INSTANCES.serve(
                role,
                "--dtype",
                "float32",
                "--kv-transfer-config",
                "{\"kv_connector\": \"MooncakeConnector\", \"kv_role\": \"" + role
                        + "\", \"kv_connector_extra_config\": "
                        + "{\"mooncake_protocol\": \"tcp\", \"bootstrap_port\": 0}}");
    }

    @Test
    void promptsGoThroughAWorkerOfVllm33AndBack() throws Exception {
        Instance prefill = serve("kv_producer");
        Instance decode = serve("kv_consumer");
        String own = prefill.get("/kv_transfer_params")
                .json()
                .path("kv_transfer_params")
                .path("remote_bootstrap_addr")
                .asString();
        List<Ledgers.Case> cases = Ledgers.clear();
        for (int i = 0; i < cases.size(); i++) {
            Ledgers.Case each = cases.get(i);
            if (i == cases.size() / 2) {
                JsonNode _ = ask(Instances.JSON.createObjectNode().put("forget", true));
            }
            ObjectNode leg = Instances.greedy(each.prompt(), 1);
            leg.putObject("kv_transfer_params").put("do_remote_decode", true).put("transfer_id", "to-" + i);
            assertThat(prefill.post("/v1/completions", leg.toString()).status()).isEqualTo(200);
            JsonNode pulled = ask(task("pull", "to-" + i, each.prompt()).put("registry", own));
            assertThat(pulled.path("received").asBoolean())
                    .as(pulled.toString())
                    .isTrue();

            JsonNode _ = ask(task("offer", "from-" + i, each.prompt()));
            ObjectNode answer = Instances.greedy(each.prompt(), 32);
            answer.putObject("kv_transfer_params")
                    .put("do_remote_prefill", true)
                    .put("transfer_id", "from-" + i)
                    .put("remote_engine_id", "vllm")
                    .put("remote_bootstrap_addr", "http://127.0.0.1:" + registry);
            assertThat(decode.post("/v1/completions", answer.toString()).tokenIds())
                    .as(each.name())
                    .isEqualTo(each.answer());
        }
        int tokens = cases.stream().mapToInt(each -> each.prompt().length).sum();
        assertThat(decode.prompts().transferred()).isGreaterThan(tokens / 2);
        assertThat(decode.metric("vllm:mooncake_num_failed_recvs_total", "")).isZero();
        assertThat(prefill.metric("vllm:mooncake_num_failed_transfers_total", ""))
                .isZero();
        JsonNode said = ask(Instances.JSON.createObjectNode());
        assertThat(said.path("sent").size()).isEqualTo(cases.size());
        // Regions go with the first prompt, and again after each of both ranks has forgotten them.
        for (String way : List.of("pulled ", "asked ")) {
            assertThat(said.path("counts").path(way + "with regions").asInt()).isEqualTo(2);
            assertThat(said.path("counts").path(way + "without").asInt()).isEqualTo(cases.size() - 1);
        }
    }
}
