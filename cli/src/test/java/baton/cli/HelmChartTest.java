package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.kv.JsonObjectArgs;
import baton.kv.KvEventsConfig;
import baton.kv.KvTransferConfig;
import baton.kv.connector.KvConnectors;
import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.ObjectMapper;
import tools.jackson.databind.node.ObjectNode;
import tools.jackson.dataformat.yaml.YAMLMapper;

/**
 * The chart with each of its files of values, rendered by Helm, against Kubernetes' schemas and against Baton's own command line. Skipped
 * where Helm, kubeconform or the schemas are absent; see docs/kubernetes.md.
 */
class HelmChartTest {
    private static final Path CHART = Program.ROOT.resolve("deploy", "helm", "baton");
    private static final Duration DEADLINE = Duration.ofMinutes(1);
    private static final String DEFINITIONS = "#/definitions/";
    private static final String KV_TRANSFER_CONFIG = "--kv-transfer-config=";
    private static final ObjectMapper JSON = new ObjectMapper();

    @TempDir
    private Path directory;

    @ParameterizedTest
    @ValueSource(strings = {"small", "nixl", "offload", "llmd"})
    void everyManifestIsValid(String values) throws Exception {
        Path manifests = Files.writeString(directory.resolve("manifests.yaml"), rendered(values));
        Path schemas = directory.resolve("schemas");
        writeSchemas(openApi(), kinds(Files.readString(manifests)), schemas);
        String said = run(
                tool("kubeconform", "BATON_KUBECONFORM").toString(),
                "-strict",
                "-summary",
                "-schema-location",
                schemas + "/{{ .ResourceKind }}{{ .KindSuffix }}.json",
                manifests.toString());
        assertThat(said).contains("Invalid: 0", "Errors: 0", "Skipped: 0").doesNotContain("Valid: 0");
    }

    /** The schemas refuse wrong values. */
    @Test
    void aMisspeltFieldIsInvalid() throws Exception {
        Path manifests = Files.writeString(
                directory.resolve("manifests.yaml"),
                rendered("small").replace("terminationGracePeriodSeconds", "terminationGraceSeconds"));
        Path schemas = directory.resolve("schemas");
        writeSchemas(openApi(), kinds(Files.readString(manifests)), schemas);
        Process process = start(List.of(
                tool("kubeconform", "BATON_KUBECONFORM").toString(),
                "-strict",
                "-schema-location",
                schemas + "/{{ .ResourceKind }}{{ .KindSuffix }}.json",
                manifests.toString()));
        assertThat(process.exitValue()).isEqualTo(1);
        assertThat(Files.readString(directory.resolve("said"))).contains("terminationGraceSeconds");
    }

    @ParameterizedTest
    @ValueSource(strings = {"small", "nixl", "offload", "llmd"})
    void everyContainerIsStartedAsTheProgramAllows(String values) throws Exception {
        List<String> commands = new ArrayList<>();
        for (JsonNode manifest : documents(rendered(values))) {
            for (JsonNode container : manifest.at("/spec/template/spec/containers")) {
                if (!container.path("image").asString().contains("baton")) {
                    continue;
                }
                List<String> arguments = new ArrayList<>();
                container.path("args").forEach(argument -> arguments.add(argument.asString()));
                commands.add(arguments.getFirst());
                List<String> ends = container
                        .at("/lifecycle/preStop/exec/command")
                        .valueStream()
                        .map(JsonNode::asString)
                        .dropWhile(word -> !word.equals("drain"))
                        .toList();
                boolean drains = arguments.getFirst().equals("serve") && !values.equals("llmd");
                assertThat(ends).hasSize(drains ? 3 : 0);
                Baton.commandLine(new ServeCommand()).parseArgs(ends.toArray(String[]::new));
                if (arguments.getFirst().equals("route")) {
                    // It would be added to the requests of clients that have no key.
                    assertThat(arguments).noneMatch(argument -> argument.startsWith("--api-key"));
                }
                // Kubernetes replaces variables of the container; one that it does not know would stay.
                Set<String> variables = new HashSet<>();
                container
                        .path("env")
                        .forEach(variable -> variables.add(variable.path("name").asString()));
                for (String argument : arguments) {
                    for (String rest = argument; rest.contains("$("); rest = rest.substring(rest.indexOf("$(") + 2)) {
                        int at = rest.indexOf("$(");
                        assertThat(variables).contains(rest.substring(at + 2, rest.indexOf(')', at)));
                    }
                }
                requireAccepted(arguments.stream()
                        .map(argument -> argument.replace("$(POD_IP)", "127.0.0.1")
                                .replace("\"side_channel_port\":5600", "\"side_channel_port\":0")
                                .replace("$(REDIS_URL)", "redis://redis:6379"))
                        .toList());
            }
        }
        assertThat(commands)
                .containsExactlyInAnyOrderElementsOf(
                        values.equals("llmd") ? List.of("serve", "serve") : List.of("serve", "serve", "route"));
    }

