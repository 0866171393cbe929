package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.FleetRun.Counts;
import baton.cli.Instances.Instance;
import baton.cli.Instances.Prompts;
import baton.cli.Instances.Reply;
import baton.kv.FreePorts;
import baton.testkit.Await;
import baton.testkit.InstalledProgram;
import java.io.IOException;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.api.parallel.Isolated;
import tools.jackson.databind.node.ObjectNode;

/**
 * llm-d's scheduler (EPP) behind Envoy, with its sidecar in front of each decode instance of Baton's, found by a file. The environment variable
 * {@code BATON_LLMD} names a directory with {@code bin/epp} and {@code bin/pd-sidecar} of llm-d-router, {@code BATON_FLEETS} that with
 * {@code envoy}. {@code -Dtests.requests=N} sends N requests through each flow.
 */
@Tag("fleets")
@Isolated("The fleet needs the cores.")
@Timeout(1800)
@SuppressWarnings("InlineFormatString") // configurations of many lines
class LlmdTest {
    private static final String LLMD = "BATON_LLMD";
    private static final String MODEL = "tiny-ledger";
    private static final int REQUESTS = Integer.getInteger("tests.requests", 1000);
    private static final int CLIENTS = 6;
    private static final int BLOCK = 16;
    private static final String TRANSFER = "--kv-transfer-config.";
    private static final String EXTRA = TRANSFER + "kv_connector_extra_config.";

    /** Always asks a prefill instance; the one that has fewer requests waiting. */
    private static final String ALWAYS_DISAGGREGATES = """
            plugins:
            - {type: file-discovery, name: endpoints, parameters: {path: %s}}
            - {type: queue-scorer}
            - {type: prefill-filter}
            - {type: decode-filter}
            - {type: max-score-picker}
            - {type: always-disagg-pd-decider}
            - {type: disagg-profile-handler, parameters: {deciders: {prefill: always-disagg-pd-decider}}}
            dataLayer: {discovery: {pluginRef: endpoints}}
            schedulingProfiles:
            - name: prefill
              plugins: [{pluginRef: prefill-filter}, {pluginRef: max-score-picker}, {pluginRef: queue-scorer}]
            - name: decode
              plugins: [{pluginRef: decode-filter}, {pluginRef: max-score-picker}, {pluginRef: queue-scorer}]
            """;

    /** Sends to the instance that holds most of the prompt's blocks, by KV events and the token ids of {@code /render}. */
    private static final String PRECISE_PREFIXES = """
            plugins:
            - {type: file-discovery, name: endpoints, parameters: {path: %s}}
            - type: token-producer
              parameters: {modelName: tiny-ledger, vllm: {url: "%s"}}
            - type: precise-prefix-cache-producer
              parameters:
                tokenProcessorConfig: {blockSize: 16}
                indexerConfig: {kvBlockIndexConfig: {enableMetrics: true}}
                kvEventsConfig: {zmqEndpoint: "tcp://127.0.0.1:%d", discoverPods: false}
            - type: prefix-cache-scorer
              parameters: {prefixMatchInfoProducerName: precise-prefix-cache-producer}
            - {type: max-score-picker}
            - {type: single-profile-handler}
            dataLayer: {discovery: {pluginRef: endpoints}}
            schedulingProfiles:
            - name: default
              plugins: [{pluginRef: prefix-cache-scorer}, {pluginRef: max-score-picker}]
            """;

