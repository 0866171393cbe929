package baton.cli;

import baton.cli.Instances.Instance;
import baton.kv.FreePorts;
import java.io.IOException;
import java.net.URI;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * A real vLLM, a prefill and a decode instance of Baton's, all of tiny-ledger in one dtype, and a router for each direction. The
 * instances' ports and side channels stay the same when they are started again.
 *
 * @param toVllm from Baton's prefill instance to vLLM
 * @param fromVllm from vLLM to Baton's decode instance
 */
record MixedFleet(Starter starter, Vllm vllm, Instance prefill, Instance decode, Instance toVllm, Instance fromVllm)
        implements AutoCloseable {
    static final String EXTRA = "--kv-transfer-config.kv_connector_extra_config.";

    /** Starts instances of Baton that hand over to and from a vLLM. */
    record Starter(Instances instances, Path library, String version, Vllm.Setup setup) {
        /** @param more options after those that all have */
        Instance serve(String name, String role, String... more) throws IOException {
            List<String> options = new ArrayList<>(List.of(
                    EXTRA + "vllm_compat.version",
                    version,
                    EXTRA + "vllm_compat.model",
                    setup.model(),
                    EXTRA + "vllm_compat.attn_backend_name",
                    "CPU_ATTN"));
            options.addAll(List.of(more));
            return serveWithoutHash(name, role, options.toArray(String[]::new));
        }

        /** The same without {@code vllm_compat}. */
        Instance serveWithoutHash(String name, String role, String... more) throws IOException {
            String transfer = "--kv-transfer-config.";
            List<String> options = new ArrayList<>(List.of(
                    "-Dbaton.nixl.library=" + library.getParent(),
                    "--dtype",
                    setup.dtype(),
                    "--block-size",
                    Integer.toString(Vllm.BLOCK),
                    transfer + "kv_connector",
                    setup.connector(),
                    transfer + "kv_role",
                    role,
                    transfer + "kv_load_failure_policy",
                    "recompute",
                    EXTRA + "kv_lease_duration",
                    Integer.toString(setup.leaseSeconds()),
                    EXTRA + "transfer_agent",
                    "nixl",
                    EXTRA + "side_channel_host",
                    "127.0.0.1"));
            options.addAll(List.of(more));
            return instances.serve(
                    name, setup.directory().resolve(setup.model()), "256M", options.toArray(String[]::new));
        }

        Instance route(String name, URI prefill, URI decode) throws IOException, InterruptedException {
            return instances.route(
                    name,
                    List.of(),
                    List.of(),
                    "--prefill",
                    prefill.toString(),
                    "--decode",
                    decode.toString(),
                    "--flow",
                    "kv_transfer_params");
        }
    }

    /** Starts all of it and waits until it serves; skips the test where no vLLM is installed. */
    static MixedFleet start(Instances instances, Vllm.Setup setup) throws Exception {
        Path environment = Vllm.assumeInstalled();
        Vllm vllm = Vllm.start(environment, instances.directory("vllm").resolve("log"), setup);
        try {
            vllm.awaitReady();
            Starter starter =
                    new Starter(instances, Vllm.nixlLibrary(environment).orElseThrow(), vllm.version(), setup);
            Instance prefill = starter.serve("prefill", "kv_producer", EXTRA + "side_channel_port", freePort());
            Instance decode = starter.serve(
                    "decode",
                    "kv_consumer",
                    EXTRA + "side_channel_port",
                    freePort(),
                    EXTRA + "vllm_cpu_attn_isa",
                    "vec");
            return new MixedFleet(
                    starter,
                    vllm,
                    prefill,
                    decode,
                    starter.route("to vLLM", prefill.url(), vllm.url()),
                    starter.route("from vLLM", vllm.url(), decode.url()));
        } catch (Exception | AssertionError e) {
            vllm.close();
            throw e;
        }
    }

    /** The {@code kv_transfer_params} of a prefill leg, as vLLM's proxies write them. */
    static JsonNode doRemoteDecode() {
        return Instances.JSON.readTree("""
                {"do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": null,
                 "remote_block_ids": null, "remote_host": null, "remote_port": null}""");
    }

    private static String freePort() throws IOException {
        return Integer.toString(FreePorts.inARow(1));
    }

    /** A greedy completion's body that goes on after an end token. */
    static ObjectNode body(int[] prompt, int maxTokens) {
        return Instances.greedy(prompt, maxTokens).put("model", Vllm.MODEL).put("ignore_eos", true);
    }

    @Override
    public void close() throws Exception {
        vllm.close();
    }
}
