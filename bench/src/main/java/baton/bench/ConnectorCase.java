package baton.bench;

import baton.cluster.ClusterConnector;
import baton.cluster.ClusterConnector.Place;
import baton.cluster.LocalCluster;
import baton.kv.ConfigException;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.connector.KvConnectors;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.function.Function;
import java.util.function.Supplier;
import java.util.stream.Stream;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * A way to use a connector, as {@link ConnectorBench} measures it: one row of its tables.
 *
 * @param name the value of {@code kv_connector}, and a word for what is not its default
 * @param setup which processes, and their settings
 * @param facts that cannot be measured
 * @param missing what this machine lacks for it
 */
public record ConnectorCase(String name, Setup setup, Facts facts, Supplier<Optional<String>> missing) {
    static final String REDIS = "redis-server";

    private static final String OFFLOADING = "OffloadingConnector";
    private static final String MOONCAKE_STORE = "BATON_MOONCAKE_STORE_URL";
    private static final JsonMapper JSON = JsonMapper.builder().build();

    /**
     * What a user has to know of a connector, a short phrase each.
     *
     * @param hosts where its instances may be
     * @param needs beside the instances and the router
     * @param hardware that it makes use of
     * @param keeps what repeated prompts find, and after a restart
     * @param peers other programs that it works with
     */
    public record Facts(String hosts, String needs, String hardware, String keeps, String peers) {}

    /** The processes of a case. */
    public sealed interface Setup {
        /** Value of {@code kv_connector}. */
        String kvConnector();
    }

    /**
     * A prefill instance, a decode instance and a router.
     *
     * @param hits whether the decode instance finds by itself what the prefill instance has stored
     */
    public record Pair(ClusterConnector connector, boolean hits) implements Setup {
        @Override
        public String kvConnector() {
            return connector.kvConnector();
        }
    }

    /**
     * One instance.
     *
     * @param secondTier whether memory is too small for the prompts, so that they are in the tier behind it
     * @param settings {@code kv_connector_extra_config}
     */
    public record Single(
            String kvConnector, boolean secondTier, boolean redis, Function<SinglePlace, ObjectNode> settings)
            implements Setup {}

    /**
     * What is there for one instance.
     *
     * @param directory for files
     * @param memory bytes for KV caches
     * @param redisPort of a Redis server, 0 without one
     */
    record SinglePlace(Path directory, long memory, int redisPort) {}

    private static final Facts NIXL = new Facts(
            "one or several",
            "nothing",
            "none; RDMA with NIXL's library",
            "nothing",
            "Baton's instances, any number and at any time");

    private static final Facts P2P = new Facts(
            "one or several",
            "the router's registration",
            "none; GPUs with NCCL",
            "nothing",
            "vLLM's with this connector, which vLLM had until 2026");

    private static final Facts PYNCCL = new Facts(
            "one or several",
            "one instance's address, two ports until both have met",
            "none; GPUs with NCCL",
            "nothing",
            "one Baton instance");

    private static final Facts MOONCAKE = new Facts(
            "one or several",
            "a port for the registry",
            "none",
            "nothing",
            "Baton's instances, any number and at any time; vLLM's, whose messages these are");