    private static final String ENVOY = """
            static_resources:
              listeners:
              - address: {socket_address: {address: 127.0.0.1, port_value: %d}}
                filter_chains:
                - filters:
                  - name: envoy.filters.network.http_connection_manager
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                      stat_prefix: fleet
                      route_config:
                        virtual_hosts:
                        - {name: all, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: chosen, timeout: 120s}}]}
                      http_filters:
                      - name: envoy.filters.http.ext_proc
                        typed_config:
                          "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor
                          grpc_service: {envoy_grpc: {cluster_name: epp, authority: localhost}, timeout: 10s}
                          processing_mode:
                            request_header_mode: SEND
                            response_header_mode: SEND
                            request_body_mode: FULL_DUPLEX_STREAMED
                            response_body_mode: FULL_DUPLEX_STREAMED
                            request_trailer_mode: SEND
                            response_trailer_mode: SEND
                          message_timeout: 120s
                      - name: envoy.filters.http.router
                        typed_config:
                          "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
              clusters:
              - name: epp
                type: STATIC
                connect_timeout: 5s
                typed_extension_protocol_options:
                  envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
                    "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
                    explicit_http_config: {http2_protocol_options: {}}
                load_assignment:
                  cluster_name: epp
                  endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %d}}}}]}]
              - name: chosen
                type: ORIGINAL_DST
                connect_timeout: 5s
                lb_policy: CLUSTER_PROVIDED
                original_dst_lb_config: {use_http_header: true, http_header_name: x-gateway-destination-endpoint}
            """;

    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    @Test
    void nixlv2() throws Exception {
        try (Fleet fleet = new Fleet("nixlv2")) {
            for (String number : List.of("1", "2")) {
                fleet.prefill(INSTANCES.serveBlocks("prefill-" + number, "NixlConnector", "kv_producer"));
                fleet.decode(INSTANCES.serveBlocks(
                        "decode-" + number, "NixlConnector", "kv_consumer", "--no-enable-prefix-caching"));
            }
            fleet.start(ALWAYS_DISAGGREGATES);
            fleet.ask().assertHandedOver();
            fleet.askWhilePrefillIsKilled().assertNoneWrongAndFailedAtMost(20 * CLIENTS);
        }
    }

    @Test
    void mooncake() throws Exception {
        String bootstrap = Integer.toString(FreePorts.inARow(1));
        try (Fleet fleet = new Fleet("mooncake", "--mooncake-bootstrap-port=" + bootstrap)) {
            fleet.prefill(serve("mooncake-prefill", "MooncakeConnector", "kv_producer", mooncake(bootstrap)));
            fleet.decode(serve("mooncake-decode", "MooncakeConnector", "kv_consumer", mooncake("0")));
            fleet.start(ALWAYS_DISAGGREGATES);
            fleet.ask().assertHandedOver();
        }
    }

    /** Both legs are sent at once; the decode instance waits for the blocks that the prefill instance stores in the directory of both. */
    @Test
    void offloading() throws Exception {
        String tier = "[{\"type\":\"fs\",\"root_dir\":\"" + INSTANCES.directory("offloaded") + "\"}]";
        Map<String, String> settings =
                Map.of("cpu_bytes_to_use", "100000000", "secondary_tiers", tier, "load_timeout_seconds", "10");
        try (Fleet fleet = new Fleet("offloading")) {
            fleet.prefill(serve("offloading-prefill", "OffloadingConnector", "kv_both", settings));
            fleet.decode(serve("offloading-decode", "OffloadingConnector", "kv_both", settings));
            fleet.start(ALWAYS_DISAGGREGATES);
            Counts counts = fleet.ask();
            assertThat(counts.prompts().computed()).as(counts.toString()).isLessThanOrEqualTo(BLOCK * REQUESTS);
        }
    }

    @Test
    void sharedStorage() throws Exception {
        Map<String, String> settings =
                Map.of("shared_storage_path", INSTANCES.directory("shared").toString());
        try (Fleet fleet = new Fleet("shared-storage")) {
            Instance prefill = serve("storage-prefill", "SharedStorageConnector", "kv_producer", settings);
            Instance decode = serve("storage-decode", "SharedStorageConnector", "kv_consumer", settings);
            fleet.prefill(prefill);
            fleet.decode(decode);
            fleet.start(ALWAYS_DISAGGREGATES);
            Counts counts = fleet.ask();
            assertThat(counts.prompts().computed()).as(counts.toString()).isLessThanOrEqualTo(BLOCK * REQUESTS);

            // The decode instance is asked first, and the prefill instance only for blocks that are not stored.
            ObjectNode body = Instances.greedy(Ledgers.prompt(300, 77), 4).put("cache_hit_threshold", 0.8);
            Prompts before = prefill.prompts();
            Reply cold = fleet.post(body);
            assertThat(prefill.prompts().since(before).computed()).isEqualTo(300);
            before = prefill.prompts();
            Reply stored = fleet.post(body);
            assertThat(prefill.prompts().since(before)).isEqualTo(new Prompts(0, 0, 0));
            assertThat(stored.tokenIds()).isEqualTo(cold.tokenIds()).isNotEmpty();
            assertThat(decode.metric("vllm:request_success_total", "cache_threshold"))
                    .isEqualTo(1);
        }
    }

