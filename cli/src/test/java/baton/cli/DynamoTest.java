package baton.cli;

import baton.cli.FleetRun.Counts;
import baton.cli.Instances.Instance;
import baton.kv.FreePorts;
import baton.testkit.InstalledProgram;
import java.io.IOException;
import java.net.URI;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.api.parallel.Isolated;

/**
 * Instances of Baton's as NVIDIA Dynamo's workers: its frontend and its sidecars for vLLM, one for the gRPC port of each instance, which find each
 * other through a directory. {@code mvn -Pfleets -pl cli -am package} runs it, with {@code -Dtests.requests=N} N requests in each case.
 */
@Tag("fleets")
@Isolated("Programs and instances need the cores.")
@Timeout(1200)
class DynamoTest {
    private static final int REQUESTS = Integer.getInteger("tests.requests", 1000);
    private static final int CLIENTS = 6;
    private static final String GRPC_PORT = "--grpc-port";

    /** Dynamo goes on calling the sidecar of an instance that is gone; the next instance answers after a few seconds. */
    private static final int MOST_FAILED = REQUESTS / 2;

    private final Deque<InstalledProgram> programs = new ArrayDeque<>();
    private final List<Instance> instances = new ArrayList<>();

    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    private Path python;
    private Path directory;

    @BeforeEach
    void findDynamo() throws Exception {
        python = InstalledProgram.assumePython(
                InstalledProgram.FLEETS, "dynamo.frontend", "dynamo.vllm.sidecar", "uvloop", "msgspec");
        directory = INSTANCES.directory("dynamo-" + System.nanoTime());
    }

    @AfterEach
    void stop() throws Exception {
        while (!programs.isEmpty()) {
            programs.pop().close();
        }
        for (Instance instance : instances) {
            instance.kill();
        }
    }

    @Test
    void instancesAreWorkers() throws Exception {
        worker("agg", "one", port -> INSTANCES.serve("one", "--dtype", "float32", GRPC_PORT, port));
        worker("agg", "two", port -> INSTANCES.serve("two", "--dtype", "float32", GRPC_PORT, port));
        Counts counts = new FleetRun(frontend(), REQUESTS, CLIENTS, List.of(), true).ask();
        System.out.println("Dynamo, whole requests: " + counts);
        counts.assertAllRight();
    }

    @Test
    void prefillInstancesHandOverToDecodeInstances() throws Exception {
        List<Instance> decodes = new ArrayList<>();
        List<Instance> prefills = new ArrayList<>();
        for (String number : List.of("one", "two")) {
            prefills.add(nixl("prefill", "prefill-" + number, "kv_producer"));
            decodes.add(nixl("decode", "decode-" + number, "kv_consumer"));
        }
        FleetRun run = new FleetRun(frontend(), REQUESTS, CLIENTS, decodes, true);
        Counts undisturbed = run.ask();
        System.out.println("Dynamo, NIXL: " + undisturbed);
        Counts killed = run.ask(() -> {
            prefills.getFirst().kill();
            prefills.getFirst().restart();
            prefills.getFirst().url();
        });
        System.out.println("Dynamo, NIXL, an instance killed: " + killed);
        undisturbed.assertAllRight().assertHandedOver();
        killed.assertNoneWrongAndFailedAtMost(MOST_FAILED);
        for (Instance each : instances) {
            each.awaitRest();
        }
    }

    private Instance nixl(String mode, String name, String role) throws Exception {
        return worker(
                mode,
                name,
                port -> INSTANCES.serveBlocks(
                        name, "NixlConnector", role, "--no-enable-prefix-caching", GRPC_PORT, port));
    }

    private interface Start {
        Instance with(String grpcPort) throws IOException;
    }

    /** Starts an instance and its sidecar. */
    private Instance worker(String mode, String name, Start start) throws Exception {
        String port = Integer.toString(FreePorts.inARow(1));
        Instance instance = start.with(port);
        instances.add(instance);
        instance.url();
        program(name, "dynamo.vllm.sidecar", "--grpc-endpoint", "127.0.0.1:" + port, "--disaggregation-mode", mode);
        return instance;
    }

    /** Starts the frontend, and waits until it has found the workers. */
    private URI frontend() throws IOException {
        int port = FreePorts.inARow(1);
        URI url = URI.create("http://127.0.0.1:" + port);
        program("frontend", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", Integer.toString(port))
                .await(() -> InstalledProgram.answers(url.resolve("/v1/models/tiny-ledger")));
        return url;
    }

    private InstalledProgram program(String name, String module, String... options) throws IOException {
        List<String> command = new ArrayList<>(List.of(python.toString(), "-m", module));
        command.addAll(List.of(options));
        InstalledProgram program = InstalledProgram.start(
                directory.resolve(name + ".log"),
                directory,
                Map.of(
                        "DYN_DISCOVERY_BACKEND",
                        "file",
                        "DYN_FILE_KV",
                        directory.resolve("discovery").toString(),
                        "DYN_REQUEST_PLANE",
                        "tcp",
                        "DYN_EVENT_PLANE",
                        "zmq",
                        "HF_HUB_OFFLINE",
                        "1"),
                command);
        programs.push(program);
        return program;
    }
}
