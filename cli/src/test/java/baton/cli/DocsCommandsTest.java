package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Docs.Command;
import baton.cluster.ServerProcess;
import baton.kv.FreePorts;
import baton.testkit.Await;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import java.util.regex.MatchResult;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * The commands of the pages for users work. Those of one section run together, as a reader would type them: servers stay up, other commands
 * must succeed. Then a router hands a prompt over, and an instance alone answers.
 */
class DocsCommandsTest {
    private static final Duration DEADLINE = Duration.ofMinutes(2);

    /** First words of commands; other lines are output or pictures. */
    private static final Set<String> PROGRAMS = Set.of(
            "./baton",
            "curl",
            "openssl",
            "vllm",
            "mvn",
            "helm",
            "kubectl",
            "go",
            "docker",
            "sudo",
            "tar",
            "mooncake_master",
            "mc_store_rest_server",
            "export",
            "/opt/baton/bin/baton");

    private static final Set<String> SERVERS = Set.of("serve", "route", "up", "kv-server");

    /**
     * Commands that are parsed, if they are Baton's, and not run.
     *
     * @param page that begins so
     * @param command that begins so
     */
    private record Left(String page, String command, String why) {
        boolean fits(Command each) {
            return each.place().startsWith(page)
                    && String.join(" ", each.words()).startsWith(command);
        }
    }

    private static final List<Left> LEFT = List.of(
            new Left("docs/benchmarks.md", "./baton bench", "minutes; each has a test of its own"),
            new Left("docs/bench-serve.md", "./baton bench serve", "needs a server and data; BenchServeTest"),
            new Left("docs/bench-serve.md", "./baton bench disagg", "minutes; BenchDisaggTest"),
            new Left("docs/guide.md", "./baton bench disagg", "minutes; BenchDisaggTest"),
            new Left("docs/guide.md", "./baton plan", "minutes; PlanTest"),
            new Left("docs/plan.md", "./baton plan", "minutes; PlanTest"),
            new Left("docs/interoperating.md", "./baton", "vLLM at the other end; VllmPeerTest"),
            new Left("docs/connectors/custom.md", "./baton serve", "a connector of the reader; CustomConnectorTest"),
            new Left(
                    "docs/connectors/lmcache.md",
                    "./baton serve MODEL --kv-transfer-config",
                    "LMCache's file, a Redis server; the connector's tests"),
            new Left(
                    "docs/connectors/mooncake-store.md", "./baton serve", "Mooncake's services; the connector's tests"),
            new Left("docs/connectors/mooncake-store.md", "curl", "likewise"),
            new Left("docs/kv-events.md", "./baton serve MODEL_DIR --kv-events-config.", "a host with the name router"),
            new Left("docs/kv-server.md", "./baton kv-server --host 10.0.1.1", "a certificate; KvServerTest"),
            new Left("docs/routing.md", "curl", "a request of the reader"),
            new Left("docs/routing.md", "./baton route", "hosts of a network"),
            new Left("docs/distribution.md", "/opt/baton/bin/baton", "the archive's test runs its programs"),
            new Left("docs/distribution.md", "tar", "likewise"),
            new Left("docs/distribution.md", "docker", "the image's test runs its file system"),
            new Left("docs/distribution.md", "sudo", "root, and systemd"),
            new Left("docs/kubernetes.md", "helm", "a cluster; HelmChartTest"),
            new Left("docs/kubernetes.md", "kubectl", "a cluster"),
            new Left("docs/kubernetes.md", "go", "installs programs"),
            new Left("docs/kubernetes.md", "export", "likewise"),
            new Left("docs/connectors/mooncake-store.md", "mooncake_master", "Mooncake; the store's tests start it"),
            new Left("docs/connectors/mooncake-store.md", "mc_store_rest_server", "likewise"),
            new Left("", "vllm", "vLLM; VllmPeerTest"),
            new Left("", "mvn", "the build itself"));

    @TempDir
    private Path directory;

    private final Map<String, Process> servers = new LinkedHashMap<>();

    /** Lines of a section's blocks, without those that are left. */
    record Section(String name, List<String> lines) {
        @Override
        public String toString() {
            return name;
        }
    }