    @Test
    void requestsGoToTheInstanceThatHoldsTheirPrefix() throws Exception {
        try (Fleet fleet = new Fleet("prefixes")) {
            int events = FreePorts.inARow(1);
            List<Instance> instances = new ArrayList<>();
            for (String name : List.of("first", "second", "third")) {
                int port = FreePorts.inARow(1);
                ObjectNode publishes = Instances.JSON
                        .createObjectNode()
                        .put("enable_kv_cache_events", true)
                        .put("endpoint", "tcp://127.0.0.1:" + events)
                        .put("topic", "kv@127.0.0.1:" + port + "@" + MODEL);
                instances.add(INSTANCES.serve(
                        name, "--port", Integer.toString(port), "--kv-events-config", publishes.toString()));
                fleet.endpoint("decode", port);
            }
            URI rendering = instances.getFirst().url();
            fleet.start(PRECISE_PREFIXES.formatted("%s", rendering, events));
            for (Instance each : instances) {
                Await.until(Instances.DEADLINE, fleet::tails, () -> each.metric("baton:kv_event_subscribers", "") == 1);
            }
            for (int conversation = 0; conversation < 12; conversation++) {
                // The scheduler asks for the tokens of a text.
                String facts = IntStream.range(100 * conversation, 100 * conversation + 60)
                        .mapToObj(number -> "Fact " + number)
                        .collect(Collectors.joining(", "));
                ObjectNode body = Instances.JSON
                        .createObjectNode()
                        .put("prompt", facts)
                        .put("max_tokens", 4)
                        .put("temperature", 0)
                        .put("return_token_ids", true);
                Instance holder = instances.get(conversation % instances.size());
                double known = fleet.counted("kvcache_index_admissions_total");
                int[] alone = holder.post("/v1/completions", body.toString()).tokenIds();
                Await.until(
                        Instances.DEADLINE,
                        fleet::tails,
                        () -> fleet.counted("kvcache_index_admissions_total") > known);
                Prompts before = holder.prompts();
                Reply reply = fleet.post(body);
                assertThat(reply.tokenIds()).isEqualTo(alone);
                assertThat(holder.prompts().since(before).cached())
                        .as("conversation %d", conversation)
                        .isGreaterThanOrEqualTo(
                                reply.json().at("/usage/prompt_tokens").asInt() - BLOCK);
            }
        }
    }

    private static Map<String, String> mooncake(String bootstrapPort) {
        return Map.of("mooncake_protocol", "tcp", "bootstrap_port", bootstrapPort);
    }

    private static Instance serve(String name, String connector, String role, Map<String, String> settings)
            throws Exception {
        List<String> all = new ArrayList<>(List.of(
                "--dtype",
                "float32",
                "--no-enable-prefix-caching",
                TRANSFER + "kv_connector",
                connector,
                TRANSFER + "kv_role",
                role,
                TRANSFER + "kv_load_failure_policy",
                "recompute"));
        settings.forEach((setting, value) -> all.addAll(List.of(EXTRA + setting, value)));
        return INSTANCES.serve(name, all.toArray(String[]::new));
    }

    /** Envoy, the scheduler, and a sidecar for each decode instance. */
    private static final class Fleet implements AutoCloseable {
        private final String connector;
        private final List<String> sidecarOptions;
        private final Path epp = InstalledProgram.assumeInstalled(LLMD, "epp");
        private final Path sidecar = InstalledProgram.assumeInstalled(LLMD, "pd-sidecar");
        private final Path envoy = InstalledProgram.assumeInstalled(InstalledProgram.FLEETS, "envoy");
        private final Path directory;
        private final List<InstalledProgram> programs = new ArrayList<>();
        private final List<Instance> prefills = new ArrayList<>();
        private final List<Instance> decodes = new ArrayList<>();
        private final StringBuilder endpoints = new StringBuilder("endpoints:\n");
        private final int schedulerPorts = FreePorts.inARow(3);
        private final URI url = URI.create("http://127.0.0.1:" + FreePorts.inARow(1));

        private Fleet(String connector, String... sidecarOptions) throws IOException {
            this.connector = connector;
            this.sidecarOptions = List.of(sidecarOptions);
            this.directory = INSTANCES.directory("llmd-" + connector);
        }

        private void prefill(Instance instance) throws Exception {
            prefills.add(instance);
            endpoint("prefill", instance.url().getPort());
        }