    /** All of them, in the order in which they are measured and shown. */
    static final List<ConnectorCase> ALL = List.of(
            new ConnectorCase(
                    "SharedStorageConnector",
                    new Pair(LocalCluster.Connector.SharedStorageConnector, true),
                    new Facts(
                            "those that mount the directory",
                            "a directory that all see",
                            "none; as fast as the file system",
                            "files, until they are deleted",
                            "vLLM's ExampleConnector"),
                    Optional::empty),
            pair("NixlConnector", LocalCluster.Connector.NixlConnector, NIXL),
            pair("NixlConnector/pull", LocalCluster.Connector.NixlConnector.by("kv_transfer_params"), NIXL),
            new ConnectorCase(
                    "NixlConnector/nixl",
                    new Pair(with(LocalCluster.Connector.NixlConnector, "transfer_agent", "nixl"), false),
                    new Facts(
                            "one or several",
                            "NIXL's library",
                            "made for RDMA; without it UCX in software",
                            "nothing",
                            "Baton's instances, any number and at any time"),
                    () -> missing("BATON_NIXL_LIBRARY", System.getenv("BATON_NIXL_LIBRARY") != null, "is not set")),
            pair("NixlPushConnector", LocalCluster.Connector.NixlPushConnector, NIXL),
            pair("P2pNcclConnector", LocalCluster.Connector.P2pNcclConnector, P2P),
            pair("P2pNcclConnector/gloo", with(LocalCluster.Connector.P2pNcclConnector, "transport", "gloo"), P2P),
            pair("PyNcclConnector", LocalCluster.Connector.PyNcclConnector, PYNCCL),
            pair("MooncakeConnector", LocalCluster.Connector.MooncakeConnector, MOONCAKE),
            new ConnectorCase(
                    "PyNcclConnector/nccl",
                    new Pair(with(LocalCluster.Connector.PyNcclConnector, "transport", "nccl"), false),
                    new Facts(
                            "one or several",
                            "NCCL, the CUDA runtime",
                            "a GPU for each instance",
                            "nothing",
                            "one Baton instance"),
                    () -> missing("NCCL", gpus() >= 2, "needs a GPU for each instance, this machine has " + gpus())),
            new ConnectorCase(
                    "MultiConnector",
                    new Pair(new NixlAndFiles(), false),
                    new Facts(
                            "as its parts",
                            "what its parts need",
                            "as its parts",
                            "what its parts keep; here files",
                            "as its parts"),
                    Optional::empty),
            new ConnectorCase(
                    OFFLOADING,
                    new Single(OFFLOADING, false, false, place -> memory(place.memory())),
                    new Facts("one", "memory", "none", "blocks in memory, until evicted; gone at the end", "none"),
                    Optional::empty),
            new ConnectorCase(
                    OFFLOADING + "/fs",
                    new Single(
                            OFFLOADING,
                            true,
                            false,
                            place -> memory(
                                    place.memory(),
                                    JSON.createObjectNode()
                                            .put("type", "fs")
                                            .put("root_dir", place.directory().toString()))),
                    new Facts(
                            "those that mount the directory",
                            "memory, a directory",
                            "none; as fast as the file system",
                            "files too; a restart keeps them",
                            "other instances on the directory"),
                    Optional::empty),
            new ConnectorCase(
                    OFFLOADING + "/redis",
                    new Single(
                            OFFLOADING,
                            true,
                            true,
                            place -> memory(
                                    place.memory(),
                                    JSON.createObjectNode()
                                            .put("type", "redis")
                                            .put("url", "redis://127.0.0.1:" + place.redisPort()))),
                    new Facts(
                            "one or several",
                            "memory, a Redis server",
                            "none; as fast as the network",
                            "what Redis keeps; a restart keeps it",
                            "other instances on the server"),
                    () -> missing(REDIS, OtherProgram.find(REDIS).isPresent(), "is not on the PATH")),
            new ConnectorCase(
                    "LMCacheConnectorV1",
                    new Single(
                            "LMCacheConnectorV1",
                            true,
                            true,
                            place -> JSON.createObjectNode()
                                    .put("lmcache.chunk_size", 64)
                                    .put("lmcache.max_local_cpu_size", place.memory() / (double) (1L << 30))
                                    .put("lmcache.baton_model_name", "bench")
                                    .put("lmcache.remote_url", "redis://127.0.0.1:" + place.redisPort())),
                    new Facts(
                            "one or several",
                            "memory, a Redis server",
                            "none; as fast as the network",
                            "what Redis keeps; a restart keeps it",
                            "other instances and LMCache's on the server"),
                    () -> missing(REDIS, OtherProgram.find(REDIS).isPresent(), "is not on the PATH")),
            new ConnectorCase(
                    "MooncakeStoreConnector",
                    new Single(
                            "MooncakeStoreConnector",
                            true,
                            false,
                            place -> JSON.createObjectNode()
                                    .put("local_buffer_size", Long.toString(place.memory()))
                                    .put("store_rest_url", mooncakeStore().orElse("http://127.0.0.1:1"))),
                    new Facts(
                            "one or several",
                            "memory, Mooncake's master and REST service or C library",
                            "RDMA by the C library",
                            "what the store keeps",
                            "other instances on the store"),
                    () -> missing(
                            MOONCAKE_STORE, mooncakeStore().isPresent(), "is not set: the URL of a REST service")));

    private static Optional<String> mooncakeStore() {
        return Optional.ofNullable(System.getenv(MOONCAKE_STORE));
    }

    private static ConnectorCase pair(String name, ClusterConnector connector, Facts facts) {
        return new ConnectorCase(name, new Pair(connector, false), facts, Optional::empty);
    }