    /** The rules of prometheus-adapter use metrics that instances have. */
    @Test
    void everyMetricThatScalesIsServed() throws Exception {
        Path rules = CHART.resolveSibling("prometheus-adapter.yaml");
        List<String> served = documents(Files.readString(rules))
                .getFirst()
                .at("/rules/custom")
                .valueStream()
                .map(rule -> rule.at("/name/as").asString())
                .toList();
        List<String> wanted = documents(rendered("nixl")).stream()
                .flatMap(manifest -> manifest.at("/spec/metrics").valueStream())
                .map(metric -> metric.at("/pods/metric/name").asString())
                .toList();
        assertThat(wanted).containsExactlyInAnyOrderElementsOf(served);
        String documented = Files.readString(Program.ROOT.resolve("docs", "serving.md"));
        assertThat(Pattern.compile("vllm:\\w+").matcher(Files.readString(rules)).results())
                .allSatisfy(series ->
                        assertThat(documented).contains('`' + series.group().replaceAll("_(sum|count)$", "") + '`'));
    }

    /** llm-d's sidecar has the port that its scheduler sends to, and asks the instance at the port after it. */
    @Test
    void underLlmdPodsHaveTheirRoleAndDecodeASidecar() throws Exception {
        for (JsonNode manifest : documents(rendered("llmd"))) {
            JsonNode template = manifest.at("/spec/template");
            if (template.isMissingNode()) {
                continue;
            }
            String role = template.at("/metadata/labels/llm-d.ai~1role").asString();
            assertThat(role).isIn("prefill", "decode");
            boolean decodes = role.equals("decode");
            assertThat(template.at("/spec/containers/0/ports/0/containerPort").asInt())
                    .isEqualTo(decodes ? 8200 : 8000);
            JsonNode sidecar = template.at("/spec/initContainers/0");
            assertThat(sidecar.path("restartPolicy").asString("")).isEqualTo(decodes ? "Always" : "");
            assertThat(sidecar.path("args").valueStream().map(JsonNode::asString))
                    .containsAll(decodes ? List.of("--port=8000", "--model-server-port=8200") : List.of());
        }
    }

    private void requireAccepted(List<String> arguments) throws IOException {
        List<String> rest = arguments;
        if (arguments.getFirst().equals("serve")) {
            JsonObjectArgs<KvTransferConfig> parsed = KvTransferConfig.fromArgs(
                    arguments.contains("--kv-auth-secret-file=/etc/baton/kv-auth") ? withSecret(arguments) : arguments);
            KvTransferConfig config = parsed.config().orElseThrow();
            KvConnectors.check(config, 1);
            rest = KvEventsConfig.fromArgs(parsed.rest()).rest();
        }
        Baton.commandLine(new ServeCommand()).parseArgs(rest.toArray(String[]::new));
    }

    /** The arguments with the flag's key and an existing file. */
    private List<String> withSecret(List<String> arguments) throws IOException {
        Path secret = Files.writeString(directory.resolve("secret"), "0123456789abcdef0123456789abcdef");
        return arguments.stream()
                .map(argument -> argument.startsWith(KV_TRANSFER_CONFIG)
                        ? KV_TRANSFER_CONFIG + withSecret(argument.substring(KV_TRANSFER_CONFIG.length()), secret)
                        : argument)
                .toList();
    }

    private static JsonNode withSecret(String config, Path secret) {
        ObjectNode json = (ObjectNode) JSON.readTree(config);
        ((ObjectNode) json.path("kv_connector_extra_config")).put("kv_auth_secret_file", secret.toString());
        return json;
    }

    private static Set<String> kinds(String manifests) throws IOException {
        return documents(manifests).stream()
                .map(manifest -> manifest.path("kind").asString())
                .collect(Collectors.toSet());
    }