        /** An instance that is reached through a sidecar. */
        private void decode(Instance instance) throws Exception {
            decodes.add(instance);
            int port = FreePorts.inARow(1);
            List<String> command = new ArrayList<>(List.of(
                    sidecar.toString(),
                    "--port=" + port,
                    "--model-server-port=" + instance.url().getPort(),
                    "--secure-proxy=false",
                    "--kv-connector=" + connector));
            command.addAll(sidecarOptions);
            start("sidecar-" + instance, command).awaitHealthy(URI.create("http://127.0.0.1:" + port + "/health"));
            endpoint("decode", port);
        }

        private void endpoint(String role, int port) {
            endpoints.append("""
                    - {name: "%s-%d", address: 127.0.0.1, port: "%d", labels: {llm-d.ai/role: %s}}
                    """.formatted(role, port, port, role));
        }

        /** @param configuration of the scheduler, for the path of the file with the endpoints */
        private void start(String configuration) throws Exception {
            Path file = Files.writeString(directory.resolve("endpoints.yaml"), endpoints);
            Path config = Files.writeString(directory.resolve("epp.yaml"), configuration.formatted(file));
            start(
                            "epp",
                            List.of(
                                    epp.toString(),
                                    "--config-file=" + config,
                                    "--pool-name=fleet",
                                    "--pool-namespace=default",
                                    "--grpc-port=" + schedulerPorts,
                                    "--grpc-health-port=" + (schedulerPorts + 1),
                                    "--metrics-port=" + (schedulerPorts + 2),
                                    "--metrics-endpoint-auth=false",
                                    "--secure-serving=false",
                                    "--tracing=false"))
                    .awaitListening(schedulerPorts);
            Path gateway =
                    Files.writeString(directory.resolve("envoy.yaml"), ENVOY.formatted(url.getPort(), schedulerPorts));
            start(
                            "envoy",
                            List.of(
                                    envoy.toString(),
                                    "-c",
                                    gateway.toString(),
                                    "--concurrency",
                                    "1",
                                    "--use-dynamic-base-id"))
                    .awaitListening(url.getPort());
            // The scheduler sends nothing before it has the instances' metrics.
            Await.until(
                    Instances.DEADLINE,
                    this::tails,
                    () -> complete(Ledgers.prompt(20, 1), 1).status() == 200);
        }

        private InstalledProgram start(String name, List<String> command) throws IOException {
            InstalledProgram program = InstalledProgram.start(directory.resolve(name + ".log"), command);
            programs.add(program);
            return program;
        }

        private String tails() {
            return programs.stream().map(InstalledProgram::tail).collect(Collectors.joining("\n----\n"));
        }

        private Reply complete(int[] prompt, int maxTokens) throws Exception {
            return post(Instances.greedy(prompt, maxTokens));
        }

        private Reply post(ObjectNode body) throws Exception {
            return INSTANCES.post(
                    url, "/v1/completions", body.put("model", MODEL).toString());
        }

        private Counts ask() throws Exception {
            Counts counts = new FleetRun(url, REQUESTS, CLIENTS, decodes).ask();
            System.out.println("llm-d, " + connector + ": " + counts);
            assertThat(programs).as(tails()).allMatch(InstalledProgram::isAlive);
            return counts.assertAllRight();
        }

        private Counts askWhilePrefillIsKilled() throws Exception {
            Instance victim = prefills.getFirst();
            Counts counts = new FleetRun(url, REQUESTS, CLIENTS, decodes).ask(() -> {
                victim.kill();
                victim.restart();
                victim.url();
            });
            System.out.println("llm-d, " + connector + ", an instance killed: " + counts);
            return counts;
        }

        /** The scheduler's count under a name. */
        private double counted(String name) throws Exception {
            URI scheduler = URI.create("http://127.0.0.1:" + (schedulerPorts + 2));
            try (ApiClient client = new ApiClient()) {
                return client.metrics(scheduler).entrySet().stream()
                        .filter(sample -> sample.getKey().contains(name))
                        .mapToDouble(Map.Entry::getValue)
                        .sum();
            }
        }

        @Override
        public void close() throws IOException, InterruptedException {
            for (InstalledProgram program : programs) {
                program.close();
            }
            for (Instance instance : prefills) {
                instance.kill();
            }
            for (Instance instance : decodes) {
                instance.kill();
            }
        }
    }
}