    private static ClusterConnector with(ClusterConnector connector, String setting, String value) {
        return connector.with(List.of(ClusterConnector.SETTING + setting, value));
    }

    /** Names of all cases. */
    public static List<String> names() {
        return ALL.stream().map(ConnectorCase::name).toList();
    }

    /**
     * The cases of these names; the value of a {@code kv_connector} stands for all of its cases.
     *
     * @param names empty: all cases
     * @throws ConfigException if there is no such case
     */
    static List<ConnectorCase> chosen(List<String> names) {
        for (String name : names) {
            if (ALL.stream().noneMatch(each -> each.isCalled(name))) {
                throw ConfigException.unsupported("connector", name, String.join(", ", names()));
            }
        }
        return ALL.stream()
                .filter(each -> names.isEmpty() || names.stream().anyMatch(each::isCalled))
                .toList();
    }

    private boolean isCalled(String asked) {
        return name.equals(asked) || setup.kvConnector().equals(asked);
    }

    /** Writes all but the figures. */
    void writeTo(ObjectNode row) {
        row.put("name", name).put("processes", processes());
        settings().forEach(row.putArray("settings")::add);
        row.put("hosts", facts.hosts)
                .put("needs", facts.needs)
                .put("hardware", facts.hardware)
                .put("keeps", facts.keeps)
                .put("peers", facts.peers);
    }

    /** Its processes, in words. */
    String processes() {
        return switch (setup) {
            case Pair _ -> "2 instances, router";
            case Single single -> single.redis ? "1 instance, Redis" : "1 instance";
        };
    }

    /** Names of the settings that it is measured with, beside {@code kv_connector} and {@code kv_role}. */
    List<String> settings() {
        return switch (setup) {
            case Pair pair -> {
                Place place = new Place(Path.of(""), 1, Optional.of(URI.create("tcp://127.0.0.1:1")), 1);
                List<String> options = pair.connector.settings(KvRole.PRODUCER, place);
                List<String> names = new ArrayList<>();
                for (int i = 0; i < options.size(); i += 2) {
                    names.add(options.get(i).substring(options.get(i).lastIndexOf('.') + 1));
                }
                if (pair.connector.listens()) {
                    names.add("kv_auth_secret_file");
                }
                yield names;
            }
            case Single single ->
                List.copyOf(single.settings
                        .apply(new SinglePlace(Path.of(""), 1, 1))
                        .propertyNames());
        };
    }

    /** Why it cannot be measured here; empty: it can. */
    Optional<String> unavailable() {
        try {
            KvConnectors.find(
                    KvTransferConfig.builder(setup.kvConnector(), KvRole.BOTH).build());
        } catch (ConfigException e) {
            return Optional.of("no connector of the name " + setup.kvConnector() + " is on the class path");
        }
        return missing.get();
    }

    private static Optional<String> missing(String what, boolean present, String otherwise) {
        return present ? Optional.empty() : Optional.of(what + " " + otherwise);
    }

    private static long gpus() {
        return Stream.iterate(0, i -> i + 1)
                .takeWhile(i -> Files.exists(Path.of("/dev/nvidia" + i)))
                .count();
    }

    private static ObjectNode memory(long bytes, ObjectNode... tiers) {
        ObjectNode settings = JSON.createObjectNode().put("cpu_bytes_to_use", bytes);
        if (tiers.length > 0) {
            ArrayNode list = settings.putArray("secondary_tiers");
            Arrays.stream(tiers).forEach(list::add);
        }
        return settings;
    }

    /** Hands over from memory to memory, and keeps files beside that. */
    private record NixlAndFiles() implements ClusterConnector {
        @Override
        public String kvConnector() {
            return "MultiConnector";
        }

        @Override
        public String flow() {
            return "kv_transfer_params";
        }

        @Override
        public List<String> settings(KvRole role, Place place) {
            ArrayNode parts = JSON.createArrayNode();
            parts.addObject()
                    .put("kv_connector", "NixlConnector")
                    .put("kv_role", role.configName())
                    .putObject("kv_connector_extra_config")
                    .put("side_channel_host", LocalCluster.HOST)
                    .put("side_channel_port", 0);
            parts.addObject()
                    .put("kv_connector", "SharedStorageConnector")
                    .put("kv_role", role.configName())
                    .putObject("kv_connector_extra_config")
                    .put("shared_storage_path", place.shared().toString());
            return List.of(SETTING + "connectors", parts.toString());
        }
    }
}
