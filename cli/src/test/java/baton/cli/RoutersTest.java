package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.FleetRun.Counts;
import baton.cli.Instances.Instance;
import baton.kv.FreePorts;
import baton.testkit.Await;
import baton.testkit.InstalledProgram;
import java.net.URI;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Function;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.api.parallel.Isolated;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/**
 * Routers that Baton did not write in front of two prefill and two decode instances of Baton's. {@code mvn -Pfleets -pl cli -am package} runs it,
 * with {@code -Dtests.requests=N} N requests through each, and again N while an instance is killed and started again.
 */
@Tag("fleets")
@Isolated("Routers and instances need the cores.")
@Timeout(1200)
class RoutersTest {
    private static final int REQUESTS = Integer.getInteger("tests.requests", 1000);
    private static final int CLIENTS = 6;

    /** Some routers go on to give every second request to the instance that is gone, until it is there again or a health check fails. */
    private static final int MOST_FAILED = REQUESTS / 2;

    private static final List<String> HEALTH_CHECKS = List.of(
            "--health-check-interval-secs", "1", "--health-failure-threshold", "1", "--health-success-threshold", "1");

    private static final String TRANSFER = "--kv-transfer-config.";
    private static final String EXTRA = TRANSFER + "kv_connector_extra_config.";

    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    /** @param bootstrapPorts of prefill instances with {@code MooncakeConnector} */
    private record Pools(List<Instance> prefills, List<Instance> decodes, List<Integer> bootstrapPorts) {
        /** For each instance the text, joined by commas. */
        String list(Function<Instance, String> text) {
            return all().stream().map(text).collect(Collectors.joining(","));
        }

        List<Instance> all() {
            return Stream.concat(prefills.stream(), decodes.stream()).toList();
        }
    }

    @Test
    void vllmRouterWithNixl() throws Exception {
        Path program = InstalledProgram.assumeInstalled(InstalledProgram.FLEETS, "vllm-router");
        Pools pools = nixl();
        List<String> command = pdCommand(program, pools, "--vllm-pd-disaggregation", "--kv-connector", "nixl");
        disaggregated("vllm-router, nixl", pools, command, "--prometheus-port");
    }

    @Test
    void vllmRouterWithMooncake() throws Exception {
        Path program = InstalledProgram.assumeInstalled(InstalledProgram.FLEETS, "vllm-router");
        Pools pools = written(
                "MooncakeConnector",
                EXTRA + "mooncake_protocol",
                "tcp",
                // A decode leg that names the killed instance's engine fetches nothing.
                EXTRA + "abort_request_timeout",
                "5");
        List<String> command = pdCommand(program, pools, "--vllm-pd-disaggregation", "--kv-connector", "mooncake");
        disaggregated("vllm-router, mooncake", pools, command, "--prometheus-port");
    }

    /** Its package has the name of the one above and is in no registry, so it has an environment of its own. */
    @Test
    void productionStacksRouter() throws Exception {
        Path program = InstalledProgram.assumeInstalled("BATON_PRODUCTION_STACK", "vllm-router");
        Pools pools = nixl();
        List<String> command = List.of(
                program.toString(),
                "--service-discovery",
                "static",
                "--static-backends",
                pools.list(each -> url(each).toString()),
                "--static-models",
                pools.list(_ -> "tiny-ledger"),
                "--static-model-labels",
                pools.list(each -> pools.prefills().contains(each) ? "prefill" : "decode"),
                "--prefill-model-labels",
                "prefill",
                "--decode-model-labels",
                "decode",
                "--routing-logic",
                "disaggregated_prefill_orchestrated",
                "--static-model-types",
                pools.list(_ -> "completion"),
                "--static-backend-health-checks",
                "--static-backend-health-check-interval",
                "1");
        disaggregated("production-stack, nixl", pools, command);
    }

    @ParameterizedTest
    @ValueSource(strings = {"smg", "sglang-router"})
    void sglangsRoutersWithItsBootstrap(String name) throws Exception {
        Path program = InstalledProgram.assumeInstalled(InstalledProgram.FLEETS, name);
        // A decode leg may ask the restarted instance for a prompt of the killed one.
        Pools pools = written("SglangConnector", EXTRA + "bootstrap_timeout", "5", EXTRA + "waiting_timeout", "5");
        List<String> command = pdCommand(program, pools, "launch", "--pd-disaggregation");
        command.addAll(HEALTH_CHECKS);
        disaggregated(name + ", SGLang's bootstrap", pools, command, "--prometheus-port");
    }

    /** Without SGLang's bootstrap these distribute whole requests. */
    @ParameterizedTest
    @ValueSource(strings = {"smg", "sglang-router"})
    void sglangsRoutersDistributeWholeRequests(String name) throws Exception {
        Path program = InstalledProgram.assumeInstalled(InstalledProgram.FLEETS, name);
        Pools pools = new Pools(List.of(serve("first"), serve("second")), List.of(), List.of());
        List<String> command = new ArrayList<>(List.of(program.toString(), "launch", "--policy", "round_robin"));
        command.addAll(HEALTH_CHECKS);
        command.add("--worker-urls");
        pools.prefills().forEach(each -> command.add(url(each).toString()));
        run(name + ", whole requests", pools, command, "--prometheus-port");
    }

