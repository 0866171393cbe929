package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cluster.LocalCluster;
import baton.testkit.Await;
import java.io.BufferedReader;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

/** {@code baton up}, as a user runs and ends it. */
class UpTest {
    private static final Duration DEADLINE = Duration.ofSeconds(60);

    @TempDir
    private Path directory;

    @Test
    void printsAnEndpointAndEndsWithAllItsProcessesOnSigterm() throws Exception {
        Process up = start(
                "--instance-option=--enable-auto-tool-choice",
                "--instance-option=--tool-call-parser",
                "--instance-option=hermes");
        try {
            String said = readUpTo(up, "Ctrl-C stops");
            URI endpoint = URI.create(group(said, "OpenAI endpoint +(\\S+)"));
            Path logs = Path.of(group(said, "logs +(\\S+)"));
            assertThat(logs).isDirectory();
            // A cluster that is ready has handed over prompts.
            assertThat(loadedTokens(URI.create(group(said, "decode +(http\\S+)"))))
                    .isPositive();
            assertThat(answer(said)).contains("Harrow");
            assertThatToolsAreCalled(endpoint);
            assertThat(endpoint.getPath()).isEqualTo("/v1");
            assertThat(said).startsWith("Starting a decode instance, a prefill instance and a router with");
            assertThat(said.substring(0, said.indexOf("OpenAI endpoint")))
                    .as("progress")
                    .containsPattern(" s: decode instance is ready\n")
                    .containsPattern(" s: prefill instance is ready\n")
                    .containsPattern(" s: router is ready\n.* s: first prompts have been handed over\n");
            List<ProcessHandle> children = up.descendants().toList();
            assertThat(children).hasSize(3);

            up.destroy();

            assertEnded(up, children);
            assertThat(logs).doesNotExist();
            assertThat(Files.readString(directory.resolve("err"))).isEmpty();
        } finally {
            end(up);
        }
    }

    /** The first token, which the prefill instance chooses, belongs to the call as the others do. */
    private static void assertThatToolsAreCalled(URI endpoint) throws Exception {
        try (HttpClient http = HttpClient.newHttpClient()) {
            for (boolean stream : List.of(false, true)) {
                String body = http.send(
                                HttpRequest.newBuilder(URI.create(endpoint + "/chat/completions"))
                                        .timeout(DEADLINE)
                                        .header("Content-Type", "application/json")
                                        .POST(HttpRequest.BodyPublishers.ofString("""
                                                {"messages":[{"role":"user","content":"Where does Tomas live, and what does he keep in the green box?"}],
                                                "tools":[{"type":"function","function":{"name":"find","parameters":{"type":"object","properties":
                                                {"town":{"enum":["Harrow","Ely"]}},"required":["town"]}}}],"tool_choice":"required",
                                                "parallel_tool_calls":false,"max_tokens":200,"stream":%s}""".formatted(stream)))
                                        .build(),
                                BodyHandlers.ofString())
                        .body();
                StringBuilder arguments = new StringBuilder();
                Pattern.compile("\"arguments\":(\"(?:[^\"\\\\]|\\\\.)*\")")
                        .matcher(body)
                        .results()
                        .forEach(match -> arguments.append(
                                Instances.JSON.readTree(match.group(1)).asString()));
                assertThat(body).contains("\"name\":\"find\"", "\"finish_reason\":\"tool_calls\"");
                assertThat(Instances.JSON
                                .readTree(arguments.toString())
                                .path("town")
                                .asString())
                        .as(body)
                        .isIn("Harrow", "Ely");
            }
        }
    }

    /** Each connector that needs nothing beside this host. Nothing is logged as a warning, but for a busy machine. */
    @Tag("thorough")
    @ParameterizedTest
    @EnumSource(mode = EnumSource.Mode.EXCLUDE, names = "MooncakeStoreConnector")
    void everyConnectorHandsOverAndWarnsOfNothing(LocalCluster.Connector connector) throws Exception {
        Process up = start("--no-warmup", "--connector", connector.name());
        try {
            String said = readUpTo(up, "Ctrl-C stops");
            URI decode = URI.create(group(said, "decode +(http\\S+)"));
            double before = loadedTokens(decode);
            assertThat(answer(said)).contains("Harrow");
            assertThat(loadedTokens(decode)).isGreaterThan(before);
            Path logs = Path.of(group(said, "logs +(\\S+)"));
            for (String process : List.of("prefill", "decode", "router")) {
                assertThat(Files.readAllLines(logs.resolve(process + ".log")))
                        .as(process)
                        .noneMatch(line -> line.matches(".* (WARN|ERROR) (?!ServeCommand - The load average).*"));
            }
            up.destroy();
            assertThat(up.waitFor(DEADLINE)).isTrue();
            assertThat(Files.readString(directory.resolve("err"))).isEmpty();
        } finally {
            end(up);
        }
    }

    @Test
    void aConnectorWithoutItsStoreIsRefused() throws Exception {
        Process up = start("--connector", "MooncakeStoreConnector");
        try {
            assertThat(up.waitFor(DEADLINE)).isTrue();
            assertThat(up.exitValue()).isEqualTo(2);
            assertThat(Files.readString(directory.resolve("err")))
                    .startsWith("baton: connector: is MooncakeStoreConnector")
                    .contains("--setting store_rest_url=");
        } finally {
            end(up);
        }
    }

