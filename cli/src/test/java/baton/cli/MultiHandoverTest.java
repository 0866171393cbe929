package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Instances.Instance;
import baton.cli.Instances.Prompts;
import baton.cli.Instances.Reply;
import baton.cli.Ledgers.Case;
import baton.testkit.Await;
import java.nio.file.Path;
import java.util.stream.Stream;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ObjectNode;

/** Prefill and decode instances with compositions of connectors, in processes of their own. The prefill instance dies. */
class MultiHandoverTest {
    private static final int BLOCK = 16;
    private static final int MAX_TOKENS = 20;
    /** The bytes of the model in float32. */
    private static final double BYTES_PER_TOKEN = 6144;

    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    /**
     * Connectors of both instances.
     *
     * @param store the one that keeps prompts when their prefill instance is gone
     * @param loaded its metric of bytes loaded
     * @param stored its metric of bytes that outlive the instance
     * @param connectors JSON, with {@code SHARED} for a directory of both instances
     */
    record Composition(String name, String store, String loaded, String stored, String connectors) {
        @Override
        public String toString() {
            return name;
        }

        String config(String role, Path shared) {
            return """
                    {"kv_connector": "MultiConnector", "kv_role": "%s", "kv_load_failure_policy": "recompute",
                     "kv_connector_extra_config": {"connectors": %s}}
                    """.formatted(role, connectors.replace("SHARED", shared.toString()));
        }
    }

    static Stream<Composition> compositions() {
        String nixl = """
                {"kv_connector": "NixlConnector", "kv_connector_extra_config":
                    {"side_channel_host": "127.0.0.1", "side_channel_port": 0}}""";
        return Stream.of(
                new Composition(
                        "nixl-and-storage",
                        "SharedStorageConnector",
                        "baton:kv_load_bytes_total",
                        "baton:kv_save_bytes_total",
                        """
                        [%s, {"kv_connector": "SharedStorageConnector", "kv_connector_extra_config":
                            {"shared_storage_path": "SHARED"}}]""".formatted(nixl)),
                new Composition(
                        "nixl-and-offloading",
                        "OffloadingConnector",
                        "vllm:kv_offload_load_bytes_total",
                        "vllm:kv_offload_tiering_write_bytes_total",
                        """
                        [%s, {"kv_connector": "OffloadingConnector", "kv_connector_extra_config":
                            {"cpu_bytes_to_use": 1e8, "secondary_tiers": [{"type": "fs", "root_dir": "SHARED"}]}}]""".formatted(nixl)));
    }

    @ParameterizedTest
    @MethodSource("compositions")
    void storedPromptsLoadAfterTheDeathOfTheirPrefillInstance(Composition composition) throws Exception {
        Path shared = INSTANCES.directory(composition.name());
        Instance prefill = serve(composition, "prefill", "kv_producer", shared);
        Instance decode = serve(composition, "decode", "kv_consumer", shared);

        Case handedOver = Ledgers.named("recall-260");
        JsonNode reference = prefilled(prefill, handedOver);
        Prompts before = decode.prompts();
        assertThat(decode(decode, handedOver, reference)).isEqualTo(handedOver.answer());
        // By NixlConnector, which moves partial blocks too.
        assertThat(decode.prompts().since(before).transferred()).isGreaterThanOrEqualTo(handedOver.prompt().length - 1);
        assertThat(decode.metric("vllm:nixl_bytes_transferred_sum", "\"NixlConnector\""))
                .isPositive();

        Case stored = Ledgers.named("recall-400");
        Case lost = Ledgers.named("recall-180");
        JsonNode dangling = prefilled(prefill, lost);
        double before400 = prefill.metric(composition.stored(), "\"" + composition.store() + "\"");
        prefilled(prefill, stored);
        int aligned = stored.aligned(BLOCK);
        // Written behind the answer; other prompts begin differently.
        double bytes = aligned * BYTES_PER_TOKEN;
        Await.until(
                Instances.DEADLINE,
                () -> "the prompt is not stored",
                () -> prefill.metric(composition.stored(), "\"" + composition.store() + "\"") - before400 >= bytes);
        prefill.kill();

        before = decode.prompts();
        Reply reply = decode.complete(stored.prompt(), MAX_TOKENS);
        assertThat(reply.tokenIds()).isEqualTo(stored.answer());
        assertThat(decode.prompts().since(before)).isEqualTo(new Prompts(stored.prompt().length - aligned, 0, aligned));
        assertThat(decode.metric(composition.loaded(), "\"" + composition.store() + "\""))
                .isPositive();

        // A reference to an instance that is gone is found out by trying it; the prompt is then computed.
        assertThat(decode(decode, lost, dangling)).isEqualTo(lost.answer());
        assertThat(decode.metric("baton:kv_connector_failures_total", "")).isZero();
    }

    private static Instance serve(Composition composition, String name, String role, Path shared) throws Exception {
        return INSTANCES.serve(
                composition.name() + "-" + name,
                "--dtype",
                "float32",
                "--no-enable-prefix-caching",
                "--kv-transfer-config",
                composition.config(role, shared));
    }

    /** Has the prompt computed for another instance. Returns the reference to its blocks. */
    private static JsonNode prefilled(Instance prefill, Case asked) throws Exception {
        ObjectNode body = Instances.greedy(asked.prompt(), 1);
        body.putObject("kv_transfer_params").put("do_remote_decode", true).put("do_remote_prefill", false);
        Reply reply = prefill.post("/v1/completions", body.toString());
        assertThat(reply.status()).as(reply.body()).isEqualTo(200);
        return reply.json().path("kv_transfer_params");
    }

    private static int[] decode(Instance decode, Case asked, JsonNode reference) throws Exception {
        ObjectNode body = Instances.greedy(asked.prompt(), MAX_TOKENS);
        body.set("kv_transfer_params", reference);
        return decode.post("/v1/completions", body.toString()).tokenIds();
    }
}