    private static Instance serve(String name, String... options) throws Exception {
        List<String> all = new ArrayList<>(List.of("--dtype", "float32"));
        all.addAll(List.of(options));
        return INSTANCES.serve(name, all.toArray(String[]::new));
    }

    private static Pools nixl() throws Exception {
        List<Instance> prefills = new ArrayList<>();
        List<Instance> decodes = new ArrayList<>();
        for (String number : List.of("1", "2")) {
            prefills.add(INSTANCES.serveBlocks("prefill-" + number, "NixlConnector", "kv_producer"));
            decodes.add(INSTANCES.serveBlocks(
                    "decode-" + number, "NixlConnector", "kv_consumer", "--no-enable-prefix-caching"));
        }
        return new Pools(prefills, decodes, List.of());
    }

    /** Prefill instances write prompts where decode instances want them, and each runs a registry. */
    private static Pools written(String connector, String... options) throws Exception {
        List<Instance> prefills = new ArrayList<>();
        List<Instance> decodes = new ArrayList<>();
        List<Integer> ports = new ArrayList<>();
        for (String number : List.of("1", "2")) {
            ports.add(FreePorts.inARow(1));
            List<String> prefill = new ArrayList<>(List.of(options));
            prefill.addAll(List.of(TRANSFER + "kv_connector", connector, TRANSFER + "kv_role"));
            List<String> decode = new ArrayList<>(prefill);
            prefill.addAll(List.of(
                    "kv_producer", EXTRA + "bootstrap_port", ports.getLast().toString()));
            decode.addAll(List.of(
                    "kv_consumer", TRANSFER + "kv_load_failure_policy", "recompute", "--no-enable-prefix-caching"));
            prefills.add(serve("prefill-" + number, prefill.toArray(String[]::new)));
            decodes.add(serve("decode-" + number, decode.toArray(String[]::new)));
        }
        return new Pools(prefills, decodes, ports);
    }

    private static List<String> pdCommand(Path program, Pools pools, String... options) {
        List<String> command = new ArrayList<>(List.of(program.toString()));
        command.addAll(List.of(options));
        command.addAll(List.of("--policy", "round_robin"));
        command.addAll(HEALTH_CHECKS);
        for (int i = 0; i < pools.prefills().size(); i++) {
            command.addAll(List.of("--prefill", url(pools.prefills().get(i)).toString()));
            if (!pools.bootstrapPorts().isEmpty()) {
                command.add(pools.bootstrapPorts().get(i).toString());
            }
            command.addAll(List.of("--decode", url(pools.decodes().get(i)).toString()));
        }
        return command;
    }

    private static URI url(Instance instance) {
        try {
            return instance.url();
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    private static void disaggregated(String name, Pools pools, List<String> command, String... portOptions)
            throws Exception {
        run(name, pools, command, portOptions).assertHandedOver();
    }

    /**
     * Sends the requests through a router, and then once more while the first prefill instance is killed and started again.
     *
     * @param portOptions of the router, beside {@code --port}, that need a free port
     * @return counts of the first requests
     */
    private static Counts run(String name, Pools pools, List<String> command, String... portOptions) throws Exception {
        int port = FreePorts.inARow(1 + portOptions.length);
        List<String> all = new ArrayList<>(command);
        all.addAll(List.of("--host", "127.0.0.1", "--port", Integer.toString(port)));
        for (int i = 0; i < portOptions.length; i++) {
            all.addAll(List.of(portOptions[i], Integer.toString(port + 1 + i)));
        }
        Path log = INSTANCES.directory("router").resolve(name.replaceAll("\\W+", "-") + ".log");
        URI url = URI.create("http://127.0.0.1:" + port);
        try (InstalledProgram router = InstalledProgram.start(log, all)) {
            // Some are healthy before they know an instance.
            FleetRun first = new FleetRun(url, 1, 1, List.of());
            Await.until(Instances.DEADLINE, router::tail, () -> first.ask().right() == 1);
            Counts undisturbed = new FleetRun(url, REQUESTS, CLIENTS, pools.decodes()).ask();
            System.out.println(name + ": " + undisturbed);
            Instance victim = pools.prefills().getFirst();
            Counts killed = new FleetRun(url, REQUESTS, CLIENTS, pools.decodes()).ask(() -> {
                victim.kill();
                victim.restart();
                victim.url();
            });
            System.out.println(name + ", an instance killed: " + killed);
            assertThat(router.isAlive()).as(router.tail()).isTrue();
            undisturbed.assertAllRight();
            killed.assertNoneWrongAndFailedAtMost(MOST_FAILED);
            for (Instance each : pools.all()) {
                each.awaitRest();
            }
            return undisturbed;
        } finally {
            for (Instance each : pools.all()) {
                each.kill();
            }
        }
    }
}