    /** The children end even if this process is killed. */
    @Tag("thorough")
    @Test
    void answersAfterAProcessWasSuspendedAndAllProcessesEndWhenTheParentIsKilled() throws Exception {
        Process up = start("--no-warmup", "--connector", "NixlConnector");
        try {
            String said = readUpTo(up, "Ctrl-C stops");
            List<ProcessHandle> children = up.descendants().toList();
            assertThat(children).hasSize(3);
            // The secret that the instances share is readable by this user only.
            Path secret = Path.of(group(said, "logs +(\\S+)")).resolve("secret");
            assertThat(Files.readString(secret)).hasSize(64);
            assertThat(PosixFilePermissions.toString(Files.getPosixFilePermissions(secret)))
                    .isEqualTo("rw-------");
            assertThat(answer(said)).contains("Harrow");
            for (ProcessHandle child : children) {
                answersWhenItGoesOn(said, child);
            }
            up.destroyForcibly();
            assertEnded(up, children);
        } finally {
            end(up);
        }
    }

    @Test
    void namesTheProcessThatEndedAndExits() throws Exception {
        namesTheProcessThatEndedAndExits(0);
    }

    @Tag("thorough")
    @ParameterizedTest
    @ValueSource(ints = {1, 2})
    void namesTheProcessThatEndedAndExits(int killed) throws Exception {
        Process up = start("--no-warmup");
        try {
            readUpTo(up, "Ctrl-C stops");
            List<ProcessHandle> children = up.children().toList();
            // ProcessHandle.Info has no arguments where they are longer than a page.
            String command = Files.readString(
                    Path.of("/proc", Long.toString(children.get(killed).pid()), "cmdline"));
            String name =
                    command.contains("kv_producer") ? "prefill" : command.contains("kv_consumer") ? "decode" : "router";
            children.get(killed).destroyForcibly();
            assertEnded(up, children);
            assertThat(up.exitValue()).isEqualTo(1);
            assertThat(Files.readString(directory.resolve("err")))
                    .contains("baton: the " + name + " process ended")
                    .doesNotContain("Exception");
        } finally {
            end(up);
        }
    }

    /** Requests, each about a prompt that no cache has, while a process is stopped for half a second. */
    private static void answersWhenItGoesOn(String said, ProcessHandle stopped) throws Exception {
        try (ExecutorService clients = Executors.newVirtualThreadPerTaskExecutor()) {
            Instances.signal(stopped.pid(), "-STOP");
            List<Future<String>> answers = new ArrayList<>();
            try {
                for (int age = 10; age < 14; age++) {
                    String other = said.replace("is 87", "is " + age + stopped.pid());
                    answers.add(clients.submit(() -> answer(other)));
                }
                TimeUnit.MILLISECONDS.sleep(500);
            } finally {
                Instances.signal(stopped.pid(), "-CONT");
            }
            for (Future<String> each : answers) {
                assertThat(each.get(DEADLINE.toSeconds(), TimeUnit.SECONDS)).contains("Harrow");
            }
        }
    }

    private Process start(String... options) throws Exception {
        List<String> arguments = new ArrayList<>(List.of("up", "--port", "0"));
        arguments.addAll(List.of(options));
        ProcessBuilder up = new ProcessBuilder(Program.command()
                .withOptions(List.of("-Djava.io.tmpdir=" + directory))
                .with(arguments));
        return up.redirectError(directory.resolve("err").toFile()).start();
    }

    private static void end(Process up) {
        up.descendants().forEach(ProcessHandle::destroyForcibly);
        up.destroyForcibly();
    }

    private static void assertEnded(Process up, List<ProcessHandle> children) throws Exception {
        assertThat(up.waitFor(DEADLINE)).isTrue();
        Await.until(
                DEADLINE, () -> "a process lives on", () -> children.stream().noneMatch(ProcessHandle::isAlive));
    }

    private static String readUpTo(Process process, String last) throws Exception {
        StringBuilder said = new StringBuilder();
        BufferedReader output = process.inputReader(StandardCharsets.UTF_8);
        for (String line = output.readLine(); line != null; line = output.readLine()) {
            said.append(line).append('\n');
            if (line.startsWith(last)) {
                return said.toString();
            }
        }
        throw new AssertionError("it said only: " + said);
    }

    /** Sends the request of the printed curl command. */
    private static String answer(String said) throws Exception {
        Matcher curl = Pattern.compile("curl -s (\\S+) -H 'Content-Type: application/json' -d '([^']*)'")
                .matcher(said);
        assertThat(curl.find()).as(said).isTrue();
        try (HttpClient http = HttpClient.newHttpClient()) {
            HttpResponse<String> response = http.send(
                    HttpRequest.newBuilder(URI.create(curl.group(1)))
                            .timeout(DEADLINE)
                            .header("Content-Type", "application/json")
                            .POST(HttpRequest.BodyPublishers.ofString(curl.group(2)))
                            .build(),
                    BodyHandlers.ofString());
            assertThat(response.statusCode()).isEqualTo(200);
            return Instances.JSON
                    .readTree(response.body())
                    .path("choices")
                    .path(0)
                    .path("message")
                    .path("content")
                    .asString();
        }
    }

    private static double loadedTokens(URI instance) throws Exception {
        try (ApiClient client = new ApiClient()) {
            return client.metrics(instance).entrySet().stream()
                    .filter(entry -> entry.getKey().startsWith("vllm:prompt_tokens_by_source_total")
                            && entry.getKey().contains("external_kv_transfer"))
                    .mapToDouble(Map.Entry::getValue)
                    .sum();
        }
    }

    private static String group(String text, String pattern) {
        Matcher matcher = Pattern.compile(pattern).matcher(text);
        assertThat(matcher.find()).as(text).isTrue();
        return matcher.group(1);
    }
}
