package baton.bench;

import baton.cluster.ClusterConnector;
import baton.cluster.ClusterConnector.Place;
import baton.cluster.LocalCluster;
import baton.kv.ConfigException;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.connector.KvConnectors;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.stream.Stream;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ObjectNode;

/**
 * A way to use a connector, as {@link ConnectorBench} measures it: one row of its tables. All of them are in {@code connector-cases.json}, in
 * the order in which they are measured and shown, each with the facts that cannot be measured.
 *
 * @param name the value of {@code kv_connector}, and a word for settings other than the default
 */
public record ConnectorCase(String name, JsonNode fields) {
    static final String REDIS = "redis-server";
    /** Environment variables that cases need, by their names in the resource. */
    private static final Map<String, String> VARIABLES =
            Map.of("nixl", "BATON_NIXL_LIBRARY", "mooncake store", "BATON_MOONCAKE_STORE_URL");

    private static final JsonMapper JSON = JsonMapper.builder().build();
    private static final List<ConnectorCase> ALL = read();

    private static List<ConnectorCase> read() {
        try (InputStream in = Objects.requireNonNull(ConnectorCase.class.getResourceAsStream("connector-cases.json"))) {
            return JSON.readTree(in)
                    .valueStream()
                    .map(fields -> new ConnectorCase(fields.path("name").asString(), fields))
                    .toList();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
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
        return name.equals(asked) || kvConnector().equals(asked);
    }

    /** Value of {@code kv_connector}. */
    String kvConnector() {
        return fields.path("cluster").asString(fields.path("connector").asString(""));
    }

    /** Whether it takes a prefill instance, a decode instance and a router, and not one instance. */
    boolean isPair() {
        return fields.has("cluster") || fields.path("pair").asBoolean(false);
    }

    /** Whether the decode instance finds the prefill instance's stored blocks by itself. */
    boolean hits() {
        return fields.path("hits").asBoolean(false);
    }

    /** Whether memory is too small for the prompts, so that they are in the tier behind it. */
    boolean hasSecondTier() {
        return fields.path("second_tier").asBoolean(false);
    }

    boolean hasRedis() {
        return fields.path("program").asString("").equals(REDIS);
    }

    /** How a pair hands over. */
    ClusterConnector cluster() {
        if (!fields.has("cluster")) {
            return new Configured(this);
        }
        ClusterConnector connector = LocalCluster.Connector.valueOf(kvConnector());
        if (fields.has("flow")) {
            connector = connector.by(fields.path("flow").asString());
        }
        for (Map.Entry<String, JsonNode> setting : fields.path("with").properties()) {
            connector = connector.with(List.of(
                    ClusterConnector.SETTING + setting.getKey(),
                    setting.getValue().asString()));
        }
        return connector;
    }

    /** A pair with the settings of the case. */
    private record Configured(ConnectorCase of) implements ClusterConnector {
        @Override
        public String kvConnector() {
            return of.kvConnector();
        }

        @Override
        public String flow() {
            return "kv_transfer_params";
        }

        @Override
        public List<String> settings(KvRole role, Place place) {
            return of.config(Map.of("{role}", role.configName(), "{directory}", place.shared()))
                    .propertyStream()
                    .flatMap(each ->
                            Stream.of(SETTING + each.getKey(), each.getValue().toString()))
                    .toList();
        }
    }

    /**
     * {@code kv_connector_extra_config} of one instance.
     *
     * @param directory for files
     * @param memory bytes for KV caches
     * @param redisPort of a Redis server, 0 without one
     */
    ObjectNode config(Path directory, long memory, int redisPort) {
        return config(Map.of(
                "\"{memory}\"", memory,
                "\"{memory_gib}\"", memory / (double) (1L << 30),
                "{memory}", memory,
                "{directory}", directory,
                "{redis}", redisPort,
                "{variable}", variable().orElse("")));
    }

    private ObjectNode config(Map<String, Object> places) {
        String text = fields.path("config").toString();
        // The longest first: a place with its quotes is a number.
        for (String place : places.keySet().stream()
                .sorted(Comparator.comparingInt(String::length).reversed())
                .toList()) {
            text = text.replace(place, String.valueOf(places.get(place)));
        }
        return (ObjectNode) JSON.readTree(text);
    }

    private Optional<String> variable() {
        return variableName().map(System::getenv);
    }

    private Optional<String> variableName() {
        return Optional.ofNullable(VARIABLES.get(fields.path("variable").asString("")));
    }

    /** Writes all but the figures. */
    void writeTo(ObjectNode row) {
        row.put("name", name)
                .put("processes", isPair() ? "2 instances, router" : hasRedis() ? "1 instance, Redis" : "1 instance");
        settings().forEach(row.putArray("settings")::add);
        for (String fact : List.of("hosts", "needs", "hardware", "keeps", "peers")) {
            row.set(fact, fields.path(fact));
        }
    }

    /** Names of the settings that it is measured with, beside {@code kv_connector} and {@code kv_role}. */
    private List<String> settings() {
        if (!isPair()) {
            return List.copyOf(fields.path("config").propertyNames());
        }
        ClusterConnector connector = cluster();
        Place place = new Place(Path.of(""), 1, Optional.of(URI.create("tcp://127.0.0.1:1")), 1);
        List<String> options = connector.settings(KvRole.PRODUCER, place);
        List<String> names = new ArrayList<>();
        for (int i = 0; i < options.size(); i += 2) {
            names.add(options.get(i).substring(options.get(i).lastIndexOf('.') + 1));
        }
        if (connector.listens()) {
            names.add("kv_auth_secret_file");
        }
        return names;
    }

    /** Why it cannot be measured here; empty: it can. */
    Optional<String> unavailable() {
        try {
            KvConnectors.find(
                    KvTransferConfig.builder(kvConnector(), KvRole.BOTH).build());
        } catch (ConfigException e) {
            return Optional.of("no connector of the name " + kvConnector() + " is on the class path");
        }
        if (variableName().isPresent() && variable().isEmpty()) {
            return variableName().map(variable -> variable + " is not set");
        }
        if (fields.has("program")
                && OtherProgram.find(fields.path("program").asString()).isEmpty()) {
            return Optional.of(fields.path("program").asString() + " is not on the PATH");
        }
        long gpus = Stream.iterate(0, i -> i + 1)
                .takeWhile(i -> Files.exists(Path.of("/dev/nvidia" + i)))
                .count();
        return gpus < fields.path("gpus").asInt(0)
                ? Optional.of("NCCL needs a GPU for each instance, this machine has " + gpus)
                : Optional.empty();
    }
}