    static Stream<Section> sections() {
        Map<String, List<String>> sections = new LinkedHashMap<>();
        for (Docs.Block block : Docs.blocks()) {
            for (Docs.Line line : block.lines()) {
                List<Command> commands = line.commands();
                boolean runs = !commands.isEmpty()
                        && PROGRAMS.contains(commands.getFirst().program())
                        && LEFT.stream().noneMatch(left -> left.fits(commands.getFirst()));
                if (runs) {
                    sections.computeIfAbsent(block.section(), _ -> new ArrayList<>())
                            .add(line.text());
                }
            }
        }
        return sections.entrySet().stream().map(each -> new Section(each.getKey(), each.getValue()));
    }

    /** Every command that is left out is there. */
    @Test
    void reasonsAreAboutCommands() {
        List<Command> commands = Docs.blocks().stream()
                .flatMap(block -> block.commands().stream())
                .toList();
        assertThat(LEFT).allSatisfy(left -> assertThat(commands).as("%s", left).anyMatch(left::fits));
        assertThat(sections()).hasSizeGreaterThan(10);
    }

    @Tag("thorough")
    @ParameterizedTest
    @MethodSource("sections")
    void commandsWork(Section section) throws Exception {
        prepare();
        List<String> lines = onThisMachine(section.lines());
        Optional<URI> last = Optional.empty();
        Optional<String> decode = Optional.empty();
        try {
            for (String line : lines) {
                List<String> words =
                        Docs.commands(section.name(), line).getFirst().words();
                if (words.getFirst().equals("./baton") && SERVERS.contains(words.get(1))) {
                    URI url = serve(line, words);
                    last = words.get(1).equals("kv-server") ? last : Optional.of(url);
                    int at = words.indexOf("--decode");
                    decode = at < 0 ? Optional.empty() : Optional.of(words.get(at + 1));
                } else {
                    runToItsEnd(line);
                }
            }
            if (last.isPresent() && !section.lines().getLast().contains("--register-port")) {
                assertAnswers(last.get(), decode);
            }
        } finally {
            for (Process server : servers.values()) {
                end(server);
            }
        }
    }

    /** Prepares the program, a directory and a secret, which sections presuppose. */
    private void prepare() throws IOException {
        Path baton = directory.resolve("baton");
        Files.writeString(
                baton,
                "#!/bin/bash\nexec "
                        + Program.baton(List.of()).stream()
                                .map(DocsCommandsTest::quoted)
                                .collect(Collectors.joining(" "))
                        + " \"$@\"\n");
        Files.setPosixFilePermissions(baton, PosixFilePermissions.fromString("rwx------"));
        Files.createDirectories(directory.resolve("kv"));
        Path secret = Files.writeString(directory.resolve("secret"), "0123456789abcdef0123456789abcdef");
        Files.setPosixFilePermissions(secret, PosixFilePermissions.fromString("rw-------"));
    }

    private static String quoted(String word) {
        return "'" + word.replace("'", "'\\''") + "'";
    }

    /** The same with this machine's model, directory, addresses and free ports, and with less memory. */
    private List<String> onThisMachine(List<String> lines) throws IOException {
        Set<String> ports = new TreeSet<>(Set.of("8000"));
        for (String line : lines) {
            Pattern.compile("(?:port\"?:? |:)(\\d{4,5})\\b")
                    .matcher(line)
                    .results()
                    .forEach(port -> ports.add(port.group(1)));
        }
        Map<String, String> free = new LinkedHashMap<>();
        int next = FreePorts.inARow(ports.size());
        for (String port : ports) {
            free.put(port, Integer.toString(next++));
        }
        return lines.stream()
                .map(line -> line.matches("(?s)\\./baton (serve|route|up)\\b.*") && !line.contains(" --port ")
                        ? line + " --port 8000"
                        : line)
                .map(line -> Pattern.compile("((?:port\"?:? |:))(\\d{4,5})\\b")
                        .matcher(line)
                        .replaceAll(port -> port(port, free)))
                .map(line -> line.replaceAll("\\bMODEL(_DIR)?\\b", Instances.MODEL.toString())
                        .replace("/mnt/kv", directory.resolve("kv").toString())
                        .replace("10.0.1.", "127.0.0.")
                        .replaceAll("(--memory|--disk-size) \\d+G", "$1 64M")
                        .replace("--kv-offloading-size 8", "--kv-offloading-size 0.1")
                        .replace("8e9", "1e8"))
                .toList();
    }