    private static List<JsonNode> documents(String manifests) throws IOException {
        YAMLMapper yaml = new YAMLMapper();
        List<JsonNode> documents = new ArrayList<>();
        try (var nodes = yaml.readerFor(JsonNode.class).<JsonNode>readValues(manifests)) {
            nodes.forEachRemaining(documents::add);
        }
        return documents;
    }

    private String rendered(String values) throws IOException, InterruptedException {
        return run(
                tool("helm", "BATON_HELM").toString(),
                "template",
                "release",
                CHART.toString(),
                "--kube-version",
                "1.36.0",
                "--values",
                CHART.resolve("values", values + ".yaml").toString());
    }

    /** A command's output, if it ends well. */
    private String run(String... command) throws IOException, InterruptedException {
        Process process = start(List.of(command));
        String said = Files.readString(directory.resolve("said"));
        assertThat(process.exitValue()).as("%s", said).isZero();
        return said;
    }

    /** A process that has ended; its output is in a file. */
    private Process start(List<String> command) throws IOException, InterruptedException {
        Process process = new ProcessBuilder(command)
                .redirectErrorStream(true)
                .redirectOutput(directory.resolve("said").toFile())
                .start();
        try {
            assertThat(process.waitFor(DEADLINE)).as("ended in time").isTrue();
        } finally {
            process.destroyForcibly();
        }
        return process;
    }

    private static Path tool(String name, String variable) {
        Optional<Path> found = Stream.concat(
                        Optional.ofNullable(System.getenv(variable)).map(Path::of).stream(),
                        Stream.of(System.getenv("PATH").split(File.pathSeparator))
                                .map(each -> Path.of(each, name)))
                .filter(Files::isExecutable)
                .findFirst();
        assumeTrue(found.isPresent(), "there is no " + name + " on the PATH or at " + variable);
        return found.orElseThrow();
    }

    private static Path openApi() {
        Optional<Path> file = Optional.ofNullable(System.getenv("BATON_KUBERNETES_OPENAPI"))
                .map(Path::of)
                .filter(Files::isRegularFile);
        assumeTrue(file.isPresent(), "BATON_KUBERNETES_OPENAPI names no swagger.json of Kubernetes");
        return file.orElseThrow();
    }

    /** Kubernetes' description of its API (OpenAPI 2) as JSON schemas, a file for each of these kinds, that know no other fields. */
    private static void writeSchemas(Path openApi, Set<String> kinds, Path schemas) throws IOException {
        Files.createDirectories(schemas);
        ObjectNode definitions =
                (ObjectNode) JSON.readTree(Files.readAllBytes(openApi)).path("definitions");
        for (Map.Entry<String, JsonNode> definition : definitions.properties()) {
            ObjectNode schema = (ObjectNode) definition.getValue();
            if (schema.has("properties")) {
                schema.put("additionalProperties", false);
            }
            if (schema.path("format").asString("").equals("int-or-string")
                    || definition.getKey().endsWith(".resource.Quantity")) {
                schema.remove("type");
            }
        }
        for (Map.Entry<String, JsonNode> definition : definitions.properties()) {
            for (JsonNode kind : definition.getValue().path("x-kubernetes-group-version-kind")) {
                if (!kinds.contains(kind.path("kind").asString())) {
                    continue;
                }
                String group = kind.path("group").asString();
                String file = Stream.of(
                                kind.path("kind").asString(),
                                group.split("\\.", -1)[0],
                                kind.path("version").asString())
                        .filter(part -> !part.isEmpty())
                        .reduce((one, other) -> one + "-" + other)
                        .orElseThrow()
                        .toLowerCase(Locale.ROOT);
                ObjectNode used = JSON.createObjectNode();
                collect(definitions, definition.getKey(), used);
                ObjectNode schema = JSON.createObjectNode();
                schema.put("$schema", "http://json-schema.org/draft-07/schema#");
                schema.put("$ref", DEFINITIONS + definition.getKey());
                schema.set("definitions", used);
                Files.writeString(schemas.resolve(file + ".json"), schema.toString());
            }
        }
    }

    private static void collect(ObjectNode definitions, String name, ObjectNode used) {
        if (used.has(name)) {
            return;
        }
        JsonNode definition = definitions.path(name);
        used.set(name, definition);
        definition.findValues("$ref").stream()
                // A schema of schemas has a property of that name.
                .filter(JsonNode::isString)
                .forEach(reference -> collect(definitions, reference.asString().substring(DEFINITIONS.length()), used));
    }
}