    private static String port(MatchResult found, Map<String, String> free) {
        return found.group(1) + free.getOrDefault(found.group(2), found.group(2));
    }

    /** Starts a server, in place of one at the same port, and waits until it is ready. */
    private URI serve(String line, List<String> words) throws Exception {
        String port = words.get(words.indexOf("--port") + 1);
        Process before = servers.remove(port);
        if (before != null) {
            end(before);
        }
        Path out = Files.createTempFile(directory, "server-", ".out");
        Path err = Files.createTempFile(directory, "server-", ".err");
        Process server = bash(line)
                .redirectOutput(out.toFile())
                .redirectError(err.toFile())
                .start();
        servers.put(port, server);
        Await.until(
                DEADLINE,
                () -> line + ": not ready: " + text(err),
                () -> !server.isAlive()
                        || text(out).contains(words.get(1).equals("up") ? "Ctrl-C stops" : ServerProcess.READY));
        assertThat(server.isAlive()).as("%s: %s", line, text(err)).isTrue();
        assertThat(text(err)).as(line).doesNotContain("mean nothing to");
        String host = words.contains("--host") ? words.get(words.indexOf("--host") + 1) : "127.0.0.1";
        return URI.create("http://" + host + ":" + port);
    }

    private ProcessBuilder bash(String line) {
        return new ProcessBuilder("bash", "-c", line).directory(directory.toFile());
    }

    private void runToItsEnd(String line) throws Exception {
        Path out = Files.createTempFile(directory, "command-", ".out");
        Process process = bash(line)
                .redirectErrorStream(true)
                .redirectOutput(out.toFile())
                .start();
        try {
            assertThat(process.waitFor(DEADLINE.toSeconds(), TimeUnit.SECONDS))
                    .as("%s: %s", line, text(out))
                    .isTrue();
            assertThat(process.exitValue()).as("%s: %s", line, text(out)).isZero();
            if (line.startsWith("curl")) {
                assertThat(text(out)).as(line).isNotBlank().doesNotContain("\"error\"");
            }
        } finally {
            end(process);
        }
    }

    private static void end(Process process) throws InterruptedException {
        process.descendants().forEach(ProcessHandle::destroy);
        process.destroy();
        if (!process.waitFor(30, TimeUnit.SECONDS)) {
            process.descendants().forEach(ProcessHandle::destroyForcibly);
            process.destroyForcibly();
        }
    }

    /** @param decode instance that must have taken a prompt over */
    private static void assertAnswers(URI url, Optional<String> decode) throws Exception {
        String prompt =
                "The home of Odile is in Eastvale. The age of Nora is 87. ".repeat(6) + "The home of Odile is in";
        try (HttpClient http = HttpClient.newHttpClient()) {
            HttpResponse<String> answer = http.send(
                    HttpRequest.newBuilder(url.resolve("/v1/completions"))
                            .timeout(DEADLINE)
                            .header("Content-Type", "application/json")
                            .POST(BodyPublishers.ofString(Instances.JSON
                                    .createObjectNode()
                                    .put("prompt", prompt)
                                    .put("max_tokens", 4)
                                    .put("temperature", 0)
                                    .toString()))
                            .build(),
                    BodyHandlers.ofString());
            assertThat(answer.statusCode()).as(answer.body()).isEqualTo(200);
            assertThat(answer.body()).contains("Eastvale");
            if (decode.isPresent()) {
                HttpResponse<String> metrics = http.send(
                        HttpRequest.newBuilder(URI.create(decode.get()).resolve("/metrics"))
                                .timeout(DEADLINE)
                                .build(),
                        BodyHandlers.ofString());
                assertThat(metrics.body().lines().filter(line -> line.contains("source=\"external_kv_transfer\"")))
                        .as("tokens that were handed over")
                        .anyMatch(line -> !line.endsWith(" 0.0"));
            }
        }
    }

    private static String text(Path file) {
        try {
            return Files.readString(file);
        } catch (IOException e) {
            return e.toString();
        }
    }
}
